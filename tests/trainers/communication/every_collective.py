"""Every collective on every length and number of slices, in any world."""

from __future__ import annotations

from typing import Any

import torch

from netbench.plan.collectives import ChainCut, RingCut
from netbench.trainers.communication.collectives import (
    all_reduce_each,
    all_to_all_sum,
    chain_broadcast,
    chain_reduce,
    tree_lanes,
)
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.rings import (
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from netbench.trainers.communication.slices import sliced, split
from netbench.trainers.communication.world import World, both_ways

LENGTHS = (1, 5, 64, 103)
"""Elements: fewer than ranks or slices, divisible by either, and by neither."""

NUM_SLICES = (1, 4, 20)

CUTS = {"": None, " in passes": RingCut(slices=2, passes=3)}
"""Suffix of results, and the cut of a ring; None = into the number of slices."""


def inputs(size: int, length: int, device: str = "cpu") -> list[torch.Tensor]:
    """One tensor per member; whole numbers, so that sums are exact in any order."""
    generator = torch.Generator().manual_seed(size * 1000 + length)
    return [
        torch.randint(-99, 99, (length,), generator=generator).to(device, torch.float64)
        for _ in range(size)
    ]


def run_all(
    world: World, members: tuple[int, ...], ahead_bytes: float, device: str = "cpu"
) -> list[dict[str, Any]]:
    """Every collective on every length and number of slices: this member's results."""
    group = Group.of(world, members, ahead_bytes)
    others = set(members) - {world.rank}
    world.warm(set(members), both_ways(world.rank, others) | tree_lanes(group))
    results = []
    for length in LENGTHS:
        for num_slices in NUM_SLICES:
            mine = inputs(group.size, length, device)[group.index]
            result: dict[str, Any] = {"index": group.index}
            for name, collective in (("reduce", chain_reduce), ("broadcast", chain_broadcast)):
                tensor = mine.clone()
                collective(group, tensor, ChainCut(num_slices, ramp=1 + num_slices // 4))
                result[name] = tensor
            chunks = [
                (length * i // group.size, length * (i + 1) // group.size)
                for i in range(group.size)
            ]
            start, stop = chunks[group.index]
            for suffix, cut in CUTS.items():
                in_ring = cut or sliced(num_slices, group.size)
                result[f"all_reduce{suffix}"] = mine.clone()
                ring_all_reduce(group, result[f"all_reduce{suffix}"], in_ring)
                result[f"scattered{suffix}"] = mine.new_empty(stop - start)
                ring_reduce_scatter(group, result[f"scattered{suffix}"], mine, chunks, in_ring)
                gathered = torch.full_like(mine, -1)
                gathered[start:stop] = mine[start:stop]
                ring_all_gather(group, gathered, chunks, in_ring)
                result[f"gathered{suffix}"] = gathered
            result["exchanged"] = mine.clone()
            all_to_all_sum(group, result["exchanged"][start:stop], result["exchanged"], chunks)
            several = [mine[a:b].clone() for a, b in split(length, 3)]
            cuts = [None if index % 2 else RingCut(slices=2) for index in range(len(several))]
            all_reduce_each(group, several, cuts)
            result["all_reduce each"] = torch.cat(several)
            result["chunks"] = chunks
            # As lists: torch would pass a tensor as a file of the process it comes from.
            results.append(
                {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in result.items()}
            )
    return results
