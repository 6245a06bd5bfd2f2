"""Collectives on loopback processes, against torch's own arithmetic and their specifications."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from netbench.plan.collectives import COLLECTIVES, RingCut
from netbench.plan.model import Plan
from netbench.trainers.communication.collectives import run_stages, tree_all_reduce, tree_peers
from netbench.trainers.communication.group import Barrier, Group
from netbench.trainers.communication.rings import ring_all_gather
from netbench.trainers.communication.slices import count_slices, equal_chunks, split, tree_slices
from netbench.trainers.communication.world import PendingTransfer, World
from tests.hops import carry_out
from tests.trainers.communication.every_collective import LENGTHS, NUM_SLICES, inputs, run_all
from tests.trainers.processes import on_processes


@pytest.mark.parametrize("size", range(2, 9))
def test_collectives_give_what_torch_computes(size: int) -> None:
    """Sums, copies and parts of all members' tensors, in an order that is not by process."""
    members = tuple((3 * i + 1) % size for i in range(size)) if size % 3 else (*range(size),)[::-1]
    by_process = on_processes(size, run_all, members, size % 3)
    cases = [(length, num_slices) for length in LENGTHS for num_slices in NUM_SLICES]
    for process, results in enumerate(by_process):
        for (length, _), result in zip(cases, results, strict=True):
            tensors = inputs(size, length)
            index, total = members.index(process), torch.stack(tensors).sum(0)
            assert result["index"] == index
            chunks = result["chunks"]
            start, stop = chunks[index]
            expected = {
                "reduce": total if index == 0 else tensors[index],
                "broadcast": tensors[0],
                "all_reduce": total,
                "all_reduce in passes": total,
                "all_reduce each": total,
                "scattered": total[start:stop],
                "scattered in passes": total[start:stop],
                "exchanged": torch.cat(
                    [tensors[index][:start], total[start:stop], tensors[index][stop:]]
                ),
                "gathered": torch.cat([t[a:b] for t, (a, b) in zip(tensors, chunks, strict=True)]),
            }
            expected["gathered in passes"] = expected["gathered"]
            for name, tensor in expected.items():
                assert result[name] == tensor.tolist(), (name, length, index)
            assert chunks == equal_chunks(length, size)


def pass_barriers(world: World) -> list[tuple[float, float]]:
    group = Group.of(world, range(world.size))
    barrier = Barrier(group)
    world.warm(barrier.peers)
    passed = []
    for late in range(world.size):
        if world.rank == late:
            time.sleep(0.02)  # what is measured: the others must wait for this
        came_s = time.monotonic()
        barrier.wait()
        passed.append((came_s, time.monotonic()))
    return passed


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_nobody_leaves_a_barrier_before_all_have_come(size: int) -> None:
    """Every member in turn is late; the first to leave leaves after the last has come."""
    by_process = on_processes(size, pass_barriers)
    for passed in zip(*by_process, strict=True):
        assert min(left for _, left in passed) >= max(came for came, _ in passed)


def test_slices_fill_a_tensor_once_and_in_order() -> None:
    """Nearly equal, none empty, also when there are more slices than elements."""
    assert split(10, 3) == [(0, 3), (3, 6), (6, 10)]
    assert split(2, 5) == [(0, 1), (1, 2)]
    assert split(0, 4) == []


def test_a_collective_is_sliced_by_the_chunk_up_to_a_bound(plan_of: Callable[..., Plan]) -> None:
    """4 MiB chunks: 296 MB would be 71 slices; emulating more than 32 gains nothing."""
    plan = plan_of()
    assert count_slices(plan, 1000) == 1
    assert count_slices(plan, 40 << 20) == 10
    assert count_slices(plan, 296e6) == plan.transport.max_slices == 32


@pytest.mark.parametrize(
    ("mib", "size", "passes"), [(0.001, 4, 1), (16, 4, 1), (17, 4, 2), (296, 8, 10)]
)
def test_a_ring_passes_on_four_mebibytes_per_member_in_two_slices(
    plan_of: Callable[..., Plan], mib: float, size: int, passes: int
) -> None:
    cut = plan_of().transport.ring_cut(mib * 2**20, size)
    assert cut == RingCut(slices=2, passes=passes)
    assert cut.num_messages == 2 * passes


def test_tree_slices_are_a_mebibyte_of_each_half(plan_of: Callable[..., Plan]) -> None:
    """A bucket of 24 MiB has 12; there are never more than 32."""
    assert [tree_slices(plan_of(), mib * 2**20) for mib in (1, 24, 500)] == [1, 12, 32]


class CountingWorld(World):
    """Counts the bytes that this process sends."""

    sent_bytes = 0

    def send(self, tensor: torch.Tensor, process: int, tag: int) -> PendingTransfer:
        self.sent_bytes += tensor.nbytes
        return super().send(tensor, process, tag)


def _sum(world: CountingWorld, members: list[int], length: int) -> tuple[list[float], int]:
    """Three times, so that what is left of one would be found in the next."""
    group = Group.of(world, members)
    world.warm(tree_peers(group))
    before = world.sent_bytes
    for round_ in range(3):
        tensor = torch.arange(length, dtype=torch.float64) * (world.rank + 1) + round_
        tree_all_reduce(group, tensor, num_slices=4)
    return tensor.tolist(), world.sent_bytes - before


@pytest.mark.parametrize(
    ("members", "length"),
    [([0], 8), ([1, 0], 8), ([2, 0, 1], 9), ([3, 1, 0, 2], 40), ([0, 1, 2, 3, 4, 5], 1)],
)
def test_every_member_has_the_sum_of_all(members: list[int], length: int) -> None:
    """Whatever the order of members, and though there be fewer elements than slices; together they
    send 2 (n - 1) times the tensor, all-reduces being three."""
    n = len(members)
    found = on_processes(n, _sum, members, length, world_type=CountingWorld)
    total = n * (n + 1) / 2
    for values, _ in found:
        assert values == [total * i + 2 * n for i in range(length)]
    assert sum(sent for _, sent in found) == 3 * 2 * (n - 1) * length * 8


def _sum_all_ways(world: World, names: list[tuple[str, str]]) -> list[list[float]]:
    """Each member's tensor after every algorithm, from arange(23) * (rank + 1)."""
    group = Group.of(world, range(world.size))
    world.warm(range(world.size))
    results = []
    for library, name in names:
        tensor = torch.arange(23, dtype=torch.float64) * (world.rank + 1)
        stages = COLLECTIVES[name].algorithms[library](world.size)
        run_stages(group, stages, tensor, num_slices=3)
        results.append(tensor.tolist())
    return results


@pytest.mark.parametrize("n", [2, 3, 6])
def test_the_executor_does_what_a_specification_says(n: int) -> None:
    """Every registered algorithm ends like its hops done one by one on lists."""
    names = [(lib, name) for name, c in COLLECTIVES.items() for lib in c.algorithms]
    found = on_processes(n, _sum_all_ways, names)
    for index, (library, name) in enumerate(names):
        stages = COLLECTIVES[name].algorithms[library](n)
        tensors = [[float(i * (rank + 1)) for i in range(23)] for rank in range(n)]
        final = carry_out(stages, tensors)
        for rank in range(n):
            for i in range(23):
                if final[rank][i] is not None:
                    assert found[rank][index][i] == final[rank][i], (library, name, rank, i)


PACE_S, LENGTH = 1e-7, 400_000


def _paced_gather(world: World) -> float:
    group = replace(Group.of(world, [0, 1]), pace_s=PACE_S if world.rank else 0.0)
    tensor = torch.zeros(2 * LENGTH, dtype=torch.uint8)
    started_s = time.monotonic()
    ring_all_gather(group, tensor, [(0, LENGTH), (LENGTH, 2 * LENGTH)], RingCut(slices=8))
    return time.monotonic() - started_s


def test_slices_come_no_faster_than_a_group_is_paced() -> None:
    """Eight slices of 50 kB, seven times 5 ms apart; loopback takes less than 1 ms for each."""
    _, paced_s = on_processes(2, _paced_gather)
    assert paced_s >= LENGTH * PACE_S * 7 / 8
