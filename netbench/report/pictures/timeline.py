"""A picture of an iteration: the activities and waits of ranks, as a whole and in a close-up."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from netbench.report.pictures.style import (
    INK,
    MUTED,
    add_color_legend,
    new_figure,
    without_frame,
    write_beside,
)

Stretches = NDArray[np.float64]
"""(num_stretches, 2): start and end, seconds."""

Rows = Mapping[str, Mapping[str, Stretches]]
"""Stretches by name of a rank and kind of activity."""

COLORS = {
    "forward": "#0072b2",
    "backward": "#56b4e9",
    "optimizer": "#009e73",
    "collective": "#e69f00",
    "waiting for network": "#f3d9cf",
    "delay": "#cdbfe3",
    "waiting for compute": "#e8ebee",
}
"""Waiting is pale; the other colours are those of Okabe and Ito, for colour-blind people."""

ROW_IN, PANEL_IN, WIDTH_IN = 0.2, 0.9, 12.0
"""Inches: height of a row, height of a panel without its rows, width of the picture."""

BAR, THIN = 0.84, 0.3
"""Height of a bar in its row, and of a collective that overlaps with compute."""

FEW = 0.1
"""Fraction of a rank's passes that a collective may overlap with without a separate bar."""

ZOOM_WORK = 8
"""Number of forward and backward passes of the first row in the close-up."""

LETTER = 0.0068
"""Width of a letter in the name of a part, as a fraction of the picture's width."""


def timeline_figure(title: str, rows: Rows, parts: Sequence[tuple[str, float, float]]) -> Figure:
    """Draw the picture.

    rows: kinds as in `COLORS`. parts: (name, length_s, repeat) in order of time, from 0; the rows
    have each part once.
    """
    height_in = ROW_IN * max(3, len(rows)) + PANEL_IN
    figure = new_figure(WIDTH_IN, 2 * height_in + 0.9, title, (0.08, 0.1), fontsize=11)
    close, whole = figure.subplots(2, 1)
    end_s = sum(length_s for _, length_s, _ in parts)
    from_s, to_s = close_up(rows, parts)
    for axis, window in ((close, (from_s, to_s)), (whole, (0.0, end_s))):
        _draw(axis, rows, window)
    close.set_title(_close_title(parts, from_s, to_s), color=MUTED, fontsize=10, loc="left")
    _mark_parts(whole, parts, end_s)
    whole.axvspan(from_s, to_s, fill=False, edgecolor=INK, linewidth=1)
    whole.set_xlabel("seconds; repeated parts are drawn once", color=MUTED, fontsize=9)
    close.set_xlabel("seconds", color=MUTED, fontsize=9)
    used = {kind for kinds in rows.values() for kind, found in kinds.items() if len(found)}
    add_color_legend(figure, {kind: c for kind, c in COLORS.items() if kind in used})
    return figure


def close_up(rows: Rows, parts: Sequence[tuple[str, float, float]]) -> tuple[float, float]:
    """Start and end of the close-up, seconds: about `ZOOM_WORK` passes of the first row, two thirds
    into the longest part (with GPipe among backward passes)."""
    ends_s = np.cumsum([length_s for _, length_s, _ in parts])
    windows = [(end_s - part[1], end_s) for end_s, part in zip(ends_s, parts, strict=True)]
    passes = [_num_passes(rows, *window) for window in windows]
    busy = [index for index, count in enumerate(passes) if count] or range(len(parts))
    longest = max(busy, key=lambda index: parts[index][1] * parts[index][2])
    from_s, to_s = windows[longest]
    width_s = (to_s - from_s) * min(1.0, ZOOM_WORK / max(1, passes[longest]))
    begin_s = from_s + (to_s - from_s - width_s) * 2 / 3
    return float(begin_s), float(begin_s + width_s)


def _num_passes(rows: Rows, from_s: float, to_s: float) -> int:
    kinds = next(iter(rows.values()))
    found = [kinds[kind] for kind in ("forward", "backward") if kind in kinds]
    return sum(int(((when[:, 0] >= from_s) & (when[:, 1] <= to_s)).sum()) for when in found)


def _draw(axis: Axes, rows: Rows, window: tuple[float, float]) -> None:
    """Draw a row per rank; a collective that overlaps with compute is a thin bar beneath it."""
    from_s, to_s = window
    for place, kinds in enumerate(rows.values()):
        beside = overlaps(kinds)
        for kind, color in reversed(COLORS.items()):
            when = kinds.get(kind, np.zeros((0, 2)))
            when = when[(when[:, 1] > from_s) & (when[:, 0] < to_s)]
            low, high = place - BAR / 2, place + BAR / 2
            if beside:  # the axis points down
                low, high = (high - THIN, high) if kind == "collective" else (low, high - THIN)
            spans = [(begin_s, end_s - begin_s) for begin_s, end_s in when.tolist()]
            axis.broken_barh(spans, (low, high - low), facecolors=color, linewidths=0)
    axis.set_xlim(from_s, to_s)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_yticks(range(len(rows)), list(rows), color=INK, fontsize=7.5)
    without_frame(axis, labelsize=8)
    axis.tick_params(axis="y", labelsize=7.5)


def overlaps(kinds: Mapping[str, Stretches]) -> bool:
    """Return whether collectives overlap with more than the fraction `FEW` of the passes."""
    work = [kinds[kind] for kind in ("forward", "backward") if kind in kinds]
    collective = kinds.get("collective", np.zeros((0, 2)))
    if not work or not len(collective):
        return False
    ordered = collective[np.argsort(collective[:, 0])]
    starts, ends = np.concatenate(work).T
    before = (
        np.searchsorted(ordered[:, 0], ends) - 1
    )  # the last one that begins before the work ends
    reach = np.maximum.accumulate(ordered[:, 1])
    return bool(((before >= 0) & (reach[before] > starts + 1e-9)).mean() > FEW)


def _close_title(parts: Sequence[tuple[str, float, float]], from_s: float, to_s: float) -> str:
    end_s = 0.0
    for name, length_s, repeat in parts:
        end_s += length_s
        if from_s < end_s:
            return f"close up: {to_s - from_s:.3g} s of {_part_name(name, repeat)}"
    return "close up"


def _mark_parts(axis: Axes, parts: Sequence[tuple[str, float, float]], end_s: float) -> None:
    """Write the names of the parts above the rows, and draw lines between them."""
    from_s = 0.0
    for name, length_s, repeat in parts:
        if from_s > 0:
            axis.axvline(from_s, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        names = (_part_name(name, repeat), f"×{repeat:.4g}" if repeat != 1 else "")
        fitting = [text for text in names if len(text) * LETTER * end_s <= length_s]
        if fitting:
            look = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "baseline"}
            middle = from_s + length_s / 2, 1.0
            write_beside(axis, middle, fitting[0], (0, 4), color=MUTED, **look)
        from_s += length_s


def _part_name(name: str, repeat: float) -> str:
    return name if repeat == 1 else f"{name} × {repeat:.4g}"
