"""DiLoCo: every rank trains by itself, and periodically all take one outer step together.

Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
(2023). A rank takes `Plan.local_steps` inner AdamW steps on its part of every batch. Then all ranks
average their differences, parameters before minus parameters after. An outer optimizer, SGD with
Nesterov momentum, steps from the starting point with that average as its gradient. Inner moments
stay with their rank. An iteration is one inner step on the whole batch; every `local_steps`-th
iteration also has the outer step.

The state of the outer step is on the CPU, in fp32 or more; a virtual device spends no time on it.
The average is an all-reduce in a ring, as NCCL's.
"""

import time
from dataclasses import dataclass

import torch

from netbench.plan.model import Plan
from netbench.trainers.communication.collectives import Group, count_slices, ring_all_reduce
from netbench.trainers.communication.world import World
from netbench.trainers.layers.stage import StageRole, build_stage, gradient_dtype, run_micro_batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    """The outer optimizer. learning_rate, momentum: dimensionless; Nesterov's where it is not 0.

    Source of the values: Douillard et al. 2023, section 3.
    """

    learning_rate: float = 0.7
    momentum: float = 0.9

    def build(self, parameters: torch.Tensor) -> torch.optim.Optimizer:
        """Steps on `parameters`, in place."""
        return torch.optim.SGD(
            [parameters], self.learning_rate, self.momentum, nesterov=self.momentum > 0
        )


NESTEROV = Outer()


class DilocoRank:
    """One rank, with the whole model; logical rank = replica = place in the ring."""

    def __init__(self, world: World, plan: Plan, outer: Outer = NESTEROV) -> None:
        self._plan = plan
        (cost,) = plan.stages
        self._slices = count_slices(plan, cost.gradient_bytes)
        # A ring cuts the differences into a part per replica, and those into slices.
        messages = max(self._slices, plan.layout.dp)
        self._replicas = Group.buffered(world, plan.placement, plan, cost.gradient_bytes / messages)
        dtype = gradient_dtype(plan)
        part = StageRole(
            index=0, replica=self._replicas.index, gradient_dtype=dtype, gradient_messages=messages
        )
        self._stage = build_stage(plan, part)
        self._start = self._stage.parameters.to("cpu", dtype, copy=True)
        self._outer = outer.build(self._start)
        self._num_steps = 0

    def peers(self) -> set[int]:
        return self._replicas.neighbours

    def take_loss(self) -> float | None:
        return self._stage.take_loss()

    def iterate(self) -> dict[str, float]:
        forward_s, backward_s = run_micro_batches(self._stage, self._plan.num_micro_batches)
        computed_s = time.monotonic()
        # Gradients are of this replica's term of the batch's mean; it steps on its part's own mean.
        self._stage.gradients.mul_(self._plan.layout.dp)
        self._stage.update()
        optimizer_s = time.monotonic() - computed_s
        self._num_steps += 1
        if self._num_steps % self._plan.local_steps == 0:
            self._step_together()
        return {
            "forward_s": forward_s,
            "backward_s": backward_s,
            "sync_s": time.monotonic() - computed_s - optimizer_s,
            "optimizer_s": optimizer_s,
        }

    def _step_together(self) -> None:
        """Take the outer step, from which all ranks continue."""
        difference = (self._start - self._stage.parameters.to(self._start)) / self._plan.layout.dp
        ring_all_reduce(self._replicas, difference, self._slices)
        self._start.grad = difference
        self._outer.step()
        self._stage.load(self._start)
