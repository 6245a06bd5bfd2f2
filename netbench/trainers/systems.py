"""The training systems by name. A system is built once per plan on every rank, and run often."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from netbench.plan import Plan
from netbench.plan.collective import CollectivePlan
from netbench.plan.experiment import Experiment
from netbench.trainers.benchmark import Benchmark
from netbench.trainers.ddp import Ddp
from netbench.trainers.diloco import Diloco
from netbench.trainers.dtfm import Dtfm
from netbench.trainers.hivemind import Hivemind, Verdict
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


@runtime_checkable
class Elastic(System, Protocol):
    """A system whose peers may go and come: see `protocol`.

    address: where others reach this one. decide: `hivemind.Hivemind`.
    """

    decide: Callable[[bool], Verdict] | None

    @property
    def address(self) -> str: ...

    def meet(self, members: Mapping[int, str], epoch: int, new: Sequence[int]) -> None:
        """Connect to these peers; give the new ones what they need, or take it, being new."""


SYSTEMS: dict[str, Callable[[World, Plan], System]] = {
    "ddp": Ddp,
    "dtfm": Dtfm,
    "megatron": Megatron,
    "zero3": Zero3,
    "diloco": Diloco,
    "hivemind": Hivemind,
}


def build_system(world: World, plan: Experiment) -> System:
    """This rank's part of a plan of either kind, on its own device."""
    if isinstance(plan, CollectivePlan):
        return Benchmark(world, plan)
    return SYSTEMS[plan.system](world, plan.on_device(world.rank))
