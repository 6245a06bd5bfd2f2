"""The training systems by name. A system is built once per plan on every rank, and run often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from netbench.plan import Plan
from netbench.plan.collective import CollectivePlan, Experiment
from netbench.trainers.benchmark import Benchmark
from netbench.trainers.dtfm import Dtfm
from netbench.trainers.megatron import Megatron
from netbench.trainers.world import World
from netbench.trainers.zero3 import Zero3

Phases = dict[str, float]
"""Seconds: forward_s, backward_s, sync_s, optimizer_s, or a collective's parts, e.g. reduce_s.
They add up to the rank's iteration."""


class System(Protocol):
    """One rank's part of a training system."""

    def peers(self) -> set[int]:
        """Processes this rank exchanges data with; they list this one too."""

    def arm(self) -> None:
        """Get ready for an iteration: post receives. Before the common start."""

    def iterate(self) -> Phases:
        """Run one iteration."""

    def take_loss(self) -> float | None:
        """This rank's share of the batch's mean loss in that iteration; None: has none."""


SYSTEMS: dict[str, Callable[[World, Plan], System]] = {
    "dtfm": Dtfm,
    "megatron": Megatron,
    "zero3": Zero3,
}


def build_system(world: World, plan: Experiment) -> System:
    """This rank's part of a plan of either kind."""
    if isinstance(plan, CollectivePlan):
        return Benchmark(world, plan)
    return SYSTEMS[plan.system](world, plan)
