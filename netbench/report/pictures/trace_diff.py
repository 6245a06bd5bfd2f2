"""Two timelines of one plan side by side: seconds by activity, in numbers and a picture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table

from netbench.report.numbers import percent_text
from netbench.report.pictures.style import INK, MUTED, add_color_legend, new_figure, without_frame
from netbench.timelines import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS: Mapping[str, tuple[str, ...]] = {
    "compute": ("forward", "backward", "weight"),
    "optimizer": ("optimizer",),
    "collective": ("collective",),
    "send/receive": ("send", "receive"),
    "idle": (),
}
"""Kinds of activity. A moment of a rank counts as the first kind that is in progress, so an overlap
with compute is compute. Otherwise it is idle, the last kind: waiting at a barrier, or for the last
rank."""

Stretches = list[tuple[float, float]]
"""(start, end) in seconds; in order, without overlap."""

NUM_DIFFERENCES = 3

LEAST_FRACTION = 0.0005
"""Fraction of the iteration below which a difference is not reported."""

COLORS = {
    "forward": "#0072b2",
    "backward": "#56b4e9",
    "weight": "#8fd0f5",
    "optimizer": "#009e73",
    "collective": "#e69f00",
    "send/receive": "#f3d9cf",
    "idle": "#eef0f2",
}
"""Waiting is pale; the other colours are those of Okabe and Ito, for colour-blind people."""

ROW_IN, WIDTH_IN, BAR = 0.3, 12.0, 0.42
"""Height of the two lanes of a rank and width of the picture, inches; height of a bar in a lane."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageDifference:
    """Seconds per rank (mean) of one kind in one stage, in two timelines."""

    stage: str
    kind: str
    first_s: float
    second_s: float

    @property
    def seconds(self) -> float:
        """Seconds that the first timeline has more."""
        return self.first_s - self.second_s


def stretches(
    timeline: Timeline, rank: int, kinds: Mapping[str, tuple[str, ...]] = KINDS
) -> dict[str, Stretches]:
    """Stretches of a rank by kind; together they are the iteration, without overlap."""
    spans = [
        (place, piece.start_s, piece.end_s)
        for place, names in enumerate(kinds.values())
        for piece in timeline.slices
        if piece.rank == rank and piece.kind in names
    ]
    spans.append((len(kinds) - 1, 0.0, timeline.iteration_s))
    cuts_s = np.unique([moment_s for _, *ends_s in spans for moment_s in ends_s])
    first = np.full(len(cuts_s), len(kinds))  # kind from each cut to the next
    for place, from_s, to_s in spans:
        inside = slice(*np.searchsorted(cuts_s, (from_s, to_s)))
        first[inside] = np.minimum(first[inside], place)
    found: list[Stretches] = [[] for _ in (*kinds, "no slice")]
    for begin, end in pairwise(np.flatnonzero(np.diff(first, prepend=-1))):
        found[first[begin]].append((float(cuts_s[begin]), float(cuts_s[end])))
    return dict(zip(kinds, found, strict=False))


def seconds_by_kind(timeline: Timeline, ranks: Sequence[int]) -> dict[str, float]:
    """Mean seconds per rank of every kind; their sum is the iteration."""
    totals = dict.fromkeys(KINDS, 0.0)
    for rank in ranks:
        for kind, some in stretches(timeline, rank).items():
            totals[kind] += sum(to_s - from_s for from_s, to_s in some) / len(ranks)
    return totals


def differences(
    first: Timeline, second: Timeline, stages: Mapping[str, Sequence[int]]
) -> list[StageDifference]:
    """Differences of every kind in every stage, largest first. stages: ranks by name."""
    found = []
    for stage, ranks in stages.items():
        columns = [
            seconds_by_kind(timeline, _there(timeline, ranks)) for timeline in (first, second)
        ]
        found += [
            StageDifference(
                stage=stage, kind=kind, first_s=columns[0][kind], second_s=columns[1][kind]
            )
            for kind in KINDS
        ]
    return sorted(found, key=lambda difference: -abs(difference.seconds))


def _there(timeline: Timeline, ranks: Sequence[int]) -> Sequence[int]:
    """The ranks; rank 0 if a simulation has only this one, which represents all."""
    known = {piece.rank for piece in timeline.slices}
    return ranks if known != {0} else (0,)


def diff_table(first: Timeline, second: Timeline, stages: Mapping[str, Sequence[int]]) -> Table:
    """Seconds of every kind by stage and source, mean over the ranks; fits 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("stage", no_wrap=True)
    table.add_column("", no_wrap=True)
    for kind in (*KINDS, "iteration"):
        table.add_column(kind, justify="right", no_wrap=True)
    by_cell = {(found.stage, found.kind): found for found in differences(first, second, stages)}
    for stage in stages:
        cells = [by_cell[stage, kind] for kind in KINDS]
        rows = [
            (first.source, [cell.first_s for cell in cells], first.iteration_s),
            (second.source, [cell.second_s for cell in cells], second.iteration_s),
        ]
        for index, (source, seconds, iteration_s) in enumerate(rows):
            table.add_row(
                "" if index else stage,
                source,
                *(f"{value:.3f}" for value in (*seconds, iteration_s)),
                style="dim" if index else None,
            )
    return table


def difference_lines(
    first: Timeline, second: Timeline, stages: Mapping[str, Sequence[int]]
) -> Iterator[str]:
    """Yield a sentence for each of the largest differences."""
    for found in differences(first, second, stages)[:NUM_DIFFERENCES]:
        fraction = found.seconds / first.iteration_s
        if abs(fraction) < LEAST_FRACTION:
            return
        yield (
            f"{found.stage}, {found.kind}: {found.first_s:.3f} s {first.source}, "
            f"{found.second_s:.3f} s {second.source} ({found.seconds:+.3f} s, "
            f"{percent_text(fraction)} of the iteration)"
        )


def diff_figure(
    title: str, first: Timeline, second: Timeline, names: Mapping[int, str]
) -> "Figure":
    """Draw two lanes per rank, the first timeline above. names: of the ranks, from the top down."""
    height_in = ROW_IN * max(4, len(names)) + 1.6
    figure = new_figure(WIDTH_IN, height_in, title, (0.08, 0.1), fontsize=11)
    axis = figure.subplots()
    used: set[str] = set()
    for place, rank in enumerate(names):
        for timeline, offset in ((first, -0.22), (second, 0.22)):
            (whose,) = _there(timeline, (rank,))
            used |= _draw(axis, timeline, whose, place + offset)
    axis.set_xlim(0, max(first.iteration_s, second.iteration_s))
    axis.set_ylim(len(names) - 0.45, -0.55)
    axis.set_yticks(range(len(names)), list(names.values()), color=INK, fontsize=8)
    axis.set_xlabel(
        f"seconds; above {first.source}, below {second.source}", color=MUTED, fontsize=9
    )
    without_frame(axis, labelsize=8)
    add_color_legend(figure, {kind: c for kind, c in COLORS.items() if kind in used})
    return figure


def _draw(axis: "Axes", timeline: Timeline, rank: int, place: float) -> set[str]:
    """Draw one lane and return its kinds. Forward and backward passes have different colours."""
    kinds = {kind: KINDS.get(kind, (kind,)) for kind in COLORS}
    found = {kind: some for kind, some in stretches(timeline, rank, kinds).items() if some}
    for kind, some in found.items():
        spans = [(from_s, to_s - from_s) for from_s, to_s in some]
        axis.broken_barh(spans, (place - BAR / 2, BAR), facecolors=COLORS[kind], linewidth=0)
    return set(found)
