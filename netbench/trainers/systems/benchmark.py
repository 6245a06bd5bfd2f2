"""Run one collective or transfer with `torch.distributed`, as gloo's users do.

Payloads are float32 and rounded up to a whole element per rank.
"""

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
import torch.distributed as dist

from netbench.plan.benchmark import CollectivePlan
from netbench.plan.collectives import COLLECTIVES
from netbench.trainers.communication.collectives import run_stages
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.world import World

Phases = dict[str, float]


class Benchmark:
    """One rank of a collective. full: (num_nodes * shard,) elements; shard, exchanged: see the ops.

    Plans run one after the other, so all of a process share one block of memory: a guest maps it
    page by page and cannot hold the tensors of every plan.
    """

    _memory: ClassVar[torch.Tensor] = torch.empty(0)

    def __init__(self, world: World, plan: CollectivePlan) -> None:
        self.rank, self.size = world.rank, world.size
        self.group = Group.of(world, range(world.size))
        self._run, has_shard, has_exchanged = OPERATIONS.get(plan.op) or _by_stages(plan)
        full, shard = plan.shard_elements * plan.num_nodes, plan.shard_elements
        ends = (full, full + shard * has_shard, (2 * full + shard) * has_exchanged)
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


class Operation(NamedTuple):
    """An op of torch.distributed, and the tensors it needs beside the full one."""

    run: Callable[[Benchmark], Phases]
    has_shard: bool = False
    has_exchanged: bool = False


def _by_stages(plan: CollectivePlan) -> Operation:
    """Run an op that torch.distributed does not have, with gloo's sends and receives."""
    stages = COLLECTIVES[plan.op].algorithms[plan.backend](plan.num_nodes)
    phase = plan.op.replace("-", "_") + "_s"
    return _one_call(phase, lambda rank: run_stages(rank.group, stages, rank.full))


def _one_call(
    phase: str, call: Callable[[Benchmark], object], *, has_shard: bool = False
) -> Operation:
    return Operation(lambda rank: _timed(**{phase: lambda: call(rank)}), has_shard)


def _p2p(rank: Benchmark) -> Phases:
    if rank.rank == 0:
        return _timed(transfer_s=lambda: dist.send(rank.full, 1))
    if rank.rank == 1:
        return _timed(transfer_s=lambda: dist.recv(rank.full, 0))
    return {}


def _central_ps(rank: Benchmark) -> Phases:
    """Rank 0 is the server: it sums the gradients and hands out the parameters."""
    return _timed(
        reduce_s=lambda: dist.reduce(rank.full, 0), broadcast_s=lambda: dist.broadcast(rank.full, 0)
    )


def _sharded_ps(rank: Benchmark) -> Phases:
    """Every rank is the server of one shard."""
    parts = rank.exchanged.view(rank.size, -1)
    return _timed(
        exchange_s=lambda: dist.all_to_all_single(rank.exchanged, rank.full),
        sum_s=lambda: torch.sum(parts, dim=0, out=rank.shard),
        gather_s=lambda: dist.all_gather_into_tensor(rank.full, rank.shard),
    )


OPERATIONS: Mapping[str, Operation] = {
    "p2p": Operation(_p2p),
    "all-reduce": _one_call("all_reduce_s", lambda rank: dist.all_reduce(rank.full)),
    "broadcast": _one_call("broadcast_s", lambda rank: dist.broadcast(rank.full, 0)),
    "reduce": _one_call("reduce_s", lambda rank: dist.reduce(rank.full, 0)),
    "all-gather": _one_call(
        "all_gather_s",
        lambda rank: dist.all_gather_into_tensor(rank.full, rank.shard),
        has_shard=True,
    ),
    "reduce-scatter": _one_call(
        "reduce_scatter_s",
        lambda rank: dist.reduce_scatter_tensor(rank.shard, rank.full),
        has_shard=True,
    ),
    "central-ps": Operation(_central_ps),
    "sharded-ps": Operation(_sharded_ps, has_shard=True, has_exchanged=True),
}
"""Collectives that torch.distributed runs; others are run stage by stage (`_by_stages`)."""


def _timed(**parts: Callable[[], object]) -> Phases:
    """Run the parts in order: seconds each."""
    phases = {}
    for name, part in parts.items():
        started_s = time.monotonic()
        part()
        phases[name] = time.monotonic() - started_s
    return phases
