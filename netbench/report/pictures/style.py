"""Colours, legends and files of all pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from netbench.errors import UsageError
from netbench.files import check_no_input

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Spot = Sequence[float] | NDArray[np.float64]
"""x and y."""

INK, MUTED, GRID, PAPER = "#1d2733", "#66727f", "#e3e9ee", "#ffffff"

_DATED = {
    ".png": ("Software",),
    ".svg": ("Date", "Creator"),
    ".pdf": ("CreationDate", "Creator", "Producer"),
}
"""Metadata of each format that would differ between days or versions of matplotlib."""


def new_figure(
    width_in: float,
    height_in: float,
    title: str = "",
    pads_in: tuple[float | None, float | None] = (0.12, 0.12),
    **font: Any,
) -> Figure:
    """An empty figure whose layout follows its contents. pads_in: above and beside each panel."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), facecolor=PAPER)
    figure.set_layout_engine("constrained", h_pad=pads_in[0], w_pad=pads_in[1])
    if title:
        figure.suptitle(title, color=INK, fontweight="bold", **font)
    return figure


def without_frame(axes: Axes, **ticks: Any) -> None:
    """Leave only the labels of ticks of the frame."""
    axes.tick_params(length=0, labelcolor=INK, **ticks)
    axes.spines[:].set_visible(False)


def frame_lines(axes: Axes, across: str, up: str) -> None:
    """Add a grid and the names of both axes to a chart of lines."""
    axes.set_axisbelow(True)
    axes.grid(color=GRID, which="major")
    without_frame(axes, which="both")
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)


def add_arrow(axes: Axes, start: Spot, end: Spot, bend: float, **look: Any) -> None:
    """Draw an arrow. bend: to its right, as a fraction of its length."""
    from matplotlib.patches import FancyArrowPatch

    ends = [(float(x), float(y)) for x, y in (start, end)]
    axes.add_patch(FancyArrowPatch(*ends, connectionstyle=f"arc3,rad={bend}", **look))


def write_over(axes: Axes, spot: Spot, text: str, *, pad: float = 0.25, **look: Any) -> None:
    """Write text around `spot`, on paper that hides what is below it."""
    look = {"ha": "center", "va": "center", "color": INK} | look
    box = {"boxstyle": f"round,pad={pad}", "facecolor": PAPER, "edgecolor": "none"}
    axes.text(float(spot[0]), float(spot[1]), text, bbox=box, **look)


def save_picture(figure: Figure, path: Path) -> None:
    """Write `figure` to `path`; its suffix selects the format (.png, .svg, .pdf).

    The same figure gives the same bytes: no date, no version, no random ids. Raises UsageError if
    the suffix is unknown or the file cannot be written.
    """
    import matplotlib

    check_no_input(path)
    metadata = dict.fromkeys(_DATED.get(path.suffix, ()))
    try:
        with matplotlib.rc_context({"svg.hashsalt": "netbench"}):
            figure.savefig(path, dpi=150, facecolor=PAPER, metadata=metadata)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the picture cannot be written: {error}") from None


def check_format(path: Path) -> None:
    """Raise UsageError if `path` does not have the suffix of a picture format."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise UsageError(
            f'{path}: the picture cannot be written: unknown format "{path.suffix}"; '
            f"write e.g. {path.stem}.png, .svg or .pdf"
        )


def write_beside(
    axes: Axes, spot: Spot, text: str, offset: tuple[float, float], **look: Any
) -> None:
    """Write text at a distance of `spot`. offset: to the right and up, points."""
    usual: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9}
    axes.annotate(text, (float(spot[0]), float(spot[1])), xytext=offset, **usual | look)


def add_legend(figure: Figure, handles: Sequence[Artist], num_columns: int, **look: Any) -> None:
    """Add a legend beneath the axes."""
    usual: dict[str, Any] = {"loc": "outside lower center", "labelcolor": INK, "fontsize": 9}
    figure.legend(handles=handles, ncols=num_columns, frameon=False, **usual | look)


def add_color_legend(figure: Figure, colors: Mapping[str, str]) -> None:
    """Add a legend of colours, in a row beneath the axes."""
    from matplotlib.patches import Patch

    patches = [Patch(color=color, label=name) for name, color in colors.items()]
    add_legend(figure, patches, len(patches))
