"""All-reduce over two trees."""

from __future__ import annotations

import pytest
import torch

from netbench.simulator import collectives as simulated
from netbench.trainers.collectives import Group
from netbench.trainers.tree import double_tree, tree_all_reduce, tree_peers, tree_slices
from netbench.trainers.world import Work, World
from tests.trainers.processes import on_processes


@pytest.mark.parametrize("n", range(1, 40))
def test_trees_are_those_of_the_simulator(n: int) -> None:
    """Which has them from NCCL too, written apart."""
    ours, theirs = double_tree(n), simulated.double_tree(n)
    assert [list(tree) for tree in ours] == [tree.tolist() for tree in theirs]


@pytest.mark.parametrize("n", range(2, 33, 2))
def test_who_is_a_leaf_of_one_tree_is_none_of_the_other(n: int) -> None:
    """All have somebody below them in one tree at most, and in one at least but for the root's."""
    inner = [set(tree) - {-1} for tree in double_tree(n)]
    assert not inner[0] & inner[1]
    assert len(inner[0]) == len(inner[1]) == n // 2


class CountingWorld(World):
    """Counts the bytes that this process sends."""

    sent_bytes = 0

    def send(self, tensor: torch.Tensor, process: int, tag: int) -> Work:
        self.sent_bytes += tensor.nbytes
        return super().send(tensor, process, tag)


def _sum(world: CountingWorld, members: list[int], length: int) -> tuple[list[float], int]:
    """Three times, so that what is left of one would be found in the next."""
    group = Group.of(world, members)
    world.warm(tree_peers(members, group.index))
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


def test_slices_are_a_mebibyte_of_each_half() -> None:
    """Of a bucket of 24 MiB, 12; never more than 32."""
    assert [tree_slices(mib * 2**20) for mib in (1, 24, 500)] == [1, 12, 32]
