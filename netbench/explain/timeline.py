"""Unroll a simulated iteration into a timeline from end to end, as ranks would have recorded it.

Repeated parts are laid end to end, and whatever is under way at their borders is cut. The bytes of
a collective become what a rank records: a call, from the end of its passes until its last byte is
sent or received, interrupted by its update.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netbench import timelines
from netbench.explain.causes import NONE, WORK
from netbench.explain.perfetto import begins
from netbench.plan.serial import plan_hash
from netbench.simulator.graph import Ids, TaskKind, TaskTimeline
from netbench.simulator.iteration import Part, Simulation
from netbench.timelines import Slice

Floats = NDArray[np.float64]

OPERATIONS = (TaskKind.SEND, TaskKind.RECEIVE)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """The slices of a timeline, (num_slices,) each; label: micro-batch or NONE."""

    kind: Ids
    rank: Ids
    label: Ids
    start_s: Floats
    end_s: Floats


def unfold(simulation: Simulation) -> timelines.Timeline:
    """Return the whole iteration; where one rank represents all, only rank 0.

    simulation: of all micro-batches (`simulate(plan, whole=True)`). Copies of a steady state would
    lack the passes of a rank that runs ahead of it.
    """
    tables: dict[int, _Table] = {}
    slices: list[Slice] = []
    for part, length_s, offset_s, is_last in _copies(simulation):
        key = id(part.timeline)
        if key not in tables:
            tables[key] = _table(part.timeline, not simulation.plan.has_pipelines)
        to_s = part.from_s + length_s
        slices += _cut(tables[key], part, to_s, offset_s - part.from_s, is_last)
    return timelines.Timeline(
        plan=plan_hash(simulation.plan),
        source="simulated",
        iteration_s=simulation.iteration_s,
        slices=tuple(sorted(slices, key=lambda piece: (piece.rank, piece.start_s))),
    )


def _copies(simulation: Simulation) -> Iterator[tuple[Part, float, float, bool]]:
    """Yield each occurrence of a part, its length and start, and whether its round is the last."""
    rounds = simulation.plan.num_rounds
    inner = simulation.parts[:-1] if rounds > 1 else simulation.parts
    at_s = 0.0
    for turn in range(rounds):
        for part in inner:
            left = part.repeat / rounds
            while left > 0:
                length_s = min(left, 1.0) * (part.to_s - part.from_s)
                yield part, length_s, at_s, turn == rounds - 1
                at_s += length_s
                left -= 1.0
    for part in simulation.parts[len(inner) :]:
        yield part, part.to_s - part.from_s, at_s, True


def _cut(table: _Table, part: Part, to_s: float, offset_s: float, is_last: bool) -> Iterator[Slice]:
    """Yield the slices between `part.from_s` and `to_s`; collectives only if `is_last`."""
    chosen = (table.end_s > part.from_s) & (table.start_s < to_s) & (table.end_s > table.start_s)
    if not is_last:
        chosen &= table.kind != TaskKind.COLLECTIVE
    start_s = np.maximum(table.start_s[chosen], part.from_s) + offset_s
    end_s = np.minimum(table.end_s[chosen], to_s) + offset_s
    columns = (table.kind[chosen], table.rank[chosen], table.label[chosen], start_s, end_s)
    for kind, rank, label, begin, end in zip(*(c.tolist() for c in columns), strict=True):
        args: list[tuple[str, object]] = [("part", part.name)]
        if label != NONE:
            args.append(("micro_batch", label))
        yield Slice(
            kind=TaskKind(kind).name.lower(), rank=rank, start_s=begin, end_s=end, args=tuple(args)
        )


def _table(timeline: TaskTimeline, alone: bool) -> _Table:
    """Return the slices of a timeline. alone: one rank represents all; collectives are tasks."""
    own = np.isin(timeline.kind, (*WORK, *OPERATIONS, *((TaskKind.COLLECTIVE,) if alone else ())))
    tasks = np.flatnonzero(own & np.isfinite(timeline.end_s))
    is_pass = np.isin(timeline.kind[tasks], (TaskKind.FORWARD, TaskKind.BACKWARD))
    calls = [] if alone else list(_calls(timeline))
    rank, start_s, end_s = zip(*calls, strict=True) if calls else ((), (), ())
    return _Table(
        kind=np.concatenate([timeline.kind[tasks], np.full(len(calls), TaskKind.COLLECTIVE)]),
        rank=np.concatenate([timeline.rank[tasks], np.array(rank, np.int64)]),
        label=np.concatenate(
            [np.where(is_pass, timeline.label[tasks], NONE), np.full(len(calls), NONE)]
        ),
        start_s=np.concatenate([begins(timeline)[tasks], np.array(start_s, float)]),
        end_s=np.concatenate([timeline.end_s[tasks], np.array(end_s, float)]),
    )


def _calls(timeline: TaskTimeline) -> Iterator[tuple[int, float, float]]:
    """Yield (rank, from_s, to_s) of each rank's calls of collectives."""
    num_ranks = int(timeline.rank.max(initial=0)) + 1
    ready_s, done_s = np.zeros(num_ranks), np.zeros(num_ranks)
    passes = np.isin(timeline.kind, (TaskKind.FORWARD, TaskKind.BACKWARD))
    np.maximum.at(ready_s, timeline.rank[passes], timeline.end_s[passes])
    arrival_s = timeline.end_s.copy()
    np.maximum.at(arrival_s, timeline.before, timeline.end_s[timeline.before] + timeline.lag_s)
    bytes_ = np.flatnonzero((timeline.kind == TaskKind.COLLECTIVE) & (timeline.peer != NONE))
    np.maximum.at(done_s, timeline.rank[bytes_], timeline.end_s[bytes_])
    np.maximum.at(done_s, timeline.peer[bytes_], arrival_s[bytes_])
    updates = np.flatnonzero((timeline.kind == TaskKind.OPTIMIZER) & (timeline.amount > 0))
    for rank in np.flatnonzero(done_s > ready_s).tolist():
        from_s = float(ready_s[rank])
        for update in updates[timeline.rank[updates] == rank].tolist():
            begin_s = min(float(timeline.start_s[update]), float(done_s[rank]))
            if begin_s > from_s:
                yield rank, from_s, begin_s
            from_s = max(from_s, float(timeline.end_s[update]))
        if done_s[rank] > from_s:
            yield rank, from_s, float(done_s[rank])
