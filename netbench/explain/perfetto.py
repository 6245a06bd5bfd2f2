"""Write a simulated iteration as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

The trace has a process per rank with its compute, its communicator's operations and the bytes that
it sends. Arrows lead from a message's bytes to the operation that receives it. Every part is drawn
once; `args.repeat` says how often it occurs. Format: Trace Event Format (Google, 2016),
microseconds.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from netbench.explain.activity import rank_name
from netbench.explain.breakdown import timelines
from netbench.explain.causes import NONE, WORK
from netbench.plan.serial import plan_hash
from netbench.simulator.graph import Ids, TaskKind, TaskTimeline
from netbench.simulator.iteration import Part, Simulation
from netbench.timelines import (
    COMMUNICATOR,
    COMPUTE,
    NETWORK,
    Event,
    lanes,
    microseconds,
    named,
    thread_names,
    trace_text,
    write_events,
)

Floats = NDArray[np.float64]


def write_trace(simulation: Simulation, path: Path) -> None:
    """Write the trace to `path`, compressed if it ends in `.gz`.

    Raises UsageError if the file cannot be written.
    """
    write_events(path, _about(simulation), trace_events(simulation))


def trace_json(simulation: Simulation) -> str:
    """Return the text of the trace."""
    return "".join(trace_text(_about(simulation), trace_events(simulation)))


def _about(simulation: Simulation) -> dict[str, object]:
    return {"plan": plan_hash(simulation.plan), "iteration_s": simulation.iteration_s}


def trace_events(simulation: Simulation) -> Iterator[Event]:
    """Yield the events of the trace: names of processes and threads, slices, arrows."""
    yield from _names(simulation)
    num_arrows, overview = 0, simulation.plan.layout.num_ranks
    seen = set[tuple[int, int]]()
    for tracer, offset_s, parts in timelines(simulation):
        for part in parts:
            yield {
                "ph": "X", "name": part.name, "cat": "part", "pid": overview,
                "tid": COMPUTE, "ts": microseconds(offset_s + part.from_s),
                "dur": microseconds(part.to_s - part.from_s), "args": {"repeat": part.repeat},
            }  # fmt: skip
        slices = _Slices(tracer.timeline, parts, offset_s)
        threads = slices.threads()
        for rank, thread in sorted(threads - seen):
            yield from thread_names(rank, thread)
        seen |= threads
        yield from slices.events()
        for arrow in slices.arrows(num_arrows):
            yield arrow
            num_arrows += arrow["ph"] == "f"


class _Slices:
    """The tasks of a timeline that are drawn, each on a thread of its rank.

    tasks: (num_slices,). begin_s: see `begins`.
    """

    def __init__(self, timeline: TaskTimeline, parts: tuple[Part, ...], offset_s: float) -> None:
        self.timeline, self.parts, self.offset_s = timeline, parts, offset_s
        self.begin_s = begins(timeline)
        operation = np.isin(timeline.kind, (TaskKind.SEND, TaskKind.RECEIVE))
        lasts = timeline.end_s > self.begin_s
        drawn = (lasts | operation) & (timeline.kind != TaskKind.PASSAGE)  # beside the bytes
        self.tasks: Ids = np.flatnonzero(np.isfinite(timeline.end_s) & drawn)
        self.thread = self._thread()

    def _thread(self) -> Ids:
        """Return the thread of each task, (num_tasks,); NONE if it is not drawn."""
        thread = np.full(len(self.timeline.kind), NONE)
        kind, rank = self.timeline.kind[self.tasks], self.timeline.rank[self.tasks]
        work = np.isin(kind, WORK)
        operation = np.isin(kind, (TaskKind.SEND, TaskKind.RECEIVE))
        thread[self.tasks[work]] = COMPUTE
        for first, chosen in ((COMMUNICATOR, operation), (NETWORK, ~work & ~operation)):
            some = self.tasks[chosen]
            order = np.lexsort((self.begin_s[some], rank[chosen]))
            some = some[order]
            thread[some] = first + np.array(
                lanes(
                    self.timeline.rank[some].tolist(),
                    self.begin_s[some].tolist(),
                    self.timeline.end_s[some].tolist(),
                ),
                dtype=np.int64,
            )
        return thread

    def threads(self) -> set[tuple[int, int]]:
        """Return (rank, thread) of every slice."""
        pairs = np.stack([self.timeline.rank[self.tasks], self.thread[self.tasks]], axis=1)
        return {(rank, thread) for rank, thread in np.unique(pairs, axis=0).tolist()}

    def events(self) -> Iterator[Event]:
        """Yield a complete event per slice."""
        timeline = self.timeline
        starts = np.array([part.from_s for part in self.parts])
        middle_s = (self.begin_s + timeline.end_s) / 2
        part_of = np.maximum(np.searchsorted(starts, middle_s, side="right") - 1, 0)
        for task in self.tasks.tolist():
            kind, part = TaskKind(timeline.kind[task]), self.parts[part_of[task]]
            args: Event = {"part": part.name, "repeat": part.repeat}
            label, peer = int(timeline.label[task]), int(timeline.peer[task])
            if label != NONE:
                args["step" if kind is TaskKind.COLLECTIVE else "micro_batch"] = label
            if timeline.path[task] != NONE:
                args["bytes"] = round(float(timeline.amount[task]), 1)
            begin_us = microseconds(self.offset_s + float(self.begin_s[task]))
            end_us = microseconds(self.offset_s + float(timeline.end_s[task]))
            yield {
                "ph": "X",
                "name": kind.name.lower() + (f" to rank {peer}" if peer != NONE else ""),
                "cat": kind.name.lower(),
                "pid": int(timeline.rank[task]),
                "tid": int(self.thread[task]),
                "ts": begin_us,
                "dur": round(end_us - begin_us, 3),
                "args": args,
            }

    def arrows(self, first_id: int) -> Iterator[Event]:
        """Yield an arrow from the bytes of each message to the operation that receives it."""
        timeline, thread = self.timeline, self.thread
        before, after = timeline.before, timeline.after
        edges = np.flatnonzero(
            (timeline.kind[before] == TaskKind.TRANSFER)
            & (timeline.kind[after] == TaskKind.RECEIVE)
            & (thread[before] != NONE)
            & (thread[after] != NONE)
        )
        for number, edge in enumerate(edges.tolist(), first_id):
            source, target = int(before[edge]), int(after[edge])
            arrival_s = timeline.end_s[source] + timeline.lag_s[edge]
            moments = (self.begin_s[source], max(arrival_s, self.begin_s[target]))
            for phase, task, moment_s in zip("sf", (source, target), moments, strict=True):
                event: Event = {
                    "ph": phase, "id": number, "name": "message", "cat": "message",
                    "pid": int(timeline.rank[task]), "tid": int(thread[task]),
                    "ts": microseconds(self.offset_s + float(moment_s)),
                }  # fmt: skip
                yield event | ({"bp": "e"} if phase == "f" else {})


def begins(timeline: TaskTimeline) -> Floats:
    """Return when tasks begin; an operation begins at its call, marked before its copy."""
    begin_s = timeline.start_s.copy()
    before, after = timeline.before, timeline.after
    called = (
        (timeline.kind[before] == TaskKind.MARK)
        & np.isin(timeline.kind[after], (TaskKind.SEND, TaskKind.RECEIVE))
        & (timeline.rank[before] == timeline.rank[after])
    )
    np.minimum.at(begin_s, after[called], timeline.end_s[before[called]])
    return begin_s


def _names(simulation: Simulation) -> Iterator[Event]:
    plan = simulation.plan
    alone = not plan.has_pipelines
    for rank in range(1 if alone else plan.layout.num_ranks):
        yield named("process_name", rank, 0, name=rank_name(plan, rank))
        yield named("process_sort_index", rank, 0, sort_index=rank)
    yield named("process_name", plan.layout.num_ranks, 0, name="parts of the iteration")
    yield named("process_sort_index", plan.layout.num_ranks, 0, sort_index=-1)
