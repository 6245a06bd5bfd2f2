"""Groups of processes: their barrier, the pace of their slices, and how many are posted."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch

from netbench.plan.collectives import RingCut
from netbench.trainers.communication.group import Barrier, Group
from netbench.trainers.communication.rings import ring_all_gather
from netbench.trainers.communication.world import World
from tests.trainers.processes import on_processes


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


class _Posts:
    """Counts the receives posted so far; all of them are done."""

    def __init__(self) -> None:
        self.count = 0

    def recv(self, tensors: list[torch.Tensor], process: int, tag: int) -> _Posts:
        self.count += 1
        return self

    def wait(self) -> None:
        pass


@pytest.mark.parametrize(
    ("ahead_bytes", "expected"),
    [(0, [1, 2, 3, 4, 5]), (1, [2, 3, 4, 5, 5]), (30, [3, 3, 4, 5, 5]), (math.inf, [5] * 5)],
)
def test_slices_are_posted_as_far_ahead_as_buffers_reach(
    ahead_bytes: float, expected: list[int]
) -> None:
    """Slices of 10, 20, 30, 40 and 50 bytes: how many are posted before and after each came.
    At least these bytes beside the slice that is waited for, as soon as one has arrived."""
    posts = _Posts()
    group = Group.of(World(posts, 0, 2), (0, 1), ahead_bytes)
    slices = [torch.zeros(size, dtype=torch.uint8) for size in (10, 20, 30, 40, 50)]
    arriving = group.receive(slices)
    found = [posts.count]
    for _ in range(4):
        next(arriving)
        found.append(posts.count)
    assert found == expected
    assert [len(tensor) for tensor in arriving] == [50]


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
