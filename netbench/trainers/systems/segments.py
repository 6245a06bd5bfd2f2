"""Execute the segments of a system whose ranks all do the same, on virtual devices.

The simulator times the same segments (`simulator.segments`), so both run one algorithm. The device
sleeps in the rank's main thread. Each communicator has a thread, in which its collectives follow
one another: those among the ranks that share a copy of the model, and those across copies.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from netbench.plan.collectives import COLLECTIVES, CollectiveStage, HopList, Ring, RingCut
from netbench.plan.model import Plan
from netbench.systems import system_of
from netbench.systems.iteration import BACKWARD, FORWARD, OPTIMIZER, WAIT, Call, Segment, Task
from netbench.systems.sharded import ring_cut
from netbench.trainers.communication.collectives import Group, count_slices, run_stages, stage_peers
from netbench.trainers.communication.links import payload_bytes
from netbench.trainers.communication.world import World
from netbench.trainers.events import RECORDER
from netbench.trainers.layers.virtual import compute

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
        for segment in self._segments:
            for _ in range(round(segment.repeat)):
                self._run(segment, spent_s)
        waited_s = time.monotonic() - started_s - sum(spent_s.values())
        return {**spent_s, "sync_s": waited_s}

    def _run(self, segment: Segment, spent_s: dict[str, float]) -> None:
        done: list[Future[None]] = [Future() for _ in segment.tasks]
        lanes: dict[bool, list[int]] = {}
        for index, task in enumerate(segment.tasks):
            if task.calls:
                lanes.setdefault(task.calls[0].across, []).append(index)
        running = [
            self._threads[across].submit(self._communicate, segment.tasks, indices, done)
            for across, indices in lanes.items()
        ]
        for index, task in enumerate(segment.tasks):
            if task.calls:
                continue
            if all(done[before].done() for before in task.after):
                _wait(done[before] for before in task.after)  # raises what a collective raised
            else:
                with RECORDER.span("collective", name="wait"):
                    _wait(done[before] for before in task.after)
            if task.kind != WAIT:
                began_s = time.monotonic()
                with RECORDER.span(task.kind):
                    compute(task.seconds)
                spent_s[PHASES[task.kind]] += time.monotonic() - began_s
            done[index].set_result(None)
        for thread in running:
            thread.result()

    def _communicate(
        self, tasks: tuple[Task, ...], indices: list[int], done: list[Future[None]]
    ) -> None:
        """Run the collectives of one communicator in order."""
        try:
            for index in indices:
                _wait(done[before] for before in tasks[index].after)
                for call in tasks[index].calls:
                    self._call(call)
                done[index].set_result(None)
        except Exception as error:  # whoever waits for these must hear of it
            for index in indices:
                if not done[index].done():
                    done[index].set_exception(error)
            raise

    def _call(self, call: Call) -> None:
        """Run a collective. Chains and trees are sliced. Parts of a ring are cut as NCCL's, unless
        those are too many messages: then the ring goes round once."""
        if call.host_s:
            compute(call.host_s)
        group, stages = self._group_of(call), self._stages(call)
        sliced = any(isinstance(stage, HopList) and stage.sliced for stage in stages)
        slices = count_slices(self._plan, call.size_bytes) if sliced else 1
        cut = ring_cut(self._plan, call)
        tensor = self._buffers[call.across][: self._payload(call)]
        run_stages(group, stages, tensor, slices, cut)

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


def _wait(futures: Iterable[Future[None]]) -> None:
    for future in futures:
        future.result()
