"""A picture of a run: iteration times beside the published ones, one panel per setting.

Systems that are much slower than the fastest one have their own axis beneath it.
"""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from netbench.errors import UsageError
from netbench.records import Run
from netbench.report.numbers import TimeSummary, percent_text, spread_text
from netbench.report.pictures.style import (
    GRID,
    INK,
    MUTED,
    add_legend,
    new_figure,
    without_frame,
    write_beside,
)
from netbench.report.tables.comparison import Comparison, compare, run_source

PUBLISHED, FOUND = "#a9b8c6", "#1f77b4"
BAR = 0.36
"""Thickness of a bar; the two bars of a variant fill 0.72 of its row."""

MAX_COLUMNS = 3

ROOM = 1.5
"""Width of a panel over its longest bar: room for the labels at the ends of the bars."""

SLOW = 4.0
"""Factor over the fastest system above which a system has its own axis."""


def run_figure(run: Run) -> Figure:
    """Draw the picture. Raises UsageError if the run has no times."""
    panels = _panels(run)
    columns = min(MAX_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    tallest = max(0.75 * sum(map(len, scales)) + 0.9 * len(scales) for scales in panels)
    title = f"{run.records[0].scenario}: seconds per iteration"
    figure = new_figure(max(7.5, 5.0 * columns), tallest * rows + 1.1, title)
    grid = figure.add_gridspec(rows, columns)
    for index, scales in enumerate(panels):
        cell = grid[divmod(index, columns)]
        part = cell.subgridspec(len(scales), 1, height_ratios=[len(some) for some in scales])
        for place, some in enumerate(scales):
            axis = figure.add_subplot(part[place])
            _draw(axis, some, run_source(run))
            axis.set_title("" if place else some[0].setting, color=MUTED, fontsize=10)
        axis.set_xlabel("seconds per iteration", color=MUTED, fontsize=9)
    handles, _ = figure.axes[0].get_legend_handles_labels()
    add_legend(figure, handles, 2, fontsize=None)
    return figure


def _panels(run: Run) -> list[list[list[Comparison]]]:
    """Comparisons with times, by setting; of each those of one axis, then the slow ones if any."""
    panels: dict[str, list[Comparison]] = {}
    for row in compare(run):
        if row.found:
            panels.setdefault(row.setting, []).append(row)
    if not panels:
        raise UsageError(f"{run.path}: no iteration but warm-ups is recorded, nothing to plot")
    return [list(filter(None, _by_scale(rows))) for rows in panels.values()]


def _by_scale(rows: Sequence[Comparison]) -> tuple[list[Comparison], list[Comparison]]:
    """Systems that share an axis, and those more than `SLOW` times slower than the fastest."""
    times_s = [row.found.mean_s if row.found else math.inf for row in rows]
    limit_s = SLOW * min(times_s)
    pairs = list(zip(rows, times_s, strict=True))
    return [row for row, s in pairs if s <= limit_s], [row for row, s in pairs if s > limit_s]


def _draw(axis: Axes, rows: Sequence[Comparison], source: str) -> None:
    """Two bars per variant, from the top down, with the range of the times as a whisker."""
    places = list(range(len(rows)))
    published = [row.published for row in rows]
    if any(published):
        _bars(axis, [place - BAR / 2 for place in places], published, "published", PUBLISHED)
    offset = BAR / 2 if any(published) else 0.0
    found = [row.found for row in rows]
    _bars(axis, [place + offset for place in places], found, source, FOUND)
    for place, row in zip(places, rows, strict=True):
        _label(axis, place - BAR / 2, row.published, "")
        error = "" if row.error is None else f"  ({percent_text(row.error)})"
        _label(axis, place + offset, row.found, error)
    longest_s = max(times.max_s for times in (*published, *found) if times)
    axis.set_xlim(0, longest_s * ROOM)
    axis.set_yticks(places, [row.name for row in rows], color=INK)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_axisbelow(True)
    axis.grid(axis="x", color=GRID)
    without_frame(axis)


def _bars(
    axis: Axes, places: Sequence[float], times: Sequence[TimeSummary | None], name: str, color: str
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


def _label(axis: Axes, place: float, times: TimeSummary | None, note: str) -> None:
    if times:
        text = f"{spread_text(times)} s{note}"
        write_beside(axis, (times.max_s, place), text, (6, 0), fontsize=8.5, color=INK)
