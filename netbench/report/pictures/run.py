"""A picture of a run: iteration times beside published and simulated ones, on one shared scale.

There is a panel per setting, with a row per system. With several networks there is a panel per
system, with a row per network. Systems that are much slower than the fastest one have their own
axis beneath it.
"""

import math
from collections.abc import Mapping, Sequence

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

COLORS = {"published": "#a9b8c6", "simulated": "#f0b35a", "found": "#1f77b4"}
"""Colours of bars, which colour-blind people can distinguish."""

FILLED = 0.72
"""Part of a row that its bars fill."""

LEAST_RANGE = 0.005
"""Smallest half range of times, relative to their mean, that has a whisker."""

MAX_COLUMNS = 3

ROOM = 1.5
"""Width of a panel over its longest bar: room for the labels at the ends of the bars."""

SLOW = 4.0
"""Factor over the fastest system above which a system has its own axis."""


Scale = list[Comparison]
"""Rows that share an axis."""


def run_figure(run: Run) -> Figure:
    """Draw the picture. Raises UsageError if the run has no times."""
    panels, source = _panels(run), run_source(run)
    columns = min(MAX_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    kinds = [kind for kind in COLORS if any(_times(row, kind) for row in _all(panels))]
    each_in = 0.3 + 0.22 * len(kinds)
    tallest = max(each_in * sum(map(len, scales)) + 0.9 * len(scales) for scales in panels.values())
    title = f"{run.records[0].scenario}: seconds per iteration"
    figure = new_figure(max(7.5, 5.0 * columns), tallest * rows + 1.1, title)
    grid = figure.add_gridspec(rows, columns)
    for index, (name, scales) in enumerate(panels.items()):
        cell = grid[divmod(index, columns)]
        part = cell.subgridspec(len(scales), 1, height_ratios=[len(some) for some in scales])
        for place, some in enumerate(scales):
            axis = figure.add_subplot(part[place])
            _draw(axis, some, kinds, source)
            shared = [each[place] for each in panels.values() if len(each) > place]
            axis.set_xlim(0, max(map(_longest_s, shared)) * ROOM)
            axis.set_title("" if place else name, color=MUTED, fontsize=10)
        axis.set_xlabel("seconds per iteration", color=MUTED, fontsize=9)
    handles, _ = figure.axes[0].get_legend_handles_labels()
    add_legend(figure, handles, len(kinds), fontsize=None)
    return figure


def _panels(run: Run) -> dict[str, list[Scale]]:
    """Comparisons with times by the name of their panel: those of one axis, then the slow ones."""
    found = [row for row in compare(run) if row.found]
    if not found:
        raise UsageError(f"{run.path}: no iteration but warm-ups is recorded, nothing to plot")
    by_network = _has_networks(found)
    panels: dict[str, list[Comparison]] = {}
    for row in found:
        sizes = row.setting.removesuffix(f" {_network(row)}")
        panels.setdefault(f"{row.name}, {sizes}" if by_network else row.setting, []).append(row)
    return {
        name: [rows] if by_network else list(filter(None, _by_scale(rows)))
        for name, rows in panels.items()
    }


def _has_networks(rows: Sequence[Comparison]) -> bool:
    return len({row.network for row in rows}) > 1


def _network(row: Comparison) -> str:
    return row.network or "own"


def _all(panels: Mapping[str, list[Scale]]) -> list[Comparison]:
    return [row for scales in panels.values() for some in scales for row in some]


def _by_scale(rows: Sequence[Comparison]) -> tuple[Scale, Scale]:
    """Systems that share an axis, and those more than `SLOW` times slower than the fastest."""
    times_s = [row.found.mean_s if row.found else math.inf for row in rows]
    limit_s = SLOW * min(times_s)
    pairs = list(zip(rows, times_s, strict=True))
    return [row for row, s in pairs if s <= limit_s], [row for row, s in pairs if s > limit_s]


def _times(row: Comparison, kind: str) -> TimeSummary | None:
    """Times of one of `COLORS`."""
    if kind == "simulated":
        return None if row.simulated_s is None else TimeSummary.pool([row.simulated_s])
    return row.published if kind == "published" else row.found


def _longest_s(rows: Scale) -> float:
    known = [_times(row, kind) for row in rows for kind in COLORS]
    return max(times.max_s for times in known if times)


def _draw(axis: Axes, rows: Scale, kinds: Sequence[str], source: str) -> None:
    """Draw a bar per kind and row, from the top down, with the range of its times."""
    height = FILLED / len(kinds)
    for index, kind in enumerate(kinds):
        name = source if kind == "found" else kind
        known = [(place, times) for place, row in enumerate(rows) if (times := _times(row, kind))]
        offset = (index - (len(kinds) - 1) / 2) * height
        places = [place + offset for place, _ in known]
        _bars(axis, places, [times for _, times in known], height, name, COLORS[kind])
        for place, times in known:
            error = rows[place].error if kind == "found" else None
            note = "" if error is None else f"  ({percent_text(error)})"
            text = f"{spread_text(times)} s{note}"
            spot = times.max_s, place + offset
            write_beside(axis, spot, text, (6, 0), fontsize=8.5, color=INK)
    networks = [_network(row) for row in rows]
    names = networks if len(set(networks)) > 1 else [row.name for row in rows]
    axis.set_yticks(range(len(rows)), names, color=INK)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_axisbelow(True)
    axis.grid(axis="x", color=GRID)
    without_frame(axis)


def _bars(
    axis: Axes,
    places: Sequence[float],
    times: Sequence[TimeSummary],
    height: float,
    name: str,
    color: str,
) -> None:
    axis.barh(places, [each.mean_s for each in times], height=height, color=color, label=name)
    wide = [
        (place, each)
        for place, each in zip(places, times, strict=True)
        if each.max_s - each.min_s > 2 * LEAST_RANGE * each.mean_s
    ]
    if wide:
        axis.errorbar(
            [each.mean_s for _, each in wide],
            [place for place, _ in wide],
            xerr=[
                [each.mean_s - each.min_s for _, each in wide],
                [each.max_s - each.mean_s for _, each in wide],
            ],
            fmt="none",
            ecolor=INK,
            elinewidth=1,
            capsize=2,
        )
