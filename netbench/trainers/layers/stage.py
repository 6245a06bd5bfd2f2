"""Layers of the model that a rank trains, virtual or real. Parallel code does not distinguish them.

A boundary tensor is an activation, or its gradient, of one micro-batch in the plan's dtype. It is
sent as 1-D uint8: (boundary_bytes,).
"""

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.random import default_rng  # at once: numpy itself imports it late, in every rank
from numpy.typing import NDArray

from netbench.plan.model import Plan
from netbench.plan.tensor import message_bytes, num_passes
from netbench.systems import has_random_passes, system_of
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.links import payload_bytes
from netbench.trainers.layers.gpt import DTYPES
from netbench.trainers.layers.named import NamedStage
from netbench.trainers.layers.real import OPTIMIZERS, RealStage
from netbench.trainers.layers.virtual import SharedCompute, VirtualOptimizer, VirtualStage


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRole:
    """A stage's part in the training.

    index: among the model's parts (stages x chunks), in the order of the layers. replica: index of
    the data-parallel replica. gradient_dtype: gradients are summed in it. gradient_messages: number
    of messages in which gradients are sent. updating: ranks of its node that update at the same
    time. shard: (i, n): it updates the i-th of n equal parts of the parameters. tensor_group: ranks
    that share its layers, by tensor index.
    """

    index: int
    replica: int
    gradient_dtype: torch.dtype
    gradient_messages: int
    updating: int = 1
    shard: tuple[int, int] = (0, 1)
    tensor_group: Group | None = None


class Passes(Protocol):
    """The passes of a stage."""

    def forward(self, micro_batch: int, activation: torch.Tensor | None) -> torch.Tensor:
        """Return activations for activations (None on the first part).

        The argument may be overwritten once this returns.
        """

    def backward(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Return the input's gradient for the output's (None on the last part)."""


class TrainedStage(Passes, Protocol):
    """Layers of the model with their gradients and optimizer.

    gradients: (elements,), of this replica's part of the batch's mean loss, summed over the
    micro-batches since the last `zero_gradients`. Data parallelism sums them over replicas, in
    place. parameters: (elements,), in the same order; a parameter server sends them. chunk: index
    of the rank's model chunk.
    """

    gradients: torch.Tensor
    parameters: torch.Tensor
    chunk: int

    def backward_input(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """`backward` without the gradients of weights, which `backward_weight` adds later."""

    def backward_weight(self, micro_batch: int) -> None:
        """Add the gradients of weights that `backward_input` left out."""

    def update(self) -> None:
        """Let the optimizer step on `gradients`, zero them, and begin a new iteration."""

    def load(self, parameters: torch.Tensor) -> None:
        """Replace the parameters: (elements,), in any dtype, on any device."""

    def zero_gradients(self) -> None:
        """Discard the gradients, as another rank updates, and begin a new iteration."""

    def skip(self, num_micro_batches: int) -> None:
        """Skip micro-batches of this iteration, which other ranks take."""

    def take_loss(self) -> float | None:
        """Return this rank's part of the batch's mean loss since the last call; None: it has none.

        The parts of all ranks add up to the mean loss.
        """


class Optimizer(Protocol):
    """The part of `torch.optim.Optimizer` that hivemind uses."""

    def step(self) -> object:
        """Step on the gradients of the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the parameters."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the state."""


def gradient_dtype(plan: Plan) -> torch.dtype:
    """The dtype in which gradients are summed and synchronised."""
    return DTYPES[system_of(plan).gradient_dtype(plan.workload.dtype)]


def build_stage(plan: Plan, part: StageRole) -> TrainedStage:
    """Build the layers of `part` on the device of the plan (`Plan.compute`)."""
    if plan.compute != "virtual":
        return NamedStage(plan, part) if plan.workload.model else RealStage(plan, part)
    cost = plan.stages[part.index % plan.layout.pp]
    num_bytes = payload_bytes(plan, cost.gradient_bytes / plan.num_chunks, part.gradient_messages)
    # `gradient_bytes` are those of the dtype in which gradients are sent.
    dtype = DTYPES.get(plan.compression, part.gradient_dtype)
    elements = max(1, num_bytes // dtype.itemsize)
    sharing: dict[str, Any] = {}
    if part.tensor_group is not None:
        num_layers = cost.num_layers / plan.num_chunks
        sharing = {
            "occupy": SharedCompute(plan, part.tensor_group, num_layers),
            "backward_passes": num_passes(plan) - 1,
        }
    if has_random_passes(plan):
        sharing["factors"] = pass_factors(plan, part)
    return VirtualStage(
        forward_s=cost.forward_s / plan.num_chunks,
        backward_s=cost.backward_s / plan.num_chunks,
        optimizer_s=cost.optimizer_s * part.updating / plan.num_chunks / part.shard[1],
        boundary_bytes=boundary_bytes(plan),
        # The values are not used, and without replicas the pages stay untouched.
        gradients=torch.empty(elements, dtype=dtype),
        chunk=part.index // plan.layout.pp,
        **sharing,
    )


def pass_factors(plan: Plan, part: StageRole) -> NDArray[np.float64]:
    """Return the times of passes over their means, (2, num_micro_batches): forward, backward.

    They are the same in every iteration and run, and for ranks that share layers. Fewer
    micro-batches have the first of them.
    """
    draws = [
        default_rng([part.replica, part.index, direction]).standard_normal(plan.num_micro_batches)
        for direction in range(2)
    ]
    return np.maximum(0.0, 1 + plan.jitter * np.stack(draws))


def run_micro_batches(stage: Passes, count: int) -> tuple[float, float]:
    """Run micro-batches through the whole model. Return seconds forward, seconds backward."""
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
    """Build an optimizer for `parameters` that the stage does not update itself."""
    if plan.compute != "virtual":
        return OPTIMIZERS[system_of(plan).optimizer]([parameters])
    (cost,) = plan.stages
    return VirtualOptimizer(cost.optimizer_s)


def boundary_bytes(plan: Plan, pieces: int = 1) -> int:
    """Return the scaled bytes of a boundary tensor that a rank sends in this many messages."""
    return payload_bytes(plan, message_bytes(plan), pieces)
