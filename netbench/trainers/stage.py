"""What a rank trains: layers of the model, virtual or real. The parallel code does not know which.

A boundary tensor is an activation, or its gradient, of one micro-batch in the plan's dtype, handed
over as 1-D uint8: (boundary_bytes,).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from netbench.plan import Plan
from netbench.plan.tensor import message_bytes, num_passes
from netbench.trainers.collectives import Group
from netbench.trainers.layers import DTYPES
from netbench.trainers.links import payload_bytes
from netbench.trainers.named import NamedStage
from netbench.trainers.real import OPTIMIZERS, RealStage, adam
from netbench.trainers.tensor import SharedCompute
from netbench.trainers.virtual import VirtualOptimizer, VirtualStage


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Which part of the training a stage is.

    index: of the model's parts (stages x chunks), in the order of the layers. replica: of the data
    parallel replicas. gradient_dtype: what gradients are summed in. gradient_messages: as how many
    they are sent. updating: ranks of its node that update at the same time. shard: (i, n), of the
    parameters, cut into n equal parts, it updates the i-th. tensor_group: ranks that share its
    layers, by tensor index.
    """

    index: int
    replica: int
    gradient_dtype: torch.dtype
    gradient_messages: int
    updating: int = 1
    shard: tuple[int, int] = (0, 1)
    tensor_group: Group | None = None


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

    def backward_input(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """`backward` without the gradients of weights, which `backward_weight` adds later."""

    def backward_weight(self, micro_batch: int) -> None:
        """The gradients of weights that `backward_input` has left."""

    def update(self) -> None:
        """Let the optimizer step on `gradients`, then zero them. A new iteration begins."""

    def load(self, parameters: torch.Tensor) -> None:
        """Go on from these: (elements,), in any dtype, on any device."""

    def zero_gradients(self) -> None:
        """Where another rank updates: throw the gradients away. A new iteration begins."""

    def skip(self, num_micro_batches: int) -> None:
        """Leave so many micro-batches of this iteration to others."""

    def take_loss(self) -> float | None:
        """This rank's share of the batch's mean loss since it was last asked; None: has none.

        The shares of all ranks add up to the mean loss.
        """


class Optimizer(Protocol):
    """What hivemind needs of `torch.optim.Optimizer`."""

    def step(self) -> object:
        """Step on the gradients of the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """All but the parameters."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""


def build_stage(plan: Plan, part: Part) -> Stage:
    """The layers of `part`, on the device that the plan computes on (`Plan.compute`)."""
    if plan.compute != "virtual":
        return NamedStage(plan, part) if plan.workload.model else RealStage(plan, part)
    cost = plan.stages[part.index % plan.layout.pp]
    num_bytes = payload_bytes(
        cost.gradient_bytes / plan.num_chunks, plan.scale, part.gradient_messages
    )
    # `gradient_bytes` are counted as they are sent.
    dtype = DTYPES.get(plan.compression, part.gradient_dtype)
    elements = max(1, num_bytes // dtype.itemsize)
    sharing: dict[str, Any] = {}
    if part.tensor_group is not None:
        num_layers = cost.num_layers / plan.num_chunks
        sharing = {
            "occupy": SharedCompute(plan, part.tensor_group, num_layers),
            "backward_passes": num_passes(plan) - 1,
        }
    stage = VirtualStage(
        forward_s=cost.forward_s / plan.num_chunks,
        backward_s=cost.backward_s / plan.num_chunks,
        optimizer_s=cost.optimizer_s * part.updating / plan.num_chunks / part.shard[1],
        boundary_bytes=boundary_bytes(plan),
        # Nobody reads the values, and without replicas nobody touches the pages.
        gradients=torch.empty(elements, dtype=dtype),
        **sharing,
    )
    stage.chunk = part.index // plan.layout.pp
    return stage


def run_micro_batches(stage: Stage, count: int) -> tuple[float, float]:
    """So many through the whole model, one by one: seconds forward, seconds backward."""
    forward_s = backward_s = 0.0
    for index in range(count):
        started_s = time.monotonic()
        stage.forward(index, None)
        turned_s = time.monotonic()
        stage.backward(index, None)
        forward_s += turned_s - started_s
        backward_s += time.monotonic() - turned_s
    return forward_s, backward_s


def build_optimizer(plan: Plan, parameters: torch.Tensor) -> Optimizer:
    """What steps on `parameters` and their `.grad` where that is not the stage's part."""
    if plan.compute != "virtual":
        return OPTIMIZERS.get(plan.system, adam)([parameters])
    (cost,) = plan.stages
    return VirtualOptimizer(cost.optimizer_s)


def boundary_bytes(plan: Plan) -> int:
    """Size of what a rank sends of a boundary tensor, once scaled."""
    return payload_bytes(message_bytes(plan), plan.scale)
