"""Lanes for tensors of a device. There is no GPU here: gloo and threads stand in for NCCL.

What is checked is what a world does with lanes: which transfers they carry, in which order, that
none waits for another for ever, and that every trainer runs on them. Streams, memory of a device
and NCCL itself are not.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist

from netbench.errors import TestbedError
from netbench.plan.collectives import RingCut
from netbench.plan.model import Plan
from netbench.trainers.communication import nccl, world
from netbench.trainers.communication.collectives import tree_all_reduce, tree_lanes, tree_peers
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.nccl import NcclWorld, choose_device
from netbench.trainers.communication.rings import ring_all_reduce
from netbench.trainers.communication.world import (
    TAG_COLLECTIVE,
    TAG_PIPELINE,
    TAGS_PER_CHANNEL,
    TIMEOUT,
    PendingTransfer,
    World,
)
from netbench.trainers.systems.registry import AheadTrainer, LaneTrainer, build_trainer
from tests.trainers.communication.every_collective import LENGTHS, NUM_SLICES, inputs, run_all
from tests.trainers.parity import STEPS, TOLERANCE, real_plan, reference_losses
from tests.trainers.processes import on_processes


class Lane:
    """Two processes whose transfers follow one another, as kernels on a stream do."""

    def __init__(self, store: Any, end: int) -> None:
        self._gloo: Any = dist.ProcessGroupGloo(store, end, 2, TIMEOUT)
        self._stream = ThreadPoolExecutor(max_workers=1)

    def send(self, tensors: list[torch.Tensor], process: int, tag: int) -> Future[None]:
        return self._stream.submit(lambda: self._gloo.send(tensors, process, tag).wait() and None)

    def recv(self, tensors: list[torch.Tensor], process: int, tag: int) -> Future[None]:
        return self._stream.submit(lambda: self._gloo.recv(tensors, process, tag).wait() and None)


class Started:
    """A transfer on a lane."""

    def __init__(self, work: Future[None]) -> None:
        self._work = work

    def wait(self) -> None:
        self._work.result(60)


class StandIn:
    """A device in the memory of the CPU: of all tensors but those of a barrier, one byte each."""

    backends = "gloo"

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.num_forks = 0

    def carries(self, tensor: torch.Tensor) -> bool:
        return tensor.nbytes > 1

    def open_lane(self, store: Any, end: int) -> Lane:
        self.opened.append(end)
        return Lane(store, end)

    def probe(self) -> torch.Tensor:
        return torch.zeros(1)

    def follow(self, work: Future[None], tensor: torch.Tensor) -> PendingTransfer:
        return Started(work)

    @contextmanager
    def _count(self) -> Any:
        self.num_forks += 1
        yield

    def fork(self) -> AbstractContextManager[None]:
        return self._count()


class LaneWorld(NcclWorld):
    """A world whose device is a stand-in."""

    @classmethod
    def connect(cls, **ends: Any) -> LaneWorld:
        made = cls.join(**ends, device=StandIn())
        assert isinstance(made, LaneWorld)
        return made


@pytest.mark.parametrize("size", [2, 5])
def test_collectives_over_lanes_are_those_over_gloo(size: int) -> None:
    """Every collective, by the results of the gloo world, which torch's own arithmetic proves."""
    members = tuple(range(size))[::-1]

    def all_lanes(found: World, *arguments: Any) -> Any:
        found.warm(set(range(found.size)))
        return run_all(found, *arguments)

    over_lanes = on_processes(size, all_lanes, members, 1, world_type=LaneWorld)
    assert over_lanes == on_processes(size, run_all, members, 1)
    assert len(over_lanes[0]) == len(LENGTHS) * len(NUM_SLICES)


def _all_reduce_in_trees(found: LaneWorld, length: int) -> list[float]:
    group = Group.of(found, range(found.size))
    found.warm(tree_peers(group), tree_lanes(group))
    tensor = inputs(found.size, length)[found.rank]
    tree_all_reduce(group, tensor, num_slices=3)
    total: list[float] = tensor.tolist()
    return total


@pytest.mark.parametrize("size", [3, 6])
def test_channels_of_two_trees_do_not_wait_for_each_other(size: int) -> None:
    """Transfers of different channels between two processes cross; on one lane they would not."""
    found = on_processes(size, _all_reduce_in_trees, 100, world_type=LaneWorld)
    assert found == [torch.stack(inputs(size, 100)).sum(0).tolist()] * size


def _receive_before_sending(found: LaneWorld) -> list[float]:
    """Both post a receive first, as inboxes do. In one direction, messages arrive in order."""
    other = 1 - found.rank
    found.warm([other])
    into = [torch.zeros(2), torch.zeros(2)]
    receives = [found.receive(tensor, other, TAG_PIPELINE) for tensor in into]
    for number in range(2):
        found.send(torch.full((2,), 10.0 * found.rank + number), other, TAG_PIPELINE).wait()
    for receive in receives:
        receive.wait()
    return torch.cat(into).tolist()


def test_a_receive_that_waits_does_not_hold_up_a_send() -> None:
    found = on_processes(2, _receive_before_sending, world_type=LaneWorld)
    assert found == [[10.0, 10.0, 11.0, 11.0], [0.0, 0.0, 1.0, 1.0]]


def _lanes(found: LaneWorld) -> tuple[list[int], list[int], str]:
    """Ends of the lanes after warming, after warming again, and an error."""
    device = found._device
    assert isinstance(device, StandIn)
    found.warm({0, 1, 2})
    first = list(device.opened)
    found.warm({0, 1, 2})
    try:
        found.send(torch.zeros(4), (found.rank + 1) % 3, TAG_COLLECTIVE + TAGS_PER_CHANNEL)
    except TestbedError as error:
        return first, device.opened, str(error)
    return first, device.opened, ""


def test_a_lane_is_made_once_for_each_direction() -> None:
    """To and from each of two peers: 4 lanes a process."""
    for rank, (first, again, error) in enumerate(on_processes(3, _lanes, world_type=LaneWorld)):
        assert sorted(first) == [nccl.SENDER] * 2 + [nccl.RECEIVER] * 2
        assert again == first
        assert f"process {rank} has no lane to process {(rank + 1) % 3} for channel 1" in error


def test_more_lanes_than_streams_are_refused() -> None:
    """16 peers, both ways, and one more: lanes that share a stream would wait for each other."""
    few = LaneWorld(None, 0, 18, "", store=None, device=StandIn())
    few._warm = set(range(18))
    with pytest.raises(TestbedError, match=r"need 34 communicators of NCCL.* has 32 streams"):
        few.warm(range(18))


def test_a_member_of_two_trees_needs_few_lanes() -> None:
    """At most three links in each tree, each with a lane up and one down."""
    for size in range(2, 65):
        groups = [Group(World(None, i, size), tuple(range(size)), i) for i in range(size)]
        lanes = [tree_lanes(group) for group in groups]
        assert max(map(len, lanes)) <= 12
        assert sum(map(len, lanes)) == 2 * len(set().union(*lanes))  # both ends know it


def _train(found: World, plan: Plan) -> tuple[list[float], int]:
    """Losses of this rank's part, and the number of times that a thread followed another."""
    trainer = build_trainer(found, plan)
    found.warm(trainer.peers(), trainer.lanes if isinstance(trainer, LaneTrainer) else None)
    losses = []
    for _ in range(STEPS):
        if isinstance(trainer, AheadTrainer):
            trainer.arm()
        trainer.iterate()
        losses.append(trainer.take_loss() or 0.0)
    device = getattr(found, "_device", None)
    return losses, device.num_forks if isinstance(device, StandIn) else 0


TRAINED: dict[str, tuple[dict[str, Any], bool]] = {
    "dtfm": ({"system": "dtfm"}, False),
    "dtfm, sharded parameter server": ({"system": "dtfm", "data_parallel": "sharded-ps"}, False),
    "megatron, interleaved": (
        {"system": "megatron", "schedule": "interleaved", "num_chunks": 2}, False),
    "megatron, zero-bubble": ({"system": "megatron", "schedule": "zero-bubble"}, False),
    "ddp": ({"system": "ddp", "layers": (4,), "bucket_bytes": 8192}, True),
    "ddp, two trees": ({"system": "ddp", "layers": (4,), "dp": 4, "data_parallel": "tree",
                        "bucket_bytes": 20_000}, True),
    "zero3": ({"system": "zero3", "layers": (4,), "dp": 2, "units": (2, 2)}, True),
    "zero3, hybrid": ({"system": "zero3", "layers": (4,), "dp": 4, "units": (2, 2),
                       "shard_ranks": 2}, True),
}  # fmt: skip
"""Changes to a plan, and whether threads communicate beside the layers: they must follow them."""


@pytest.mark.parametrize("case", TRAINED)
def test_every_trainer_runs_on_lanes(case: str) -> None:
    """Its losses are those of one process."""
    changes, has_threads = TRAINED[case]
    plan = real_plan(dtype="fp32", **changes)
    found = on_processes(plan.layout.num_ranks, _train, plan, world_type=LaneWorld)
    losses = [sum(of_ranks) for of_ranks in zip(*(losses for losses, _ in found), strict=True)]
    assert losses == pytest.approx(reference_losses(plan), rel=TOLERANCE["fp32"])
    assert all((num_forks > 0) == has_threads for _, num_forks in found)


def _through_copies(found: World) -> list[float]:
    """Send tensors as if they were elsewhere: what arrives is copied where it belongs."""
    copied = []
    world.is_elsewhere = lambda tensor: copied.append(tensor.data_ptr()) or True  # type: ignore[func-returns-value]
    found.warm([1 - found.rank])
    tensor = torch.arange(6.0) * (found.rank + 1)
    ring_all_reduce(Group.of(found, range(2)), tensor, RingCut())
    assert copied
    total: list[float] = tensor.tolist()
    return total


def test_gloo_sends_tensors_of_another_device_through_host_memory() -> None:
    assert on_processes(2, _through_copies) == [[0.0, 3.0, 6.0, 9.0, 12.0, 15.0]] * 2


@pytest.mark.parametrize(
    ("index", "num_devices", "visible", "expected"),
    [
        (0, 8, None, "0"),
        (7, 8, None, "7"),
        (9, 8, None, "1"),
        (1, 8, "4,5", "5"),
        (2, 8, "4,5", "4"),
        (0, 8, "GPU-8932f937-d72c", "GPU-8932f937-d72c"),
    ],
)
def test_a_rank_sees_its_own_device(
    index: int, num_devices: int, visible: str | None, expected: str
) -> None:
    """In the order of the ranks of its host; of those that its host lends."""
    assert choose_device(index, num_devices, visible) == expected


@pytest.mark.parametrize(("num_devices", "visible"), [(0, None), (8, ""), (8, " , ")])
def test_a_host_without_devices_is_an_error(num_devices: int, visible: str | None) -> None:
    with pytest.raises(TestbedError, match="no CUDA device that netbench may use; choose cpu"):
        choose_device(0, num_devices, visible)


def test_the_environment_is_set_before_cuda_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(os, "environ", environment := {"NCCL_NET": "IB"})
    nccl.prepare_process(2, {"NCCL_NET": "Socket"})
    assert environment == {"NCCL_NET": "Socket", "CUDA_VISIBLE_DEVICES": "2"}


def test_without_a_device_the_world_is_refused() -> None:
    with pytest.raises(TestbedError, match="torch sees no CUDA device here; choose cpu"):
        nccl.CudaDevice()


def test_a_world_without_streams_forks_nothing() -> None:
    assert isinstance(World(None, 0, 1).fork(), nullcontext)
