"""A picture of searches: the best result so far over the time of search."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray

from netbench.report.pictures.style import INK, MUTED, frame_lines, new_figure, write_beside
from netbench.report.tables.schedule import Contest, FoundPlacement
from netbench.report.tables.sweep import COLORS, label_ends

AT_ONCE = 0.01
"""Fraction of the longest search; a shorter search is drawn as if it took no time."""

FIRST_S = 1e-3
"""Earliest start of the time axis, seconds of search."""


def convergence_figure(title: str, contest: Contest) -> Figure:
    """A line per scheduler, the mean over its seeds, in a band from the best to the worst seed.

    A scheduler that answers at once is a dotted horizontal line; the bound is dashed.
    """
    figure = new_figure(8.6, 5.2, title)
    axis = figure.subplots()
    times_s = _times_s(contest)
    ends, lines = [], []
    for color, (name, group) in zip(COLORS, contest.by_scheduler().items(), strict=False):
        values = np.array([_over(one, times_s) for one in group])
        known = np.isfinite(values).all(axis=0)
        shown, mean = values[:, known], values[:, known].mean(axis=0)
        searched = max(one.search_s for one in group) > AT_ONCE * times_s[-1]
        axis.step(
            times_s[known], mean, where="post", color=color, lw=2, ls="-" if searched else ":"
        )
        axis.fill_between(
            times_s[known], shown.min(axis=0), shown.max(axis=0), step="post", color=color,
            alpha=0.15, lw=0,
        )  # fmt: skip
        ends.append((float(times_s[-1]), float(mean[-1]), name, color))
        lines.append(shown.min(axis=0))
    _frame(axis, contest, times_s, np.concatenate(lines))
    label_ends(axis, ends)
    seeds = len({one.seed for one in contest.found})
    axis.set_title(
        f"mean of {seeds} seeds, band from best to worst; one core each"
        if seeds > 1
        else "one seed, one core each",
        color=MUTED,
        fontsize=9.5,
    )
    return figure


def _times_s(contest: Contest) -> NDArray[np.float64]:
    """(n,): times at which any search improved, from the first to the end of the longest."""
    found_s = {s for one in contest.found if len(one.curve) > 1 for s, _ in one.curve}
    times_s = np.array(sorted({max(FIRST_S, s) for s in found_s}))
    return times_s if len(times_s) > 1 else np.array([FIRST_S, 1.0])


def _over(one: FoundPlacement, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """The best so far at each of `times_s`, NaN before there is one; a constant for a scheduler
    that does not search."""
    if len(one.curve) < 2:
        return np.full(len(times_s), one.simulated_s)
    found_s, values = np.array(one.curve).T
    index = np.searchsorted(found_s, times_s * (1 + 1e-9), side="right") - 1
    return np.where(index >= 0, values[np.maximum(index, 0)], np.nan)


def _frame(
    axis: Axes, contest: Contest, times_s: NDArray[np.float64], values: NDArray[np.float64]
) -> None:
    """Set scales, grid and the bound. Lines that begin far above their ends are cut at the top."""
    finals = [one.simulated_s for one in contest.found]
    lowest = float(values.min()) if contest.bound_s is None else contest.bound_s
    room = 0.06 * (max(finals) - lowest) + 0.01 * lowest
    axis.set_ylim(lowest - room, max(finals) + 2 * room)
    axis.set_xscale("log")
    axis.set_xlim(times_s[0], times_s[-1])
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    if contest.bound_s is not None:
        axis.axhline(contest.bound_s, color=INK, lw=1, ls=(0, (5, 3)))
        look = {"xycoords": ("axes fraction", "data"), "va": "baseline", "color": INK}
        write_beside(axis, (0.01, contest.bound_s), "lower bound", (0, 4), **look)
    frame_lines(axis, "seconds of search", "seconds per iteration, simulated")
