"""A dependency graph of tasks, built in bulk: numpy arrays of tasks and of edges between them."""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netbench.limits import check_memory
from netbench.simulator import kernel
from netbench.simulator.fabric import Fabric

Ids = NDArray[np.int64]


class TaskKind(IntEnum):
    """Kind of a task, for reports on where the time went."""

    MARK = 0  # takes no time: a moment that tasks wait for
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    SEND = 4  # the communicator hands a message over
    RECEIVE = 5  # the communicator takes a message
    TRANSFER = 6  # bytes on the network, point to point
    COLLECTIVE = 7  # bytes on the network, of a collective
    PASSAGE = 8  # for as long as a message's bytes would need on an idle path


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskTimeline:
    """All tasks of a graph with their times.

    Arrays of (num_tasks,). kind: `TaskKind`. rank: the rank that works or sends. peer: the receiver
    of a transfer or passage, else -1. label: micro-batch, slice or step, -1 = none. start_s, end_s:
    seconds. amount: seconds of work, or bytes. path: index in the fabric, -1 = none.
    Edges, (num_edges,): `after` starts at least lag_s seconds after the end of `before`.
    """

    kind: NDArray[np.int8]
    rank: Ids
    peer: Ids
    label: Ids
    amount: NDArray[np.float64]
    path: Ids
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    before: Ids
    after: Ids
    lag_s: NDArray[np.float64]


_COLUMNS: dict[str, type] = {
    "kind": np.int8,
    "rank": np.int64,
    "peer": np.int64,
    "label": np.int64,
    "amount": np.float64,
    "path": np.int64,
    "message": np.int64,
}
"""Columns of a task."""

TASK_BYTES = 300
"""Memory of a task with its edges, while it is simulated (measured)."""

PAIR_BYTES = 8
"""Memory of the index of paths, per pair of ranks."""


class Graph:
    """A graph under construction; `run` times its tasks on a fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._num_tasks = 0
        self.reserve(0)
        self._tasks: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
        self._edges: list[tuple[Ids, Ids, NDArray[np.float64]]] = []

    def reserve(self, num_tasks: int) -> None:
        """Raise PlanError if `num_tasks` further tasks exceed the memory limit."""
        needed_bytes = TASK_BYTES * (self._num_tasks + num_tasks)
        needed_bytes += PAIR_BYTES * self.fabric.num_ranks**2
        check_memory(needed_bytes, f"simulated tasks of {self.fabric.num_ranks} ranks")

    def work(
        self,
        kind: ArrayLike,
        rank: ArrayLike,
        seconds: ArrayLike = 0.0,
        label: ArrayLike = -1,
        peer: ArrayLike = -1,
    ) -> Ids:
        """Add tasks that keep `rank` busy for `seconds`. Arguments broadcast, to the ids' shape."""
        return self._add(kind, rank, peer, label, seconds, kernel.NONE, kernel.NONE)

    def flow(
        self,
        kind: TaskKind,
        source: ArrayLike,
        target: ArrayLike,
        size: ArrayLike,
        label: ArrayLike = -1,
        of: ArrayLike = kernel.NONE,
    ) -> Ids:
        """Add tasks that move `size` bytes from rank `source` to rank `target`.

        of: the first tasks of the messages whose further bytes these are; NONE = they begin one. A
        task ends when its last byte leaves. A task that needs the bytes waits a one-way delay
        longer (`delay_s`).
        """
        self.reserve(math.prod(_common_shape(source, target, size, label)))
        channels = self.fabric.transport.channels if kind == TaskKind.COLLECTIVE else 1
        path = self.fabric.paths(np.asarray(source), np.asarray(target), channels)
        return self._add(kind, source, target, label, size, path, of)

    def edge(self, before: ArrayLike, after: ArrayLike, lag_s: ArrayLike = 0.0) -> None:
        """Let `after` start at least `lag_s` seconds after `before` ended. Arguments broadcast."""
        shape = _common_shape(before, after, lag_s)
        self._edges.append(
            (
                _filled(before, shape, np.int64),
                _filled(after, shape, np.int64),
                _filled(lag_s, shape, np.float64),
            )
        )

    def delay_s(self, source: ArrayLike, target: ArrayLike) -> NDArray[np.float64]:
        """Return one-way delays between ranks, seconds."""
        return self.fabric.one_way_delay_s(np.asarray(source), np.asarray(target))

    def run(self) -> TaskTimeline:
        """Time every task."""
        columns: dict[str, Any] = {
            name: np.concatenate([np.zeros(0, _COLUMNS[name]), *parts])
            for name, parts in self._tasks.items()
        }
        empty = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        before, after, lag_s = (
            np.concatenate(parts) for parts in zip(*(self._edges or [empty]), strict=True)
        )
        after_start, num_before, (before, after, lag_s) = kernel.by_task(
            before, after, lag_s, self._num_tasks
        )
        message = columns.pop("message")
        begins = (columns["kind"] == TaskKind.TRANSFER) & (message == kernel.NONE)
        message = np.where(begins, np.arange(len(message)), message)
        tasks = kernel.Tasks(
            amount=columns["amount"],
            path=columns["path"],
            message=message,
            num_before=num_before,
            after_start=after_start,
            after=after,
            lag_s=lag_s,
        )
        start_s, end_s = kernel.run(tasks, self.fabric.network())
        return TaskTimeline(
            **columns, start_s=start_s, end_s=end_s, before=before, after=after, lag_s=lag_s
        )

    def _add(self, *columns: ArrayLike) -> Ids:
        """Add tasks. columns: in the order of `_COLUMNS`."""
        shape = _common_shape(*columns)
        self.reserve(math.prod(shape))
        for (name, parts), column in zip(self._tasks.items(), columns, strict=True):
            parts.append(_filled(column, shape, _COLUMNS[name]))
        size = math.prod(shape)
        ids = np.arange(self._num_tasks, self._num_tasks + size).reshape(shape)
        self._num_tasks += size
        return ids


def _common_shape(*arrays: ArrayLike) -> tuple[int, ...]:
    shapes = {a.shape if isinstance(a, np.ndarray) else np.shape(a) for a in arrays} - {()}
    return np.broadcast_shapes(*shapes) if len(shapes) > 1 else shapes.pop() if shapes else ()


def _filled(values: ArrayLike, shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    """Return `values` broadcast to `shape`, flat; faster than `numpy.broadcast_arrays`."""
    array: NDArray[Any] = np.empty(shape, dtype)
    array[...] = values
    return array.ravel()
