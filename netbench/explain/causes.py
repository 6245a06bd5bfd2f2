"""Walk back through a timeline to find what was under way while a rank waited.

A task starts when the last of its predecessors has ended and the lag of that edge is over. A wait
is therefore followed back from the task that ended it, each time to the latest predecessor, until
before the wait began. The pieces found tile the wait.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from netbench.simulator.graph import Ids, TaskKind, TaskTimeline

Floats = NDArray[np.float64]
NONE = -1


class Cause(IntEnum):
    """Causes of a rank's time: its own work, or what it waits for."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2  # its update, or another rank's that it waits for
    BUBBLE = 3  # another rank's forward or backward pass
    COPY = 4  # the communicator between its buffers and its sockets
    TRANSFER = 5  # bytes of a message between stages
    DELAY = 6  # of such a message, or of the receiver's readiness
    COLLECTIVE = 7  # bytes
    COLLECTIVE_DELAY = 8  # delays of collectives and barriers
    TENSOR_PARALLEL = 9  # all-reduces inside the layers


WORK = (TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.OPTIMIZER)
OWN = {
    TaskKind.FORWARD: Cause.FORWARD,
    TaskKind.BACKWARD: Cause.BACKWARD,
    TaskKind.OPTIMIZER: Cause.OPTIMIZER,
}
"""Cause of a rank's own work, by `TaskKind`."""

_AWAITED = np.array(
    [
        {
            TaskKind.MARK: Cause.BUBBLE,  # takes no time
            TaskKind.FORWARD: Cause.BUBBLE,
            TaskKind.BACKWARD: Cause.BUBBLE,
            TaskKind.OPTIMIZER: Cause.OPTIMIZER,
            TaskKind.SEND: Cause.COPY,
            TaskKind.RECEIVE: Cause.COPY,
            TaskKind.TRANSFER: Cause.TRANSFER,
            TaskKind.COLLECTIVE: Cause.COLLECTIVE,
            TaskKind.PASSAGE: Cause.TRANSFER,
        }[kind]
        for kind in TaskKind
    ],
    dtype=np.int64,
)
"""Cause of a wait for a task, by `TaskKind`."""

_MARK, _SEND, _RECEIVE, _COLLECTIVE = (
    int(kind) for kind in (TaskKind.MARK, TaskKind.SEND, TaskKind.RECEIVE, TaskKind.COLLECTIVE)
)
_BUBBLE, _COPY, _DELAY, _COLLECTIVE_DELAY = (
    int(cause) for cause in (Cause.BUBBLE, Cause.COPY, Cause.DELAY, Cause.COLLECTIVE_DELAY)
)


class _Arrays(NamedTuple):
    """A timeline's arrays for compiled code. latest: the edge that each task waited for longest."""

    kind: NDArray[np.int8]
    rank: Ids
    peer: Ids
    start_s: Floats
    end_s: Floats
    before: Ids
    after: Ids
    latest: Ids


class Piece(NamedTuple):
    """A piece of a wait: a task, or an edge's lag where `edge` is not NONE.

    source, target: ranks, equal for work; target is NONE if unknown.
    """

    cause: int
    task: int
    edge: int
    source: int
    target: int
    from_s: float
    to_s: float


class Waits(NamedTuple):
    """Stretches in which ranks do not work, (num_waits,) each.

    rank: that waits. from_s, to_s: seconds. task, edge: that ended the wait at `ended_s`.
    """

    rank: Ids
    from_s: Floats
    to_s: Floats
    task: Ids
    edge: Ids
    ended_s: Floats


class CauseTracer:
    """Traces the waits in a timeline back to their causes."""

    def __init__(self, timeline: TaskTimeline) -> None:
        self.timeline = timeline
        self.end_s = float(np.nanmax(timeline.end_s, initial=0.0))
        work = np.isin(timeline.kind, [int(kind) for kind in WORK]) & (timeline.amount > 0)
        tasks = np.flatnonzero(work & np.isfinite(timeline.end_s))
        order = np.lexsort((timeline.start_s[tasks], timeline.rank[tasks]))
        self.work: Ids = tasks[order]
        """Forward, backward and optimizer tasks, by rank and time; they do not overlap."""
        self._arrays = _Arrays(
            kind=timeline.kind,
            rank=timeline.rank,
            peer=timeline.peer,
            start_s=timeline.start_s,
            end_s=timeline.end_s,
            before=timeline.before,
            after=timeline.after,
            latest=_latest(timeline.before, timeline.after, timeline.lag_s, timeline.end_s),
        )

    def last_before(self, moment_s: float) -> int:
        """Return the last task to end by `moment_s`."""
        ends = np.where(self.timeline.end_s <= moment_s, self.timeline.end_s, -1.0)
        return int(ends.argmax())

    def walk(self, task: int, edge: int, ended_s: float, until_s: float) -> list[Piece]:
        """Return what was under way between `until_s` and `ended_s`, backwards in time."""
        pieces = _walk(self._arrays, task, edge, ended_s, until_s)
        return [Piece(*_read(self._arrays, *piece[:2]), *piece[2:]) for piece in pieces]

    def waits(self, from_s: float, to_s: float, restart_s: float | None = None) -> Waits:
        """Return the waits of every rank between `from_s` and `to_s`.

        restart_s: start of the next round, for which ready ranks wait; None = the timeline goes on.
        """
        timeline, latest = self.timeline, self._arrays.latest
        tasks = self.work
        if restart_s is not None:
            tasks = tasks[timeline.start_s[tasks] < restart_s]
        rank, starts, ends = timeline.rank[tasks], timeline.start_s[tasks], timeline.end_s[tasks]
        is_last = np.append(rank[1:] != rank[:-1], True)[: len(tasks)]
        is_first = np.append(True, is_last[:-1])[: len(tasks)]
        begins = np.where(is_first, 0.0, np.append(0.0, ends[:-1])[: len(tasks)])
        by = latest[tasks]
        known = np.where(by == NONE, NONE, timeline.before[by] if len(timeline.before) else NONE)
        columns = [(rank, begins, starts, known, by, starts)]
        worked_s = np.zeros(self.num_ranks)
        worked_s[rank[is_last]] = ends[is_last]
        rank, ends = np.arange(self.num_ranks), worked_s
        nothing = np.full(len(rank), NONE)
        if restart_s is None:  # first until the rank's last task, possibly of a collective
            own = _last_of(timeline.rank, timeline.end_s, self.num_ranks)
            own_s = timeline.end_s[own]
            columns.append((rank, ends, own_s, own, nothing, own_s))
            ends = np.maximum(ends, own_s)
        final_s = self.end_s if restart_s is None else restart_s
        final = np.full(len(rank), self.last_before(final_s))
        final_at = np.full(len(rank), final_s)
        columns.append((rank, ends, final_at, final, nothing, final_at))
        rank, begins, ends, task, edge, ended = (
            np.concatenate(parts) for parts in zip(*columns, strict=True)
        )
        begins, ends = np.maximum(begins, from_s), np.minimum(ends, to_s)
        some = ends > begins
        chosen: list[NDArray[Any]] = [
            column[some] for column in (rank, begins, ends, task, edge, ended)
        ]
        return Waits(*chosen)

    @property
    def num_ranks(self) -> int:
        return int(self.timeline.rank.max(initial=0)) + 1

    def attribute(
        self, waits: Waits, weight: Floats, place_of: tuple[Ids, Ids, Ids], num_regions: int
    ) -> tuple[Floats, Floats]:
        """Return seconds of the waits by rank and `Cause`, (num_ranks, num_causes), and by cause
        and place, (num_causes, num_places), with ranks weighted by `weight`.

        place_of: stage, region and node of every rank. A place is an index for (stage of the
        source, region of the source, region of the target), with `num_regions` as the target's
        region on the same node.
        """
        num_stages = int(place_of[0].max(initial=0)) + 1
        seconds = np.zeros((self.num_ranks, len(Cause)))
        places = np.zeros((len(Cause), num_stages * num_regions * (num_regions + 1)))
        _attribute(self._arrays, waits, weight, place_of, num_regions, seconds, places)
        return seconds, places


@njit(cache=True)
def _latest(before: Ids, after: Ids, lag_s: Floats, end_s: Floats) -> Ids:
    """Return the edge that each task waited for longest, the first of equals; else NONE."""
    latest, when = np.full(len(end_s), NONE), np.full(len(end_s), -1.0)
    for edge in range(len(before)):
        ready_s = end_s[before[edge]] + lag_s[edge]
        if ready_s > when[after[edge]]:
            when[after[edge]], latest[after[edge]] = ready_s, edge
    return latest


@njit(cache=True)
def _last_of(rank: Ids, end_s: Floats, num_ranks: int) -> Ids:
    """Return each rank's task that ends last, the first of equals."""
    last, when = np.full(num_ranks, NONE), np.full(num_ranks, -1.0)
    for task in range(len(rank)):
        if end_s[task] > when[rank[task]]:
            when[rank[task]], last[rank[task]] = end_s[task], task
    return last


@njit(cache=True)
def _walk(
    arrays: _Arrays, task: int, edge: int, now_s: float, until_s: float
) -> list[tuple[int, int, float, float]]:
    """Return (task, edge or NONE, from_s, to_s), backwards; task NONE if nothing was under way."""
    pieces = [(task, edge, 0.0, 0.0)]
    pieces.pop()
    while now_s > until_s and task != NONE:
        if arrays.end_s[task] < now_s:
            from_s = max(arrays.end_s[task], until_s)
            pieces.append((task if edge != NONE else NONE, edge, from_s, now_s))
            now_s = from_s
        if now_s > until_s and arrays.start_s[task] < now_s:
            from_s = max(arrays.start_s[task], until_s)
            pieces.append((task, NONE, from_s, now_s))
            now_s = from_s
        edge = arrays.latest[task]
        task = arrays.before[edge] if edge != NONE else NONE
    if now_s > until_s:
        pieces.append((NONE, NONE, until_s, now_s))
    return pieces


@njit(cache=True)
def _read(arrays: _Arrays, task: int, edge: int) -> tuple[int, int, int, int, int]:
    """Return cause, task, edge, source and target of a piece."""
    if task == NONE:
        return _BUBBLE, task, edge, NONE, NONE
    source, target = arrays.rank[task], arrays.peer[task]
    if edge == NONE:
        cause = _AWAITED[arrays.kind[task]]
        if target == NONE and arrays.kind[task] != _COLLECTIVE:
            target = source
        return cause, task, edge, source, target
    later = arrays.after[edge]
    this, that = arrays.kind[task], arrays.kind[later]
    if target == NONE:
        target = arrays.rank[later]
    cause = _DELAY
    if this == _MARK and that in (_SEND, _RECEIVE):
        cause = _COPY  # an operation takes at least as long as its copy
    elif _COLLECTIVE in (this, that) or (this == _MARK and that == _MARK):
        cause = _COLLECTIVE_DELAY  # between marks: a barrier
    return cause, task, edge, source, target


@njit(cache=True)
def _attribute(
    arrays: _Arrays,
    waits: Waits,
    weight: Floats,
    place_of: tuple[Ids, Ids, Ids],
    num_regions: int,
    seconds: Floats,
    places: Floats,
) -> None:
    """Add the pieces of all waits to `seconds` and `places`; see `CauseTracer.attribute`."""
    stage, region, node = place_of
    for wait in range(len(waits.rank)):
        rank = waits.rank[wait]
        for task, edge, began_s, over_s in _walk(
            arrays, waits.task[wait], waits.edge[wait], waits.ended_s[wait], waits.from_s[wait]
        ):
            length_s = min(over_s, waits.to_s[wait]) - began_s
            if length_s <= 0.0:
                continue
            cause, _, _, source, target = _read(arrays, task, edge)
            seconds[rank, cause] += length_s
            if weight[rank] > 0.0 and source != NONE and target != NONE:
                there = num_regions if node[source] == node[target] else region[target]
                index = (stage[source] * num_regions + region[source]) * (num_regions + 1) + there
                places[cause, index] += weight[rank] * length_s
