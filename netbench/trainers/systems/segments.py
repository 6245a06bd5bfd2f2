"""Execute the segments of a system whose ranks all do the same, on virtual devices.

The simulator times the same segments (`simulator.segments`), so both run one algorithm. The device
sleeps in the rank's main thread. Each communicator has a thread, in which its collectives follow
one another: those among the ranks that share a copy of the model, and those across copies.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import itemgetter

import torch

from netbench.plan.collectives import COLLECTIVES, CollectiveStage, HopList, Ring, RingCut
from netbench.plan.model import Plan
from netbench.systems import system_of
from netbench.systems.iteration import BACKWARD, FORWARD, OPTIMIZER, WAIT, Call, Task
from netbench.systems.sharded import ring_cut
from netbench.trainers.communication.collectives import stage_peers, stage_posts
from netbench.trainers.communication.group import Group, Post, run_ahead
from netbench.trainers.communication.links import payload_bytes
from netbench.trainers.communication.world import World
from netbench.trainers.events import RECORDER
from netbench.trainers.layers.virtual import compute

NCCL = "nccl"

PHASES = {FORWARD: "forward_s", BACKWARD: "backward_s", OPTIMIZER: "optimizer_s"}


class SegmentRank:
    """One rank; logical rank = place in the order of ranks."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._plan = plan
        self._segments = system_of(plan).segments(plan)
        self._rank = plan.placement.index(world.rank)
        calls = [call for s in self._segments for task in s.tasks for call in task.calls]
        self._calls = calls
        self._groups = {(call.across, call.group_size): self._group(world, call) for call in calls}
        lanes = {call.across for call in calls}
        self._threads = {across: ThreadPoolExecutor(max_workers=1) for across in lanes}
        longest = max((self._payload(call) for call in calls), default=0)
        self._buffers = {across: torch.zeros(longest, dtype=torch.uint8) for across in lanes}

    def peers(self) -> set[int]:
        alike = {
            (call.op, call.library, call.across, call.group_size): call for call in self._calls
        }
        return set().union(
            *(stage_peers(self._group_of(call), self._stages(call)) for call in alike.values())
        )

    def take_loss(self) -> None:
        """Nothing was learnt."""

    def iterate(self) -> dict[str, float]:
        """Run all segments, each as often as it repeats.

        forward_s, backward_s, optimizer_s: the device's own time. sync_s: the rest, waiting for
        collectives and so for slower ranks.
        """
        started_s = time.monotonic()
        spent_s = dict.fromkeys(PHASES.values(), 0.0)
        parts = [
            _Part(segment.tasks) for segment in self._segments for _ in range(round(segment.repeat))
        ]
        running = [
            thread.submit(self._communicate, across, parts)
            for across, thread in self._threads.items()
        ]
        try:
            for part in parts:
                self._compute(part, spent_s)
        except Exception as error:
            _fail(parts, error)
            raise
        for lane in running:
            lane.result()
        waited_s = time.monotonic() - started_s - sum(spent_s.values())
        return {**spent_s, "sync_s": waited_s}

    def _compute(self, part: "_Part", spent_s: dict[str, float]) -> None:
        """Run the device's tasks of a segment, and wait for its collectives."""
        for task, done in zip(part.tasks, part.done, strict=True):
            if task.calls:
                continue
            if all(part.done[before].done() for before in task.after):
                part.wait_for(task.after)  # raises what a collective raised
            else:
                with RECORDER.span("collective", name="wait"):
                    part.wait_for(task.after)
            if task.kind != WAIT:
                began_s = time.monotonic()
                with RECORDER.span(task.kind):
                    compute(task.seconds)
                spent_s[PHASES[task.kind]] += time.monotonic() - began_s
            _set(done)
        part.wait()

    def _communicate(self, across: bool, parts: Sequence["_Part"]) -> None:
        """Run the collectives of one communicator in order.

        NCCL's buffers are ready for what comes next, so the receives of one collective are posted
        while the one before it runs. gloo waits for the word of a receiver.
        """
        try:
            for _, chain in groupby(self._posts(across, parts), key=itemgetter(0)):
                run_ahead(post for _, post in chain)
        except Exception as error:
            _fail(parts, error)
            raise

    def _posts(self, across: bool, parts: Sequence["_Part"]) -> Iterator[tuple[object, Post]]:
        """Yield the collectives of one communicator, or their passes. Those with equal first values
        may be posted ahead of each other: all of NCCL, or the passes of one of gloo."""
        for before, part in zip([None, *parts], parts, strict=False):
            for task, done in zip(part.tasks, part.done, strict=True):
                calls = [call for call in task.calls if call.across == across]
                for index, call in enumerate(calls):
                    chain = NCCL if call.library == NCCL else object()
                    posts = self._call_posts(call) or [_post_nothing]
                    for i, post in enumerate(posts):
                        begin = partial(_begin, before, part, task, call) if i == 0 else _nothing
                        is_last = (index, i) == (len(calls) - 1, len(posts) - 1)
                        end = partial(_set, done) if is_last else _nothing
                        yield chain, partial(_post, post, call.op, begin, end)
                        before = None  # it has ended

    def _call_posts(self, call: Call) -> list[Post]:
        """Return a collective, or its passes. Chains and trees are sliced. Parts of a ring are cut
        as NCCL's, unless those are too many messages: then the ring goes round once."""
        group, cut = self._group_of(call), ring_cut(self._plan, call)
        tensor = self._buffers[call.across][: self._payload(call)]
        slices = self._plan.transport.num_slices(call.size_bytes)
        return [
            post
            for stage in self._stages(call)
            for post in stage_posts(group, stage, tensor, slices, cut)
        ]

    def _stages(self, call: Call) -> tuple[CollectiveStage, ...]:
        return COLLECTIVES[call.op].algorithms[call.library](self._group_of(call).size)

    def _payload(self, call: Call) -> int:
        """Bytes of the scaled tensor of a call: the same for each part that is one message."""
        size, cut = self._group_of(call).size, ring_cut(self._plan, call)
        parts = max(_num_parts(stage, size, cut) for stage in self._stages(call))
        return parts * payload_bytes(self._plan, call.size_bytes / parts)

    def _group_of(self, call: Call) -> Group:
        return self._groups[call.across, call.group_size]

    def _group(self, world: World, call: Call) -> Group:
        placement, size = self._plan.placement, call.group_size
        copy, index = divmod(self._rank, size)
        copy_members = placement[copy * size : (copy + 1) * size]
        members = placement[index::size] if call.across else copy_members
        return Group.paced(world, members, self._plan)


def _num_parts(stage: CollectiveStage, size: int, cut: RingCut) -> int:
    """Return how many messages a tensor is divided into among `size` members."""
    match stage:
        case HopList():
            return stage.num_parts
        case Ring():
            return size * cut.num_messages
        case _:
            return size


class _Part:
    """A segment that runs once: its tasks, and a future for the end of each."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        self.tasks = tasks
        self.done: list[Future[None]] = [Future() for _ in tasks]

    def wait(self) -> None:
        self.wait_for(range(len(self.done)))

    def wait_for(self, indices: Iterable[int]) -> None:
        """Wait for these tasks. Raises what one of them raised."""
        for index in indices:
            self.done[index].result()


def _set(done: Future[None]) -> None:
    """Tell that a task has ended, unless `_fail` came first."""
    with suppress(InvalidStateError):
        done.set_result(None)


def _fail(parts: Iterable[_Part], error: Exception) -> None:
    """Let all who wait for a task hear of an error."""
    for part in parts:
        for done in part.done:
            with suppress(InvalidStateError):
                done.set_exception(error)


def _begin(before: _Part | None, part: _Part, task: Task, call: Call) -> None:
    """Wait for what a task waits for: all of the segment before it, and tasks of its own."""
    if before is not None:
        before.wait()
    part.wait_for(task.after)
    if call.host_s:
        compute(call.host_s)


def _post(
    post: Post, name: str, begin: Callable[[], None], end: Callable[[], None]
) -> Callable[[], None]:
    """Post receives; return the function that does the rest, between `begin` and `end`."""
    run = post()

    def run_between() -> None:
        begin()
        with RECORDER.span("collective", name=name):
            run()
        end()

    return run_between


def _nothing() -> None:
    """Neither begin nor end."""


def _post_nothing() -> Callable[[], None]:
    return _nothing
