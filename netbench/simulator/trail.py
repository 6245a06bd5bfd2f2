"""Walks back through a timeline: what was under way while a rank waited.

A task starts when the latest of those it waits for has ended and its lag is over. So what ended a
wait is followed back, from task to latest predecessor, until before the wait began; the pieces
tile it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from netbench.simulator.graph import Ids, Kind, Timeline

Floats = NDArray[np.float64]
NONE = -1


class Cause(IntEnum):
    """What a second of a rank's iteration went into: its own work, or what it waited for."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2  # its own update, or the one it waits for
    BUBBLE = 3  # another rank's forward or backward pass
    COPY = 4  # the communicator between its buffers and its sockets
    TRANSFER = 5  # bytes of a message between stages
    DELAY = 6  # of such a message, or of the word that it may come
    COLLECTIVE = 7  # bytes
    COLLECTIVE_DELAY = 8  # and of barriers
    TENSOR_PARALLEL = 9  # all-reduces inside the layers


WORK = (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER)
OWN = {
    Kind.FORWARD: Cause.FORWARD,
    Kind.BACKWARD: Cause.BACKWARD,
    Kind.OPTIMIZER: Cause.OPTIMIZER,
}
"""What a rank's own work counts as."""

_AWAITED = np.array(
    [
        {
            Kind.MARK: Cause.BUBBLE,  # takes no time
            Kind.FORWARD: Cause.BUBBLE,
            Kind.BACKWARD: Cause.BUBBLE,
            Kind.OPTIMIZER: Cause.OPTIMIZER,
            Kind.SEND: Cause.COPY,
            Kind.RECEIVE: Cause.COPY,
            Kind.TRANSFER: Cause.TRANSFER,
            Kind.COLLECTIVE: Cause.COLLECTIVE,
        }[kind]
        for kind in Kind
    ],
    dtype=np.int64,
)
"""What a task counts as while a rank waits for it, by `Kind`."""

_MARK, _SEND, _RECEIVE, _COLLECTIVE = (
    int(kind) for kind in (Kind.MARK, Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE)
)
_BUBBLE, _COPY, _DELAY, _COLLECTIVE_DELAY = (
    int(cause) for cause in (Cause.BUBBLE, Cause.COPY, Cause.DELAY, Cause.COLLECTIVE_DELAY)
)


class _Trail(NamedTuple):
    """A timeline's arrays, and the edge by which each task's latest predecessor held it up."""

    kind: NDArray[np.int8]
    rank: Ids
    peer: Ids
    start_s: Floats
    end_s: Floats
    before: Ids
    after: Ids
    latest: Ids


class Piece(NamedTuple):
    """A stretch of a wait: a task, or an edge's lag where `edge` is not NONE.

    source, target: ranks; the same for work, target NONE where it is not known.
    """

    cause: int
    task: int
    edge: int
    source: int
    target: int
    from_s: float
    to_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """Stretches in which a rank does not work, (num_waits,) each.

    rank: whose. from_s, to_s: seconds. task, edge: what ended it at `ended_s`, and how.
    """

    rank: Ids
    from_s: Floats
    to_s: Floats
    task: Ids
    edge: Ids
    ended_s: Floats


class Trail:
    """A timeline that can be walked back. num_ranks: of those in it."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.end_s = float(np.nanmax(timeline.end_s, initial=0.0))
        work = np.isin(timeline.kind, [int(kind) for kind in WORK]) & (timeline.amount > 0)
        found = np.flatnonzero(work & np.isfinite(timeline.end_s))
        order = np.lexsort((timeline.start_s[found], timeline.rank[found]))
        self.work: Ids = found[order]
        """Forward, backward and optimizer tasks, by rank and time; they do not overlap."""
        self._arrays = _Trail(
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
        """The task that ends last, not after `moment_s`."""
        ends = np.where(self.timeline.end_s <= moment_s, self.timeline.end_s, -1.0)
        return int(ends.argmax())

    def walk(self, task: int, edge: int, ended_s: float, until_s: float) -> list[Piece]:
        """What was under way between `until_s` and `ended_s`, backwards in time."""
        pieces = _walk(self._arrays, task, edge, ended_s, until_s)
        return [Piece(*_read(self._arrays, *piece[:2]), *piece[2:]) for piece in pieces]

    def waits(self, from_s: float, to_s: float, restart_s: float | None = None) -> Waits:
        """Of every rank between `from_s` and `to_s`.

        restart_s: all starts again then, so that who is ready waits for the last one there; None =
        the timeline goes on.
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
        if restart_s is None:  # first until its own last task, a collective's perhaps
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
        return Waits(
            rank=rank[some],
            from_s=begins[some],
            to_s=ends[some],
            task=task[some],
            edge=edge[some],
            ended_s=ended[some],
        )

    @property
    def num_ranks(self) -> int:
        return int(self.timeline.rank.max(initial=0)) + 1

    def attribute(
        self, waits: Waits, weight: Floats, place_of: tuple[Ids, Ids, Ids], num_regions: int
    ) -> tuple[Floats, Floats]:
        """Seconds of the waits by rank and `Cause`, (num_ranks, num_causes), and, weighted by
        `weight` of the rank, by cause and place, (num_causes, num_places).

        place_of: stage, region and node of every rank. A place is (stage of the source, its region,
        region of the target), the last `num_regions` for the same node, as one index.
        """
        num_stages = int(place_of[0].max(initial=0)) + 1
        seconds = np.zeros((self.num_ranks, len(Cause)))
        places = np.zeros((len(Cause), num_stages * num_regions * (num_regions + 1)))
        _attribute(
            self._arrays,
            (waits.rank, waits.task, waits.edge),
            (waits.from_s, waits.to_s, waits.ended_s),
            weight,
            place_of,
            num_regions,
            seconds,
            places,
        )
        return seconds, places


@njit(cache=True)
def _latest(before: Ids, after: Ids, lag_s: Floats, end_s: Floats) -> Ids:
    """The edge that each task waited for longest, the first of several; NONE for a first task."""
    latest, when = np.full(len(end_s), NONE), np.full(len(end_s), -1.0)
    for edge in range(len(before)):
        ready_s = end_s[before[edge]] + lag_s[edge]
        if ready_s > when[after[edge]]:
            when[after[edge]], latest[after[edge]] = ready_s, edge
    return latest


@njit(cache=True)
def _last_of(rank: Ids, end_s: Floats, num_ranks: int) -> Ids:
    """Each rank's task that ends last, the first of several."""
    last, when = np.full(num_ranks, NONE), np.full(num_ranks, -1.0)
    for task in range(len(rank)):
        if end_s[task] > when[rank[task]]:
            when[rank[task]], last[rank[task]] = end_s[task], task
    return last


@njit(cache=True)
def _walk(
    trail: _Trail, task: int, edge: int, now_s: float, until_s: float
) -> list[tuple[int, int, float, float]]:
    """(task, edge or NONE, from_s, to_s), backwards; task NONE where nothing was under way."""
    pieces = [(task, edge, 0.0, 0.0)]
    pieces.pop()
    while now_s > until_s and task != NONE:
        if trail.end_s[task] < now_s:
            from_s = max(trail.end_s[task], until_s)
            pieces.append((task if edge != NONE else NONE, edge, from_s, now_s))
            now_s = from_s
        if now_s > until_s and trail.start_s[task] < now_s:
            from_s = max(trail.start_s[task], until_s)
            pieces.append((task, NONE, from_s, now_s))
            now_s = from_s
        edge = trail.latest[task]
        task = trail.before[edge] if edge != NONE else NONE
    if now_s > until_s:
        pieces.append((NONE, NONE, until_s, now_s))
    return pieces


@njit(cache=True)
def _read(trail: _Trail, task: int, edge: int) -> tuple[int, int, int, int, int]:
    """Cause, task, edge, source and target of a piece."""
    if task == NONE:
        return _BUBBLE, task, edge, NONE, NONE
    source, target = trail.rank[task], trail.peer[task]
    if edge == NONE:
        cause = _AWAITED[trail.kind[task]]
        if target == NONE and trail.kind[task] != _COLLECTIVE:
            target = source
        return cause, task, edge, source, target
    later = trail.after[edge]
    this, that = trail.kind[task], trail.kind[later]
    if target == NONE:
        target = trail.rank[later]
    cause = _DELAY
    if this == _MARK and that in (_SEND, _RECEIVE):
        cause = _COPY  # an operation takes as long as its copy, at least
    elif _COLLECTIVE in (this, that) or (this == _MARK and that == _MARK):
        cause = _COLLECTIVE_DELAY  # between marks: a barrier
    return cause, task, edge, source, target


@njit(cache=True)
def _attribute(
    trail: _Trail,
    which: tuple[Ids, Ids, Ids],
    when: tuple[Floats, Floats, Floats],
    weight: Floats,
    place_of: tuple[Ids, Ids, Ids],
    num_regions: int,
    seconds: Floats,
    places: Floats,
) -> None:
    stage, region, node = place_of
    for wait in range(len(which[0])):
        rank = which[0][wait]
        from_s, to_s, ended_s = when[0][wait], when[1][wait], when[2][wait]
        for task, edge, began_s, over_s in _walk(
            trail, which[1][wait], which[2][wait], ended_s, from_s
        ):
            length_s = min(over_s, to_s) - began_s
            if length_s <= 0.0:
                continue
            cause, _, _, source, target = _read(trail, task, edge)
            seconds[rank, cause] += length_s
            if weight[rank] > 0.0 and source != NONE and target != NONE:
                there = num_regions if node[source] == node[target] else region[target]
                index = (stage[source] * num_regions + region[source]) * (num_regions + 1) + there
                places[cause, index] += weight[rank] * length_s
