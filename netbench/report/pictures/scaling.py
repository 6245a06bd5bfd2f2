"""Scalability over the number of replicas: simulated lines, published points, the ideal line."""

from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from netbench.report.pictures.style import GRID, INK, MUTED, add_legend, new_figure
from netbench.report.tables.throughput import PRINTED_MODELS

COLORS = dict(zip(PRINTED_MODELS, ("#0072b2", "#d55e00", "#000000"), strict=True))
Style = Literal["-", ":", "-."]
STYLES: dict[str, Style] = {"ddp": "-", "ddp-central-ps": ":", "ddp-sharded-ps": "-."}
SIDE = 3.6
"""Side of a panel, inches."""


def scaling_figure(table: pd.DataFrame) -> Figure:
    """A panel per scenario of a table of `simulated.SCALING`."""
    scenarios = list(table["scenario"].unique())
    figure = new_figure(SIDE * len(scenarios) + 0.4, SIDE + 1.3, pads_in=(None, 0.1))
    panels = figure.subplots(1, len(scenarios), squeeze=False)[0]
    for axes, scenario in zip(panels, scenarios, strict=True):
        _draw(axes, table[table["scenario"] == scenario])
        axes.set_title(scenario, color=MUTED, fontsize=10)
    panels[0].set_ylabel("scalability: throughput over\nthat of one replica", color=INK)
    _add_legend(figure, list(table["system"].unique()))
    return figure


def _draw(axes: Axes, rows: pd.DataFrame) -> None:
    most = int(rows["replicas"].max())
    axes.plot([0, most], [0, most], color=MUTED, linewidth=0.9, linestyle="--")
    for (model, system), line in rows.groupby(["model", "system"], sort=False):
        axes.plot(
            line["replicas"], line["simulated_scaling"], color=COLORS[model], linewidth=1.4,
            linestyle=STYLES[system], marker="o", markersize=2.5,
        )  # fmt: skip
    for model, cells in rows.drop_duplicates(["model", "replicas"]).groupby("model"):
        alone = cells.loc[cells["replicas"] == 1, "published_throughput"].iloc[0]
        axes.scatter(
            cells["replicas"], cells["published_throughput"] / alone, s=44, facecolor="none",
            edgecolor=COLORS[model], linewidth=1.6, zorder=3,
        )  # fmt: skip
    axes.set(xlim=(0, most + 0.5), ylim=(0, most + 0.5))
    axes.set_xticks(sorted(rows["replicas"].unique()))
    axes.set_xlabel("replicas", color=INK)
    axes.tick_params(color=GRID, labelcolor=INK)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_color(GRID)


def _add_legend(figure: Figure, systems: list[str]) -> None:
    """Add colours of models, line styles of systems, the ideal and the published points."""
    lines = [
        *(Line2D([], [], color=color, label=model) for model, color in COLORS.items()),
        *(Line2D([], [], color=MUTED, linestyle=STYLES[name], label=name) for name in systems),
        Line2D([], [], color=MUTED, linestyle="--", linewidth=0.9, label="ideal"),
        Line2D([], [], linestyle="", marker="o", markersize=7, markerfacecolor="none",
               markeredgecolor=INK, label="published"),
    ]  # fmt: skip
    add_legend(figure, lines, 4)
