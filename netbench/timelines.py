"""Timelines of an iteration, simulated or emulated: what every rank did, and when.

And its trace for Perfetto (ui.perfetto.dev) and chrome://tracing. Format: Trace Event Format
(Google, 2016), microseconds. A process per rank, with threads for its own work, what its
communicator is busy with, and the network.
"""

import gzip
import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Any, cast

from netbench.errors import RecordError, UsageError
from netbench.files import MAX_RECORD_BYTES, check_no_input, read_input
from netbench.plan.model import Plan
from netbench.systems import position_of

Event = dict[str, Any]

COMPUTE, COMMUNICATOR, NETWORK = 1, 10, 1000
"""First thread number of each kind. Communicators and the network have further threads for things
that happen at the same time."""

THREADS = {COMPUTE: "compute", COMMUNICATOR: "communicator", NETWORK: "network"}

THREAD_OF = {
    "forward": COMPUTE,
    "backward": COMPUTE,
    "weight": COMPUTE,
    "optimizer": COMPUTE,
    "send": COMMUNICATOR,
    "receive": COMMUNICATOR,
    "collective": NETWORK,
    "barrier": NETWORK,
}
"""Kind of slice -> thread."""

WHOLE = "iteration"
"""The only part of an emulated iteration, which is recorded from end to end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """Something that a rank did from `start_s` to `end_s`, seconds from the iteration's start.

    kind: a key of `THREAD_OF`; weight: a pass for the gradients of weights alone. rank: logical.
    peer: rank at the other end of a send or receive, -1 = none. args: further properties:
    micro_batch, chunk, message, bytes.
    """

    kind: str
    rank: int
    start_s: float
    end_s: float
    peer: int = -1
    args: tuple[tuple[str, object], ...] = ()

    @property
    def name(self) -> str:
        """Text, e.g. `send to rank 3`."""
        if self.peer < 0:
            return self.kind
        return f"{self.kind} {'to' if self.kind == 'send' else 'from'} rank {self.peer}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """An iteration of the plan with hash `plan`. source: of `netbench.records.SOURCES`.

    slices: by rank and start. If one rank was simulated for all (plans without pipelines), they
    are rank 0's. clock_error_s: bound of the error of a host's clock, seconds; 0 = all have one.
    """

    plan: str
    source: str
    iteration_s: float
    slices: tuple[Slice, ...]
    clock_error_s: float = 0.0


def name_of_rank(plan: Plan, rank: int) -> str:
    """Return region (if there are several), node, rank and stage as text."""
    node = plan.device_nodes[plan.placement[rank]]
    regions = plan.network.node_regions
    where = f"{plan.network.regions[regions[node]]} " if len(set(regions)) > 1 else ""
    stage = f", stage {position_of(plan, rank).stage}" if plan.has_pipelines else ""
    kind = f", {plan.type_on(plan.placement[rank])}" if plan.type_names else ""
    return f"{where}{plan.node_names[node]} (rank {rank}{stage}{kind})"


def name_of_all(plan: Plan) -> str:
    """Return the name of a rank that represents all."""
    return "slowest rank" if plan.type_stages else "every rank"


def timeline_events(
    plan: Plan, timeline: Timeline, *, prefix: str = "", first: int = 0, step: int = 1
) -> Iterator[Event]:
    """Yield the events of a trace: names, slices, and arrows from a send to its receive.

    The process of rank r is first + r x step, so that one trace can hold two timelines with their
    ranks interleaved. prefix: of the processes' names.
    """
    alone = not plan.has_pipelines and timeline.source == "simulated"
    threads = list(_threads(timeline.slices))
    for rank in sorted({piece.rank for piece in timeline.slices}):
        process = first + rank * step
        name = name_of_all(plan) if alone else name_of_rank(plan, rank)
        yield named("process_name", process, 0, name=prefix + name)
        yield named("process_sort_index", process, 0, sort_index=process)
    for rank, thread in sorted({(piece.rank, thread) for piece, thread in threads}):
        yield from thread_names(first + rank * step, thread)
    for piece, thread in threads:
        start_us = microseconds(piece.start_s)
        yield {
            "ph": "X",
            "name": piece.name,
            "cat": piece.kind,
            "pid": first + piece.rank * step,
            "tid": thread,
            "ts": start_us,
            "dur": round(microseconds(piece.end_s) - start_us, 3),
            "args": {"part": WHOLE, "repeat": 1, **dict(piece.args)},
        }
    for event in _arrows(threads, prefix):
        yield event | {"pid": first + event["pid"] * step}


def _threads(slices: Iterable[Slice]) -> Iterator[tuple[Slice, int]]:
    order = sorted(slices, key=lambda piece: (piece.rank, THREAD_OF[piece.kind], piece.start_s))
    for first, group in groupby(order, lambda piece: THREAD_OF[piece.kind]):
        some = list(group)
        free = lanes(
            [piece.rank for piece in some],
            [piece.start_s for piece in some],
            [piece.end_s for piece in some],
        )
        yield from ((piece, first + lane) for piece, lane in zip(some, free, strict=True))


def lanes(rank: Sequence[int], begin_s: Sequence[float], end_s: Sequence[float]) -> list[int]:
    """Return the lowest free lane for each slice; slices are in order of rank and time."""
    found = []
    current, free, busy, num_lanes = -1, list[int](), list[tuple[float, int]](), 0
    for whose, from_s, to_s in zip(rank, begin_s, end_s, strict=True):
        if whose != current:
            current, free, busy, num_lanes = whose, [], [], 0
        while busy and busy[0][0] <= from_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else num_lanes
        num_lanes = max(num_lanes, lane + 1)
        heapq.heappush(busy, (to_s, lane))
        found.append(lane)
    return found


def messages(slices: Iterable[Slice]) -> Iterator[tuple[Slice, Slice]]:
    """Yield the send and the receive of every message that both ends recorded."""
    sends: dict[tuple[object, ...], Slice] = {}
    receives: dict[tuple[object, ...], Slice] = {}
    for piece in slices:
        args = dict(piece.args)
        if "message" in args:
            ends = (piece.rank, piece.peer) if piece.kind == "send" else (piece.peer, piece.rank)
            found = sends if piece.kind == "send" else receives
            found[*ends, args.get("tag"), args["message"]] = piece
    for key in sorted(sends.keys() & receives.keys(), key=str):
        yield sends[key], receives[key]


def _arrows(threads: Sequence[tuple[Slice, int]], prefix: str) -> Iterator[Event]:
    """Yield arrows from the start of a send to the end of the receive of the same message."""
    thread_of = {id(piece): thread for piece, thread in threads}
    for number, (send, receive) in enumerate(messages(piece for piece, _ in threads)):
        for phase, piece in (("s", send), ("f", receive)):
            moment_s = piece.start_s if phase == "s" else piece.end_s
            event: Event = {
                "ph": phase, "id": f"{prefix}{number}", "name": "message", "cat": "message",
                "pid": piece.rank, "tid": thread_of[id(piece)], "ts": microseconds(moment_s),
            }  # fmt: skip
            yield event | ({"bp": "e"} if phase == "f" else {})


def thread_names(process: int, thread: int) -> Iterator[Event]:
    """Yield the events that name a thread of a rank, and sort it."""
    first = max(number for number in THREADS if number <= thread)
    name = THREADS[first] + (f" {thread - first + 1}" if thread > first else "")
    yield named("thread_name", process, thread, name=name)
    yield named("thread_sort_index", process, thread, sort_index=thread)


def named(what: str, process: int, thread: int, **args: object) -> Event:
    """Return a metadata event."""
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def microseconds(seconds: float) -> float:
    """Return microseconds, rounded to the nanosecond."""
    return round(seconds * 1e6, 3)


def write_events(path: Path, about: object, events: Iterable[Event]) -> None:
    """Write a trace to `path`, compressed if it ends in `.gz`. about: JSON, beside the events.

    Raises UsageError if the file cannot be written.
    """
    check_no_input(path)
    try:
        with _open(path) as file:
            file.writelines(trace_text(about, events))
    except OSError as error:
        raise UsageError(f"{path}: the trace cannot be written: {error.strerror}") from None


def trace_text(about: object, events: Iterable[Event]) -> Iterator[str]:
    """Yield the text of a trace in pieces. about: JSON, beside the events."""
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":['
    for index, event in enumerate(events):
        yield (",\n" if index else "\n") + json.dumps(event, separators=(",", ":"))
    yield "\n]}\n"


def trace_path(run: Path, plan_hash: str) -> Path:
    """Return the path of a plan's trace in the folder of a run."""
    return run / "traces" / f"{plan_hash}.json.gz"


def write_timeline(path: Path, plan: Plan, timeline: Timeline) -> None:
    """Write a timeline as a trace, which `read_timeline` reads. Raises UsageError if that fails."""
    about = {"plan": timeline.plan, "source": timeline.source, "iteration_s": timeline.iteration_s}
    if timeline.clock_error_s:
        about["clock_error_s"] = timeline.clock_error_s
    write_events(path, about, timeline_events(plan, timeline))


def read_timeline(path: Path) -> Timeline:
    """Read a file that `write_timeline` wrote. Raises RecordError if it is missing or damaged."""
    try:
        trace = json.loads(read_input(path, MAX_RECORD_BYTES))
        about = trace["otherData"]
        slices = [_slice(event) for event in trace["traceEvents"] if event["ph"] == "X"]
        return Timeline(
            plan=about["plan"],
            source=about["source"],
            iteration_s=about["iteration_s"],
            slices=tuple(sorted(slices, key=lambda piece: (piece.rank, piece.start_s))),
            clock_error_s=about.get("clock_error_s", 0.0),
        )
    except OSError as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordError(f"{path}: the trace cannot be read: {reason}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}: not a trace of an emulated iteration ({type(error).__name__}: {error}); "
            "record one with netbench run --trace"
        ) from None


def _slice(event: Event) -> Slice:
    words = event["name"].split(" rank ")
    args = {key: value for key, value in event["args"].items() if key not in ("part", "repeat")}
    return Slice(
        kind=event["cat"],
        rank=event["pid"],
        start_s=event["ts"] / 1e6,
        end_s=(event["ts"] + event["dur"]) / 1e6,
        peer=int(words[1]) if len(words) > 1 else -1,
        args=tuple(args.items()),
    )


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, "wt", encoding="utf-8"))
    return path.open("w", encoding="utf-8")
