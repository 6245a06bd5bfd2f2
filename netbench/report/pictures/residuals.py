"""Simulated and emulated seconds over published ones, with their relative errors beneath."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from netbench.records import Run
from netbench.report.page.accuracy import FAR
from netbench.report.page.published import CASES, DEEPSPEED, case_name, case_title
from netbench.report.pictures.style import GRID, INK, MUTED, PAPER, add_legend
from netbench.report.tables.comparison import compare

APART = "zero3"
"""The system with a separate panel: it is up to 30 times slower than the others."""

STYLES = {
    "dtfm-scheduled": ("#0072b2", "o"),
    "dtfm-random": ("#56b4e9", "s"),
    "megatron-p8": ("#d55e00", "^"),
    "megatron-p8-random": ("#e69f00", "v"),
    "megatron-p4t2": ("#000000", "D"),
    "megatron-p2t4": ("#7a7a7a", "P"),
    "megatron-t8": ("#cc79a7", "X"),
    DEEPSPEED: ("#009e73", "*"),
}
"""Colour and marker of each system. The colours are those of Okabe and Ito, which colour-blind
people can distinguish."""

CASE_COLORS = dict(zip(CASES, ("#440154", "#3b528b", "#21918c", "#5ec962", "#c2a500"), strict=True))
"""Colour of each case in the panel of `APART`, from dark to bright (viridis)."""

COLUMNS, SIZE_IN = 3, (10.0, 9.3)
TICKS, WIDE_TICKS = (10, 20, 50, 100, 200, 500), (10, 100, 1000)
"""Seconds written at the axes of a panel, and at those of a panel that spans `WIDE`."""

WIDE = 50
"""Factor between the ends of an axis above which it has fewer ticks."""

ROOM = 1.2
"""Factor between the outermost point and the edge of a panel."""


def residual_figure(settings: pd.DataFrame, runs: Sequence[Run]) -> Figure:
    """A panel per case, and one for `APART`; each has seconds above and relative errors below.

    settings: of `simulated_settings`. runs: recorded runs with their emulated times.
    """
    points = _points(settings, runs)
    apart = points["system"] == APART
    panels = {case_title(case): points[(points["case"] == case) & ~apart] for case in CASES}
    panels[APART] = points[apart]
    figure = Figure(figsize=SIZE_IN, facecolor=PAPER)
    blocks = figure.add_gridspec(
        -(-len(panels) // COLUMNS), COLUMNS, left=0.07, right=0.985, top=0.965, bottom=0.115,
        wspace=0.2, hspace=0.2,
    )  # fmt: skip
    errors = points["error"] * 100
    limits = min(-20.0, errors.min() - 6), max(20.0, errors.max() + 6)
    for index, (title, rows) in enumerate(panels.items()):
        block = blocks[divmod(index, COLUMNS)]
        parts = block.subgridspec(2, 1, height_ratios=(1.25, 1), hspace=0.06)
        upper = figure.add_subplot(parts[0])
        lower = figure.add_subplot(parts[1], sharex=upper)
        _draw(upper, lower, rows)
        if title == APART:
            handles = [Line2D([], [], label=case_name(c), **_style(c, APART, False)) for c in CASES]
            upper.legend(
                handles=handles, loc="lower right", frameon=False, labelcolor=INK, fontsize=8
            )
        upper.set_title(title, color=INK, fontsize=10, loc="left")
        lower.set_ylim(*limits)
        if index % COLUMNS == 0:
            upper.set_ylabel("simulated or emulated, s", color=INK, fontsize=9)
            lower.set_ylabel("relative error, %", color=INK, fontsize=9)
        lower.set_xlabel("published, seconds per iteration", color=INK, fontsize=9)
    _add_legend(figure, [name for name in STYLES if name in set(settings["system"])])
    return figure


def _points(settings: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """A row per setting with a simulated time, then a row per setting with an emulated one."""
    simulated = settings.rename(columns={"simulated_s": "found_s"}).assign(emulated=False)
    emulated = [
        {"case": row.scenario, "system": row.name, "published_s": row.published.mean_s,
         "found_s": row.found.mean_s, "emulated": True, "error": row.error}
        for run in runs
        for row in compare(run)
        if row.published and row.found
    ]  # fmt: skip
    columns = ["case", "system", "published_s", "found_s", "emulated", "error"]
    tables = [simulated[columns], *([pd.DataFrame(emulated)] if emulated else [])]
    return pd.concat(tables, ignore_index=True)


def _draw(upper: Axes, lower: Axes, points: pd.DataFrame) -> None:
    seconds = points[["published_s", "found_s"]]
    low, high = float(seconds.min().min()) / ROOM, float(seconds.max().max()) * ROOM
    edges = [low, high]
    upper.fill_between(
        edges, [x * (1 - FAR) for x in edges], [x * (1 + FAR) for x in edges], color=GRID, lw=0
    )
    upper.plot(edges, edges, color=MUTED, lw=0.8)
    lower.axhspan(-100 * FAR, 100 * FAR, color=GRID, lw=0)
    lower.axhline(0, color=MUTED, lw=0.8)
    for (case, system, emulated), rows in points.groupby(["case", "system", "emulated"]):
        style = _style(str(case), str(system), bool(emulated))
        upper.plot(rows["published_s"], rows["found_s"], **style)
        lower.plot(rows["published_s"], 100 * rows["error"], **style)
    upper.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for axis in (upper.xaxis, upper.yaxis):
        axis.set_major_locator(FixedLocator(WIDE_TICKS if high > WIDE * low else TICKS))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    upper.tick_params(axis="x", labelbottom=False)
    for axes in (upper, lower):
        axes.tick_params(color=GRID, labelcolor=INK, labelsize=8)
        axes.spines[:].set_color(GRID)


def _style(case: str, system: str, emulated: bool) -> dict[str, Any]:
    """Style of a marker: filled if simulated, hollow if emulated."""
    color, marker = STYLES[system] if system in STYLES else (CASE_COLORS[case], "o")
    if emulated:
        return {"linestyle": "", "marker": marker, "markersize": 9, "markeredgecolor": color,
                "markeredgewidth": 1.3, "markerfacecolor": "none", "zorder": 4}  # fmt: skip
    return {"linestyle": "", "marker": marker, "markersize": 6.5, "markerfacecolor": color,
            "markeredgecolor": PAPER, "markeredgewidth": 0.4, "zorder": 3}  # fmt: skip


def _add_legend(figure: Figure, systems: Sequence[str]) -> None:
    add_legend(
        figure,
        [
            *(Line2D([], [], label=name, **_style("", name, False)) for name in systems),
            Line2D([], [], linestyle="", marker="o", color=INK, markersize=6.5, label="simulated"),
            Line2D([], [], linestyle="", marker="o", markerfacecolor="none", markersize=9,
                   markeredgecolor=INK, markeredgewidth=1.3, label="emulated"),
            Line2D([], [], color=MUTED, lw=0.8, label="equal"),
            Patch(color=GRID, label=f"within ±{FAR:.0%}"),
        ],
        6, loc="lower center",
    )  # fmt: skip
