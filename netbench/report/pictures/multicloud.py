"""Pictures of the multi-cloud experiments: throughput and granularity against peers, and cost."""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from netbench.cost.bill import SPOT
from netbench.report.page.multicloud.data import Experiment, measured, timed_fraction
from netbench.report.page.multicloud.page import (
    COST_PICTURE,
    SCALING_PICTURE,
    THROUGHPUT_LIMITS,
    rented,
)
from netbench.report.pictures.pareto import CostPoint, number_decades, pareto_figure
from netbench.report.pictures.style import INK, MUTED, add_legend, frame_lines, new_figure

SERIES = {
    "A-": ("A: one zone", "#000000"),
    "B-": ("B: 2 continents", "#0072b2"),
    "C-": ("C: 3 or 4 continents", "#d55e00"),
    "E-A-": ("E-A: RTX8000 and EU", "#009e73"),
    "E-B-": ("E-B: RTX8000 and US", "#cc79a7"),
    "E-C-": ("E-C: RTX8000 and Lambda", "#e69f00"),
}
"""Series of a picture by the prefix of their experiments: label, and colour."""

QUANTITIES: dict[str, tuple[str, Callable[[Experiment], float]]] = {
    "throughput": ("samples per second", lambda each: each.round.throughput),
    "granularity": (
        "granularity, as published",
        lambda each: each.round.granularity * timed_fraction(each),
    ),
}
FAMILIES = {
    "A": "A: T4, one zone", "A10": "A10, one region", "B": "B: 2 continents",
    "C": "C: 3 or 4 continents", "D": "D: 2 clouds",
}  # fmt: skip
"""Groups of the picture of costs, by the first part of an experiment's name."""


def cloud_figures(experiments: Sequence[Experiment]) -> dict[str, Figure]:
    """Return the pictures of the page by name."""
    return {SCALING_PICTURE: peers_figure(experiments), COST_PICTURE: cost_figure(experiments)}


def peers_figure(experiments: Sequence[Experiment]) -> Figure:
    """A row per quantity, a column per model: simulated lines, published points."""
    figure = new_figure(8.4, 6.6)
    panels = figure.subplots(len(QUANTITIES), len(THROUGHPUT_LIMITS), squeeze=False)
    known = measured()
    for row, (quantity, (label, value)) in zip(panels, QUANTITIES.items(), strict=True):
        for axes, model in zip(row, THROUGHPUT_LIMITS, strict=True):
            axes.set_yscale("log")
            number_decades(axes.yaxis)
            for prefix, (_, color) in SERIES.items():
                found = sorted(
                    (
                        each
                        for each in experiments
                        if each.key[1] == model
                        and each.name.removeprefix(prefix).isdigit()
                        and each.name.startswith(prefix)
                    ),
                    key=lambda each: each.plan.layout.num_ranks,
                )
                peers = [each.plan.layout.num_ranks for each in found]
                axes.plot(peers, [value(each) for each in found], color=color, linewidth=1.3,
                          marker="o", markersize=3)  # fmt: skip
                points = [
                    (n, known[each.key][quantity])
                    for n, each in zip(peers, found, strict=True)
                    if each.key in known
                ]
                axes.scatter([n for n, _ in points], [y for _, y in points], s=46,
                             facecolor="none", edgecolor=color, linewidth=1.4)  # fmt: skip
            frame_lines(axes, "peers", label)
            axes.set_title(model, color=MUTED, fontsize=10)
    lines = [Line2D([], [], color=color, label=label) for label, color in SERIES.values()]
    lines.append(
        Line2D([], [], linestyle="", marker="o", markersize=7, markerfacecolor="none",
               markeredgecolor=INK, label="published")
    )  # fmt: skip
    add_legend(figure, lines, 4)
    return figure


def cost_figure(experiments: Sequence[Experiment]) -> Figure:
    """Cost against throughput of CONV on machines that are all rented."""
    found = {
        each.name: (each.round.throughput, each.bill.million_usd(SPOT))
        for each in rented(experiments)
        if each.key[1] == "CONV"
    }
    points = [
        CostPoint(
            name=name,
            samples_per_s=rate,
            usd=usd,
            on_front=not any(
                other >= rate and cost <= usd and (other, cost) != (rate, usd)
                for other, cost in found.values()
            ),
            group=FAMILIES[name.split("-")[0]],
        )
        for name, (rate, usd) in found.items()
    ]
    return pareto_figure(f"CONV, {SPOT} machines, simulated", points)
