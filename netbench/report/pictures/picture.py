"""A figure that a notebook shows and a file keeps."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PIXELS_PER_INCH = 100
"""Resolution of a picture in a notebook."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Picture:
    """A figure of matplotlib. A notebook shows it; `save` writes it."""

    figure: Figure

    def save(self, path: str | Path) -> None:
        """Write a PNG, SVG or PDF file. Raises UsageError for another suffix."""
        from netbench.report.pictures.style import check_format, save_picture

        check_format(Path(path))
        save_picture(self.figure, Path(path))

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.figure.savefig(data, format="png", dpi=PIXELS_PER_INCH)
        return data.getvalue()
