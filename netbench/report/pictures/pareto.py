"""Cost against throughput, both logarithmic, with the Pareto front marked."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from netbench.report.pictures.style import (
    INK,
    MUTED,
    add_legend,
    frame_lines,
    new_figure,
    write_beside,
)

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000")


@dataclass(frozen=True, kw_only=True, slots=True)
class CostPoint:
    """A set of machines. usd: per million samples. on_front: nothing is cheaper and faster. group:
    decides the colour, "" = grey."""

    name: str
    samples_per_s: float
    usd: float
    on_front: bool
    group: str = ""


def number_decades(axis: Axis) -> None:
    """Write plain numbers at 1, 2 and 5 of each decade of a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def pareto_figure(title: str, points: Sequence[CostPoint], *, labels: int = 12) -> Figure:
    """A picture of the points. labels: most names on the front that are written."""
    figure = new_figure(7.2, 5.2, title, fontsize=11)
    axes = figure.subplots()
    groups = [group for group in dict.fromkeys(point.group for point in points) if group]
    color = {"": MUTED} | {group: COLORS[i % len(COLORS)] for i, group in enumerate(groups)}
    axes.set(xscale="log", yscale="log")
    number_decades(axes.xaxis)
    number_decades(axes.yaxis)
    for point in sorted(points, key=lambda point: point.on_front):
        axes.scatter(
            point.samples_per_s, point.usd, s=44 if point.on_front else 16,
            color=color[point.group], edgecolor=INK if point.on_front else "none", linewidth=1.2,
            alpha=1.0 if point.on_front else 0.55, zorder=3 if point.on_front else 2,
        )  # fmt: skip
    best = sorted((p for p in points if p.on_front), key=lambda point: point.samples_per_s)
    axes.plot([p.samples_per_s for p in best], [p.usd for p in best], color=INK, linewidth=1)
    step = -(-len(best) // labels) if best else 1
    for index, point in enumerate(best):
        if index % step == 0 or point is best[-1]:
            spot = (point.samples_per_s, point.usd)
            write_beside(axes, spot, point.name, (6, -8), ha="left", fontsize=8, color=INK)
    axes.margins(x=0.16)
    frame_lines(axes, "samples per second", "$ per million samples")
    dots = [
        *(Line2D([], [], linestyle="", marker="o", color=color[g], label=g) for g in groups),
        Line2D([], [], color=INK, marker="o", label="Pareto front", markerfacecolor="none"),
    ]
    add_legend(figure, dots, 4)
    return figure
