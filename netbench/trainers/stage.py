"""What a rank trains: layers of the model, virtual or real. The parallel code does not know which.

A boundary tensor is an activation, or its gradient, of one micro-batch in the plan's dtype, handed
over as 1-D uint8: (boundary_bytes,).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from netbench.plan import Plan
from netbench.trainers.links import payload_bytes
from netbench.trainers.real import RealStage
from netbench.trainers.virtual import VirtualStage


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Which part of the training a stage is.

    index: of the model's parts (stages x chunks), in the order of the layers. replica: of the data
    parallel replicas. gradient_dtype: what gradients are summed in. gradient_messages: as how many
    they are sent. updating: ranks of its node that update at the same time.
    """

    index: int
    replica: int
    gradient_dtype: torch.dtype
    gradient_messages: int
    updating: int = 1


class Stage(Protocol):
    """Layers of the model with their gradients and optimizer.

    gradients: (elements,), summed over the micro-batches since the last `zero_gradients`, of this
    replica's share of the batch's mean loss; data parallelism sums them over replicas, in place.
    parameters: (elements,), in the same order; what a parameter server hands out.
    chunk: which of the rank's model chunks it is.
    """

    gradients: torch.Tensor
    parameters: torch.Tensor
    chunk: int

    def forward(self, micro_batch: int, activation: torch.Tensor | None) -> torch.Tensor:
        """Activations in (None on the first part), activations out.

        What is passed in may be overwritten once this returns.
        """

    def backward(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Gradient of the output in (None on the last part), gradient of the input out."""

    def update(self) -> None:
        """Let the optimizer step on `gradients`, then zero them. A new iteration begins."""

    def zero_gradients(self) -> None:
        """Where another rank updates: throw the gradients away. A new iteration begins."""

    def take_loss(self) -> float | None:
        """This rank's share of the batch's mean loss since it was last asked; None: has none.

        The shares of all ranks add up to the mean loss.
        """


def build_stage(plan: Plan, part: Part) -> Stage:
    """The layers of `part`, on the device that the plan computes on (`Plan.compute`)."""
    if plan.compute != "virtual":
        return RealStage(plan, part)
    cost = plan.stages[part.index % plan.layout.pp]
    num_bytes = payload_bytes(
        cost.gradient_bytes / plan.num_chunks, plan.scale, part.gradient_messages
    )
    elements = max(1, num_bytes // part.gradient_dtype.itemsize)
    stage = VirtualStage(
        forward_s=cost.forward_s / plan.num_chunks,
        backward_s=cost.backward_s / plan.num_chunks,
        optimizer_s=cost.optimizer_s * part.updating / plan.num_chunks,
        boundary_bytes=boundary_bytes(plan),
        gradients=torch.zeros(elements, dtype=part.gradient_dtype),
    )
    stage.chunk = part.index // plan.layout.pp
    return stage


def boundary_bytes(plan: Plan) -> int:
    """Size of a boundary tensor once scaled."""
    return payload_bytes(plan.activation_bytes, plan.scale)
