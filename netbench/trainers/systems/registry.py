"""The trainers of the training systems. One is built per plan on every rank, and run often."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from netbench.errors import TestbedError
from netbench.plan.benchmark import CollectivePlan
from netbench.plan.experiment import Experiment
from netbench.plan.model import Plan
from netbench.systems import system_of
from netbench.trainers.communication.peers import Decide
from netbench.trainers.communication.world import Lane, World
from netbench.trainers.systems.benchmark import Benchmark

Phases = dict[str, float]
"""Seconds: forward_s, backward_s, sync_s, optimizer_s, or a collective's parts, e.g. reduce_s.
They add up to the rank's iteration."""


class Trainer(Protocol):
    """One rank's part of a training system."""

    def peers(self) -> set[int]:
        """Return the processes this rank exchanges data with. They list it too."""

    def iterate(self) -> Phases:
        """Run one iteration."""

    def take_loss(self) -> float | None:
        """Return this rank's term of the batch's mean loss; None if it has none."""


@runtime_checkable
class AheadTrainer(Protocol):
    """A trainer that prepares an iteration before the common start."""

    def arm(self) -> None:
        """Post receives."""


@runtime_checkable
class LaneTrainer(Protocol):
    """A trainer whose transfers have channels, or do not go both ways.

    lanes: those of this rank (`World.warm`).
    """

    @property
    def lanes(self) -> set[Lane] | None: ...


@runtime_checkable
class PacedTrainer(Protocol):
    """A trainer whose connections carry less than the network.

    rates: bytes/s of payload to a process, which has one to this process too.
    """

    @property
    def rates(self) -> dict[int, float]: ...


@runtime_checkable
class ElasticTrainer(Trainer, Protocol):
    """A trainer whose peers may leave and join (see `protocol`).

    address: of this peer, for others; None if none may leave. decide: see `hivemind.HivemindRank`.
    """

    decide: Decide | None

    @property
    def address(self) -> str | None: ...

    def meet(self, members: Mapping[int, str], epoch: int, new: Sequence[int]) -> None:
        """Connect to these peers; new ones receive the state from one that is not new."""


@runtime_checkable
class CountingTrainer(Protocol):
    """A trainer whose iterations differ in the samples that reach the model.

    samples: of this rank, with the last iteration.
    """

    samples: int


def build_trainer(world: World, plan: Experiment) -> Trainer:
    """This rank's part of a plan of either kind, on its own device.

    A trainer is built with the world and the plan. Raises TestbedError for a system without one.
    """
    if isinstance(plan, CollectivePlan):
        return Benchmark(world, plan)
    module, _, name = system_of(plan).trainer_of(plan).partition(":")
    if not name:
        raise TestbedError(f"{plan.system} has no trainer")
    build: Callable[[World, Plan], Trainer] = getattr(importlib.import_module(module), name)
    # Peers must know how fast the others are.
    return build(world, plan if system_of(plan).has_peers else plan.on_device(world.rank))
