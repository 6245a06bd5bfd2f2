"""DiLoCo: every rank trains by itself, and now and then all take one step together.

Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
(2023). A rank takes `Plan.local_steps` inner AdamW steps on its own share of every batch. Then all
average how far they have come, parameters before minus parameters after, and an outer optimizer,
SGD with Nesterov momentum, steps from where they had started with that average as its gradient.
Inner moments stay with their rank. An iteration is one inner step, on as many sequences in all as
any other system's; every `local_steps`-th is longer by the outer step.

What the outer step needs is on the CPU, in fp32 or more; a virtual device spends no time on it. The
average is made as NCCL's rings make it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from netbench.plan import Plan
from netbench.trainers.collectives import Group, count_slices, ring_all_reduce
from netbench.trainers.layers import DTYPES
from netbench.trainers.stage import Part, build_stage, run_micro_batches
from netbench.trainers.world import World


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


class Diloco:
    """One rank, with the whole model; logical rank = replica = place in the ring."""

    def __init__(self, world: World, plan: Plan, outer: Outer = NESTEROV) -> None:
        self._plan = plan
        (cost,) = plan.stages
        self._slices = count_slices(cost.gradient_bytes, plan.transport.chunk_bytes)
        # A ring cuts the differences into a part per replica, and those into slices.
        messages = max(self._slices, plan.layout.dp)
        self._replicas = Group.buffered(world, plan.placement, plan, cost.gradient_bytes / messages)
        dtype = torch.promote_types(DTYPES[plan.workload.dtype], torch.float32)
        part = Part(
            index=0,
            replica=self._replicas.index,
            gradient_dtype=dtype,
            gradient_messages=messages,
        )
        self._stage = build_stage(plan, part)
        self._start = self._stage.parameters.to("cpu", dtype, copy=True)
        self._outer = outer.build(self._start)
        self._num_steps = 0

    def peers(self) -> set[int]:
        return self._replicas.neighbours

    def arm(self) -> None:
        """Nothing is posted ahead: a ring posts all its receives when a rank comes to it."""

    def take_loss(self) -> float | None:
        return self._stage.take_loss()

    def iterate(self) -> dict[str, float]:
        forward_s, backward_s = run_micro_batches(self._stage, self._plan.num_micro_batches)
        computed_s = time.monotonic()
        # They are this replica's share of the batch's mean; it steps on the mean of its own part.
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
        """The outer step; all ranks go on from where it leads."""
        difference = (self._start - self._stage.parameters.to(self._start)) / self._plan.layout.dp
        ring_all_reduce(self._replicas, difference, self._slices)
        self._start.grad = difference
        self._outer.step()
        self._stage.load(self._start)
