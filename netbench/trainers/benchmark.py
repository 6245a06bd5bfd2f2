"""Collectives and transfers as gloo's users call them: `torch.distributed` and nothing beside it.

Payloads are float32 and rounded up to a whole element per rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

import torch
import torch.distributed as dist

from netbench.plan.collective import CollectivePlan
from netbench.trainers.world import World

Phases = dict[str, float]


class Benchmark:
    """One rank of a collective. full: (num_nodes * shard,) elements; shard, exchanged: see the ops.

    Plans run one after the other, so all of a process share one block of memory: a guest maps it
    page by page and cannot hold the tensors of every plan.
    """

    _memory: ClassVar[torch.Tensor] = torch.empty(0)

    def __init__(self, world: World, plan: CollectivePlan) -> None:
        self.rank, self.size = world.rank, world.size
        self._run = OPERATIONS[plan.op]
        full, shard = plan.shard_elements * plan.num_nodes, plan.shard_elements
        ends = (
            full,
            full + (shard if plan.op in ("all-gather", "reduce-scatter", "sharded-ps") else 0),
            2 * full + shard if plan.op == "sharded-ps" else 0,
        )
        self._bounds = tuple(pairwise((0, *ends)))
        if Benchmark._memory.numel() < max(ends):
            Benchmark._memory = torch.zeros(max(ends))
        self.arm()

    def peers(self) -> set[int]:
        return set(range(self.size)) - {self.rank}

    def arm(self) -> None:
        self.full, self.shard, self.exchanged = (
            Benchmark._memory[start:stop] for start, stop in self._bounds
        )

    def take_loss(self) -> None:
        """Nothing is learnt."""

    def iterate(self) -> Phases:
        """Run it once: seconds by part."""
        return self._run(self)


def _p2p(rank: Benchmark) -> Phases:
    if rank.rank == 0:
        return _timed(transfer_s=lambda: dist.send(rank.full, 1))
    if rank.rank == 1:
        return _timed(transfer_s=lambda: dist.recv(rank.full, 0))
    return {}


def _all_reduce(rank: Benchmark) -> Phases:
    return _timed(all_reduce_s=lambda: dist.all_reduce(rank.full))


def _broadcast(rank: Benchmark) -> Phases:
    return _timed(broadcast_s=lambda: dist.broadcast(rank.full, 0))


def _reduce(rank: Benchmark) -> Phases:
    return _timed(reduce_s=lambda: dist.reduce(rank.full, 0))


def _all_gather(rank: Benchmark) -> Phases:
    return _timed(all_gather_s=lambda: dist.all_gather_into_tensor(rank.full, rank.shard))


def _reduce_scatter(rank: Benchmark) -> Phases:
    return _timed(reduce_scatter_s=lambda: dist.reduce_scatter_tensor(rank.shard, rank.full))


def _central_ps(rank: Benchmark) -> Phases:
    """Rank 0 is the server: it sums the gradients and hands out the parameters."""
    return _timed(
        reduce_s=lambda: dist.reduce(rank.full, 0),
        broadcast_s=lambda: dist.broadcast(rank.full, 0),
    )


def _sharded_ps(rank: Benchmark) -> Phases:
    """Every rank is the server of one shard."""
    parts = rank.exchanged.view(rank.size, -1)
    return _timed(
        exchange_s=lambda: dist.all_to_all_single(rank.exchanged, rank.full),
        sum_s=lambda: torch.sum(parts, dim=0, out=rank.shard),
        gather_s=lambda: dist.all_gather_into_tensor(rank.full, rank.shard),
    )


OPERATIONS: dict[str, Callable[[Benchmark], Phases]] = {
    "p2p": _p2p,
    "all-reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "central-ps": _central_ps,
    "sharded-ps": _sharded_ps,
}


def _timed(**parts: Callable[[], object]) -> Phases:
    """Run the parts in order: seconds each."""
    phases = {}
    for name, part in parts.items():
        started_s = time.monotonic()
        part()
        phases[name] = time.monotonic() - started_s
    return phases
