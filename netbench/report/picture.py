"""What all pictures share: their colours, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from netbench.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1d2733", "#66727f", "#e3e9ee", "#ffffff"


def save_picture(figure: Figure, path: Path) -> None:
    """Write `figure` to `path`; its suffix picks the format (.png, .svg, .pdf). A PNG of the same
    figure has the same bytes with every matplotlib.

    Raises UsageError if the suffix is unknown or the file cannot be written.
    """
    metadata = {"Software": None} if path.suffix == ".png" else None
    try:
        figure.savefig(path, dpi=150, facecolor=PAPER, metadata=metadata)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the picture cannot be written: {error}") from None


def check_format(path: Path) -> None:
    """Raises UsageError if the suffix of `path` is not of a picture."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise UsageError(
            f"{path}: the picture cannot be written: there is no format "
            f'"{path.suffix}"; write e.g. {path.stem}.png, .svg or .pdf'
        )


def add_color_legend(figure: Figure, colors: Mapping[str, str]) -> None:
    """What each colour stands for, in a row beneath the axes."""
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(color=color, label=name) for name, color in colors.items()],
        loc="outside lower center",
        ncols=len(colors),
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )
