"""Collectives on loopback processes, against torch's own arithmetic and their specifications."""

from __future__ import annotations

import math

import pytest
import torch

from netbench.plan.collectives import COLLECTIVES
from netbench.trainers.communication.collectives import (
    NumberSum,
    run_stages,
    tree_all_reduce,
    tree_peers,
)
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.slices import equal_chunks
from netbench.trainers.communication.world import PendingTransfer, World
from tests.hops import carry_out
from tests.trainers.communication.every_collective import LENGTHS, NUM_SLICES, inputs, run_all
from tests.trainers.processes import on_processes


@pytest.mark.parametrize("size", range(2, 9))
def test_collectives_give_what_torch_computes(size: int) -> None:
    """Sums, copies and parts of all members' tensors, in an order that is not by process."""
    members = tuple((3 * i + 1) % size for i in range(size)) if size % 3 else (*range(size),)[::-1]
    by_process = on_processes(size, run_all, members, (math.inf, 0.0, 100.0)[size % 3])
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


def _sum_numbers(world: World, members: list[int]) -> list[float]:
    summed = NumberSum(Group.of(world, members))
    world.warm(summed.peers)
    found = []
    for iteration in range(2):
        summed.open(3)
        found += [summed.run(100.0 * iteration + 10.0 * i + world.rank) for i in range(3)]
    return found


@pytest.mark.parametrize("size", [2, 3, 8])
def test_numbers_are_summed_time_and_again(size: int) -> None:
    """In two iterations, each with the receives of one sum posted ahead, and none in the end."""
    members = [(i + 1) % size for i in range(size)]
    ranks = sum(range(size))
    expected = [size * (100.0 * k + 10.0 * i) + ranks for k in range(2) for i in range(3)]
    assert on_processes(size, _sum_numbers, members) == [expected] * size


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
