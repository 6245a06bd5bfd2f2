"""Sharded layers and their collectives, on loopback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from netbench.trainers.communication.world import World
from netbench.trainers.layers.sharding import Collectives, Mesh, shard
from tests.trainers.processes import on_processes

MESHES = [((0, 1), 0), ((2, 0, 3, 1), 0), ((0, 1, 2, 3), 2), ((2, 0, 3, 1), 2)]
"""(placement, shard_ranks)."""


def _mesh(world: World, placement: Sequence[int], shard_ranks: int) -> Mesh:
    mesh = Mesh.of(world, placement, shard_ranks)
    world.warm(mesh.peers)
    return mesh


def _train_linear(
    world: World, placement: Sequence[int], shard_ranks: int, steps: int
) -> tuple[Any, Any, Any]:
    mesh = _mesh(world, placement, shard_ranks)
    collectives = Collectives(mesh)
    torch.manual_seed(1)  # the same weights everywhere
    layer = nn.Linear(3, 8, bias=False)
    whole = layer.weight.detach().clone()
    shard(layer, mesh, collectives, keep=False)
    for step in range(steps):
        layer.zero_grad()
        collectives.is_last_step = step == steps - 1
        output = layer(torch.eye(3)[:1] * (world.rank + 1) * 10**step)
        output.sum().backward()
        collectives.finish()
    assert isinstance(layer.weight.grad, DTensor)
    return whole.tolist(), output.detach().tolist(), layer.weight.grad.to_local().tolist()


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("placement", "shard_ranks"), MESHES)
def test_weights_are_gathered_and_gradients_are_sums(
    placement: tuple[int, ...], shard_ranks: int, steps: int
) -> None:
    """Process p's input of step t is (p + 1) 10^t times a unit vector, so the gradient of every row
    is (1 + ... + n) x 1, 11 or 111, in every shard of every copy."""
    size = len(placement)
    results = on_processes(size, _train_linear, placement, shard_ranks, steps)
    for process, (whole, output, gradient) in enumerate(results):
        column = torch.tensor(whole)[:, 0] * (process + 1) * 10 ** (steps - 1)
        assert torch.allclose(torch.tensor(output)[0], column)
        expected = torch.zeros(8 // (shard_ranks or size), 3)
        expected[:, 0] = size * (size + 1) / 2 * sum(10**step for step in range(steps))
        assert gradient == expected.tolist()


def _shard_of(world: World, placement: Sequence[int], shard_ranks: int) -> tuple[Any, ...]:
    mesh = _mesh(world, placement, shard_ranks)
    layer = nn.Linear(1, 4, bias=False)
    layer.weight.data = torch.arange(4.0)[:, None]
    shard(layer, mesh, Collectives(mesh), keep=False)
    assert isinstance(layer.weight, DTensor)
    return mesh.inside.members, mesh.across.members, layer.weight.to_local().flatten().tolist()


def test_groups_are_neighbours_in_the_order_of_ranks() -> None:
    """Ranks 0 and 1 share a copy, 2 and 3 another: placed anywhere, the first of each group holds
    the first half, and those with the same half sum across."""
    placement = (2, 0, 1, 3)
    results = on_processes(4, _shard_of, placement, 2)
    by_rank = [results[process] for process in placement]
    first, second = [0.0, 1.0], [2.0, 3.0]
    assert by_rank == [
        ((2, 0), (2, 1), first),
        ((2, 0), (0, 3), second),
        ((1, 3), (2, 1), first),
        ((1, 3), (0, 3), second),
    ]


def _collect(world: World, placement: Sequence[int]) -> tuple[list[float], list[float]]:
    collectives = Collectives(_mesh(world, placement, 0))
    gathered = torch.zeros(2 * world.size)
    gathered[2 * world.rank : 2 * world.rank + 2] = torch.tensor([world.rank, -1.0])
    collectives.all_gather(gathered).wait()
    scattered = torch.empty(2)
    tensor = torch.arange(2.0 * world.size) * (world.rank + 1)
    collectives.reduce_scatter(scattered, tensor, None)
    collectives.finish()
    return gathered.tolist(), scattered.tolist()


@pytest.mark.parametrize("placement", [(1, 0), (2, 0, 3, 1)])
def test_parts_belong_to_processes_whatever_the_placement(placement: tuple[int, ...]) -> None:
    """In one group, process p contributes and receives part p, as FSDP lays them out."""
    size = len(placement)
    for process, (gathered, scattered) in enumerate(on_processes(size, _collect, placement)):
        assert gathered == [x for p in range(size) for x in (float(p), -1.0)]
        factor = size * (size + 1) // 2
        assert scattered == [2.0 * process * factor, (2.0 * process + 1) * factor]
