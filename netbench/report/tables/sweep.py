"""Results of `netbench sweep`: tables for a terminal, CSV, and a picture."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from netbench.errors import UsageError
from netbench.report.numbers import flops_unit, pflops_text, seconds_text
from netbench.report.pictures.style import MUTED, frame_lines, new_figure, write_beside
from netbench.report.tables.cost import MILLION, money
from netbench.report.tables.grid import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_COLUMNS = 8
"""Maximum values of a variable as columns of a terminal; more become rows."""

MAX_LINES = 8
"""Maximum lines of a picture that readers can distinguish."""

COLORS = (
    "#0072b2", "#d55e00", "#000000", "#cc79a7", "#e69f00", "#56b4e9", "#009e73", "#7a7a7a",
)  # fmt: skip
"""Colours of lines, after Okabe and Ito: colour-blind people can distinguish them."""

MAX_TICKS = 8
"""Maximum ticks on the horizontal axis of a picture."""

TOO_BIG = "*"
"""Marks figures of plans that exceed the devices' memory."""

LABEL_GAP = 0.045
"""Minimum distance of the labels at the ends of lines, as a fraction of the panel's height."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A variable. title: column head with unit. key: column of the CSV. values, texts: for
    computation, for display. geometric: values grow by a factor."""

    title: str
    key: str
    values: tuple[float, ...]
    texts: tuple[str, ...]
    geometric: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPoint:
    """A system at a point of the grid. at: index into each axis' values.

    iteration_s, bound_s: seconds; bound_s with free communication. pflop: work of an iteration.
    million_usd: $ per million samples on the spot market, NaN without prices. problem: the reason
    if there are no times (NaN). memory: the warning if the plan does not fit.
    """

    at: tuple[int, ...]
    system: str
    iteration_s: float = math.nan
    bound_s: float = math.nan
    pflop: float = math.nan
    million_usd: float = math.nan
    problem: str = ""
    memory: str = ""

    @property
    def pflops(self) -> float:
        return self.pflop / self.iteration_s

    @property
    def efficiency(self) -> float:
        return self.bound_s / self.iteration_s


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResult:
    """All points of a sweep. title: of the scenario. setting: values that all points share."""

    title: str
    setting: str
    axes: tuple[Axis, ...]
    systems: tuple[str, ...]
    points: tuple[SweepPoint, ...]


def _metrics(sweep: SweepResult) -> tuple[tuple[str, Callable[[SweepPoint], str]], ...]:
    """Figures of a point, and their format."""
    unit, factor = flops_unit(point.pflops for point in sweep.points)
    metrics: list[tuple[str, Callable[[SweepPoint], str]]] = [
        ("seconds", lambda point: seconds_text(point.iteration_s)),
        (unit, lambda point: pflops_text(point.pflops * factor)),
        ("efficiency", lambda point: f"{point.efficiency:.1%}"),
    ]
    if any(math.isfinite(point.million_usd) for point in sweep.points):
        metrics.append((MILLION, lambda point: money(point.million_usd)))
    return tuple(metrics)


def sweep_grids(sweep: SweepResult) -> list[tuple[str, Grid]]:
    """Tables with their titles: one per figure if systems or the values of the last variable are
    columns, else one table with all figures."""
    columns, metrics = _columns(sweep), _metrics(sweep)
    if len(columns) == 1:
        rows = [
            (*_row_texts(point.at, sweep.axes), *(_cell(point, show) for _, show in metrics))
            for point in sweep.points
        ]
        head = (*(axis.title for axis in sweep.axes), *(name for name, _ in metrics))
        return [("", Grid(head=head, rows=tuple(rows), num_labels=len(sweep.axes)))]
    by_column = len(sweep.systems) > 1
    axes = sweep.axes if by_column else sweep.axes[:-1]
    grids = []
    for name, show in metrics:
        cells: dict[tuple[int, ...], list[str]] = {}
        for point in sweep.points:
            cells.setdefault(point.at[: len(axes)], []).append(_cell(point, show))
        found = [(*_row_texts(at, axes), *texts) for at, texts in cells.items()]
        head = (*(axis.title for axis in axes), *columns)
        title = name if by_column else f"{name}, by {sweep.axes[-1].title}"
        grids.append((title, Grid(head=head, rows=tuple(found), num_labels=len(axes))))
    return grids


def sweep_csv_grid(sweep: SweepResult) -> Grid:
    """A row per point, unrounded, in SI units."""
    head = ("iteration_s", "bound_s", "pflops", "efficiency", "million_usd", "problem", "memory")
    rows = [
        (
            *(repr(axis.values[i]) for axis, i in zip(sweep.axes, point.at, strict=True)),
            point.system,
            *("" if point.problem else repr(getattr(point, name)) for name in head[:-2]),
            point.problem,
            point.memory,
        )
        for point in sweep.points
    ]
    return Grid(head=(*(axis.key for axis in sweep.axes), "system", *head), rows=tuple(rows))


def sweep_figure(sweep: SweepResult) -> "Figure":
    """Seconds over the first variable, a line per system and value of the others; compute alone is
    dotted. Points with an infinite value are left out.

    Raises UsageError for more than `MAX_LINES` lines, and if there is nothing to draw.
    """
    lines, across = _lines(sweep), sweep.axes[0]
    check_lines(len(lines))
    if not lines:
        raise UsageError("no finite point of the sweep has a time; there is nothing to draw")
    figure = new_figure(8.6, 5.2, sweep.title)
    axis = figure.subplots()
    _scale(axis, across, lines)
    for color, points in zip(COLORS, lines.values(), strict=False):
        x = [across.values[point.at[0]] for point in points]
        axis.plot(x, [p.bound_s for p in points], color=color, lw=1.2, ls=(0, (1, 2)))
        axis.plot(x, [p.iteration_s for p in points], color=color, lw=2, marker="o", ms=4)
    if axis.get_yscale() == "linear":
        axis.set_ylim(bottom=0)
    frame_lines(axis, across.title, "seconds per iteration")
    last = [points[-1] for points in lines.values()]
    ends = [
        (across.values[point.at[0]], point.iteration_s, name, color)
        for color, name, point in zip(COLORS, lines, last, strict=False)
    ]
    label_ends(axis, ends)
    axis.set_title(f"{sweep.setting}; dotted: compute alone", color=MUTED, fontsize=9.5)
    return figure


def check_lines(num_lines: int) -> None:
    """Raise UsageError for more than `MAX_LINES` lines."""
    if num_lines > MAX_LINES:
        raise UsageError(
            f"a picture of this sweep would have {num_lines} lines; give at most {MAX_LINES} "
            "systems times values of the variables after the first, or leave out --plot"
        )


def _columns(sweep: SweepResult) -> tuple[str, ...]:
    """Column heads: systems, or the values of the last variable if there is room."""
    if len(sweep.systems) > 1:
        return sweep.systems
    if len(sweep.axes) > 1 and len(sweep.axes[-1].texts) <= MAX_COLUMNS:
        return sweep.axes[-1].texts
    return sweep.systems


def _row_texts(at: Sequence[int], axes: Sequence[Axis]) -> list[str]:
    return [axis.texts[index] for axis, index in zip(axes, at, strict=True)]


def _cell(point: SweepPoint, show: Callable[[SweepPoint], str]) -> str:
    return "-" if point.problem else show(point) + TOO_BIG * bool(point.memory)


def _lines(sweep: SweepResult) -> dict[str, list[SweepPoint]]:
    """Points with times from left to right, by the name of their line. Values without a unit are
    preceded by the name of their variable; names of plans that do not fit memory are marked."""
    lines: dict[str, list[SweepPoint]] = {}
    for point in sweep.points:
        others = [
            text if text[-1].isalpha() and text[-1] != "x" else f"{axis.title} {text}"
            for axis, text in zip(
                sweep.axes[1:], _row_texts(point.at[1:], sweep.axes[1:]), strict=True
            )
        ]
        system = [point.system] if len(sweep.systems) > 1 or not others else []
        if not point.problem and math.isfinite(sweep.axes[0].values[point.at[0]]):
            name = " ".join([*system, *others]) + TOO_BIG * bool(point.memory)
            lines.setdefault(name, []).append(point)
    return {
        name: sorted(points, key=lambda point: sweep.axes[0].values[point.at[0]])
        for name, points in lines.items()
    }


def _scale(axis: "Axes", across: Axis, lines: dict[str, list[SweepPoint]]) -> None:
    """Set logarithmic axes if the values grow by a factor; a zero among them keeps its place."""
    from matplotlib import ticker

    values = {v: text for v, text in zip(across.values, across.texts, strict=True) if v < math.inf}
    positive = [value for value in values if value > 0]
    if across.geometric and len(positive) == len(values):
        axis.set_xscale("log")
    elif across.geometric and positive:
        axis.set_xscale("symlog", linthresh=min(positive), linscale=0.4)
    ticks = dict(list(values.items())[:: math.ceil(len(values) / MAX_TICKS)])
    axis.xaxis.set_major_locator(ticker.FixedLocator(list(ticks)))
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: ticks.get(value, "")))
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    if across.geometric:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        times = [t for line in lines.values() for p in line for t in (p.iteration_s, p.bound_s)]
        if max(times) < 1000 * min(times):
            axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())


def label_ends(axis: "Axes", ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names at the right ends of lines, moved apart if they would overlap. ends: (x, y, name,
    colour)."""
    axis.autoscale_view()
    to_panel = axis.transScale + axis.transLimits
    placed = [(*to_panel.transform((x, y)), name, color) for x, y, name, color in ends]
    placed.sort(key=lambda end: end[1])
    heights = _apart([end[1] for end in placed])
    for (x, _, name, color), height in zip(placed, heights, strict=True):
        look = {"xycoords": "axes fraction", "color": color, "annotation_clip": False}
        write_beside(axis, (x, height), name, (8, 0), **look)


def _apart(heights: Sequence[float]) -> list[float]:
    """Move ascending heights at least `LABEL_GAP` apart; groups are centred at their mean.

    Heights less their places in a stack are to ascend: isotonic regression, by its min-max formula.
    """
    num = len(heights)
    low = [height - place * LABEL_GAP for place, height in enumerate(heights)]
    return [
        max(min(fmean(low[a : b + 1]) for b in range(at, num)) for a in range(at + 1))
        + at * LABEL_GAP
        for at in range(num)
    ]
