"""A picture of simulated against published seconds: a point per setting of a system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from netbench.report.picture import GRID, INK, MUTED, PAPER, save_picture
from netbench.report.published import CASES
from netbench.report.simulated import FAR

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "dtfm-scheduled": "#1f77b4",
    "dtfm-random": "#7db8e8",
    "megatron-p8": "#d9480f",
    "megatron-p8-random": "#f4a261",
    "megatron-p4t2": "#7b3fa0",
    "megatron-p2t4": "#b07cc6",
    "megatron-t8": "#d8b4e2",
    "zero3": "#2b8a3e",
}
"""Shades of one colour for one training system."""

MARKERS = dict(zip(CASES, ("o", "s", "^", "D", "v"), strict=True))
SIDE = 5.6
"""Of the square that the axes fill, inches."""

ROOM = 1.25
"""Factor between the outermost point and the edge."""


def plot_scatter(settings: pd.DataFrame, path: Path) -> None:
    """Write the picture of `simulated.simulated_settings` to `path` (.png, .svg, .pdf).

    Raises UsageError if the file cannot be written.
    """
    save_picture(scatter_figure(settings), path)


def scatter_figure(settings: pd.DataFrame) -> Figure:
    """The picture, not yet written. Both axes are logarithmic and alike."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIDE + 3.4, SIDE + 0.9), facecolor=PAPER)
    width, height = figure.get_size_inches()
    axes = figure.add_axes((0.8 / width, 0.7 / height, SIDE / width, SIDE / height))
    times = settings[["published_s", "simulated_s"]]
    low, high = float(times.min().min()) / ROOM, float(times.max().max()) * ROOM
    axes.fill_between(
        [low, high], [low * (1 - FAR), high * (1 - FAR)], [low * (1 + FAR), high * (1 + FAR)],
        color=GRID, linewidth=0, label=f"±{FAR:.0%}",
    )  # fmt: skip
    axes.plot([low, high], [low, high], color=MUTED, linewidth=0.8)
    for (system, case), rows in settings.groupby(["system", "case"]):
        axes.scatter(
            rows["published_s"], rows["simulated_s"], s=26, marker=MARKERS[case],
            facecolor=COLORS[system], edgecolor=INK, linewidth=0.4, zorder=3,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set_xlabel("published, seconds per iteration", color=INK)
    axes.set_ylabel("simulated, seconds per iteration", color=INK)
    axes.tick_params(which="both", color=GRID, labelcolor=INK)
    axes.spines[:].set_color(GRID)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    _add_legend(axes, [system for system in COLORS if system in set(settings["system"])])
    return figure


def _add_legend(axes: Axes, systems: list[str]) -> None:
    """Colours of the systems, then markers of the cases, beside the axes."""
    from matplotlib.lines import Line2D

    colours = [
        Line2D([], [], linestyle="", marker="o", markerfacecolor=COLORS[name], markersize=6,
               markeredgecolor=INK, markeredgewidth=0.4, label=name)
        for name in systems
    ]  # fmt: skip
    shapes = [
        Line2D([], [], linestyle="", marker=marker, markerfacecolor=PAPER, markersize=6,
               markeredgecolor=INK, markeredgewidth=0.8, label=f"{case}: {CASES[case].title}")
        for case, marker in MARKERS.items()
    ]  # fmt: skip
    band, _ = axes.get_legend_handles_labels()
    axes.legend(
        handles=[*colours, *shapes, *band], loc="center left", bbox_to_anchor=(1.0, 0.5),
        frameon=False, labelcolor=INK, fontsize=9,
    )  # fmt: skip
