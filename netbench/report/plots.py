"""A picture of a run: iteration times beside the published ones, one panel per setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from netbench.errors import UsageError
from netbench.records import Run
from netbench.report.comparison import Comparison, compare, run_source
from netbench.report.picture import GRID, INK, MUTED, PAPER, save_picture
from netbench.report.published import Sample
from netbench.report.tables import spread_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PUBLISHED, FOUND = "#a9b8c6", "#1f77b4"
BAR = 0.36
"""Thickness of a bar; the two of a variant fill 0.72 of its row."""

MAX_COLUMNS = 3

ROOM = 1.5
"""Width of a panel over its longest bar: room for the labels at the bars' ends."""


def plot_run(run: Run, path: Path) -> None:
    """Write the picture to `path`; its suffix picks the format (.png, .svg, .pdf).

    Raises UsageError if the run has no times, or the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    panels = _panels(run)
    columns = min(MAX_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    tallest = max(len(panel) for panel in panels)
    figure = Figure(
        figsize=(max(7.5, 5.0 * columns), (0.75 * tallest + 0.9) * rows + 1.1),
        facecolor=PAPER,
    )
    figure.set_layout_engine("constrained", h_pad=0.12, w_pad=0.12)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel, run_source(run))
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.suptitle(
        f"{run.records[0].scenario}: seconds per iteration", color=INK, fontweight="bold"
    )
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, frameon=False, labelcolor=INK
    )
    save_picture(figure, path)


def _panels(run: Run) -> list[list[Comparison]]:
    """Comparisons with times, by setting."""
    panels: dict[str, list[Comparison]] = {}
    for row in compare(run):
        if row.found:
            panels.setdefault(row.setting, []).append(row)
    if not panels:
        raise UsageError(f"{run.path}: no iteration but warm-ups is recorded, nothing to plot")
    return list(panels.values())


def _draw(axis: Axes, rows: Sequence[Comparison], source: str) -> None:
    """Two bars per variant, from the top down; the range of the times as a whisker."""
    places = list(range(len(rows)))
    published = [row.published for row in rows]
    if any(published):
        _bars(axis, [place - BAR / 2 for place in places], published, "published", PUBLISHED)
    offset = BAR / 2 if any(published) else 0.0
    found = [row.found for row in rows]
    _bars(axis, [place + offset for place in places], found, source, FOUND)
    for place, row in zip(places, rows, strict=True):
        _label(axis, place - BAR / 2, row.published, "")
        error = "" if row.error is None else f"  ({row.error:+.0%})"
        _label(axis, place + offset, row.found, error)
    longest_s = max(times.max_s for times in (*published, *found) if times)
    axis.set_xlim(0, longest_s * ROOM)
    axis.set_yticks(places, [row.name for row in rows], color=INK)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_title(rows[0].setting, color=MUTED, fontsize=10)
    axis.set_axisbelow(True)
    axis.grid(axis="x", color=GRID)
    axis.tick_params(length=0, labelcolor=INK)
    axis.spines[:].set_visible(False)


def _bars(
    axis: Axes, places: Sequence[float], times: Sequence[Sample | None], name: str, color: str
) -> None:
    known = [(place, time) for place, time in zip(places, times, strict=True) if time]
    means_s = [time.mean_s for _, time in known]
    below_s = [time.mean_s - time.min_s for _, time in known]
    above_s = [time.max_s - time.mean_s for _, time in known]
    axis.barh(
        [place for place, _ in known],
        means_s,
        height=BAR,
        color=color,
        label=name,
        xerr=[below_s, above_s],
        error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2},
    )


def _label(axis: Axes, place: float, times: Sample | None, note: str) -> None:
    if times:
        axis.annotate(
            f"{spread_text(times)} s{note}",
            (times.max_s, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=INK,
        )
