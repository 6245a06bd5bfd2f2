"""Virtual devices: computing is sleeping for the time the plan gives."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from netbench.plan.model import VIRTUAL, Plan
from netbench.plan.tensor import (
    LAYER_ALL_REDUCES,
    inside_all_reduce_s,
    num_all_reduce_messages,
    on_one_node,
)
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.links import payload_bytes
from netbench.trainers.communication.rings import (
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from netbench.trainers.communication.slices import sliced, split
from netbench.trainers.events import RECORDER, recorded, recorded_pass


def sleep_until(moment_s: float) -> None:
    """Sleep until CLOCK_MONOTONIC reads `moment_s`; not at all if it is past."""
    left_s = moment_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)


def compute(seconds: float) -> None:
    """Occupy the device for this long."""
    if seconds > 0:
        time.sleep(seconds)


@dataclass(kw_only=True, eq=False)
class VirtualStage:
    """Layers that compute nothing, with scaled boundary tensors: a `TrainedStage`.

    forward_s, backward_s: seconds per micro-batch. optimizer_s: seconds per update.
    boundary_bytes: size of the tensor passed on. gradients: tensor that data parallelism sums; it
    also stands for the parameters. occupy: occupies the device for (seconds, passes through the
    layers). backward_passes: passes in a backward pass, which may recompute. factors: (2,
    num_micro_batches), of the times of forward and backward passes; None = all are 1.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    boundary_bytes: int
    gradients: torch.Tensor
    occupy: Callable[[float, int], None] = lambda seconds, passes: compute(seconds)
    backward_passes: int = 1
    factors: NDArray[np.float64] | None = None
    chunk: int = 0

    def __post_init__(self) -> None:
        self._boundary = torch.zeros(self.boundary_bytes, dtype=torch.uint8)
        self.parameters = self.gradients

    @recorded_pass("forward")
    def forward(self, micro_batch: int, activation: torch.Tensor | None) -> torch.Tensor:
        """Return activations for activations; the first stage gets None."""
        self.occupy(self.forward_s * self._factor(0, micro_batch), 1)
        return self._boundary

    @recorded_pass("backward")
    def backward(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Return the input's gradient for the output's; the last stage gets None."""
        self.occupy(self.backward_s * self._factor(1, micro_batch), self.backward_passes)
        return self._boundary

    @recorded_pass("backward")
    def backward_input(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Run the backward pass without weights: recomputation, and gradients of inputs."""
        seconds = (self.backward_s - self.forward_s) * self._factor(1, micro_batch)
        self.occupy(seconds, self.backward_passes)
        return self._boundary

    def backward_weight(self, micro_batch: int) -> None:
        """Compute gradients of weights, as much work as a forward pass."""
        with RECORDER.span("weight", micro_batch=micro_batch, chunk=self.chunk):
            compute(self.forward_s * self._factor(1, micro_batch))

    def _factor(self, direction: int, micro_batch: int) -> float:
        return 1.0 if self.factors is None else float(self.factors[direction, micro_batch])

    @recorded("optimizer")
    def update(self) -> None:
        """Step."""
        compute(self.optimizer_s)

    def load(self, parameters: torch.Tensor) -> None:
        """Replace the parameters."""
        self.parameters.copy_(parameters)

    def zero_gradients(self) -> None:
        """Do nothing: no gradients are accumulated."""

    def skip(self, num_micro_batches: int) -> None:
        """Do nothing: a virtual stage reads no data."""

    def take_loss(self) -> None:
        """Return None: a virtual stage has no loss."""


def tensor_peers(plan: Plan, group: Group) -> set[int]:
    """Return the processes that this one all-reduces with over the world.

    Computed layers use a separate process group. Virtual layers on one node do not communicate.
    """
    leaves = plan.compute == VIRTUAL and not on_one_node(plan, group.members)
    return group.neighbours if leaves else set()


class SharedCompute:
    """Computes on a virtual device whose layers several ranks share: sleeps, and all-reduces.

    Ranks on several nodes all-reduce over the network. GPUs of one node use links that are not
    shaped, and loopback would cost nothing: ranks sleep for a ring at `Transport.inside_node_bps`.
    num_layers: layers in a pass. group: ranks by tensor index.
    """

    def __init__(self, plan: Plan, group: Group, num_layers: float) -> None:
        self._all_reduces = LAYER_ALL_REDUCES * num_layers
        self._inside_s = inside_all_reduce_s(plan)
        self._is_inside = on_one_node(plan, group.members)
        self._splits_sequence = plan.sequence_parallel
        self._cut = sliced(plan.transport.num_slices(plan.activation_bytes), group.size)
        # A ring cuts the tensor into a chunk per rank, and those into slices.
        messages = num_all_reduce_messages(plan)
        self._group = Group.buffered(group.world, group.members, plan)
        num_bytes = payload_bytes(plan, plan.activation_bytes, messages)
        self._tensor = torch.zeros(num_bytes, dtype=torch.uint8)
        self._chunks = split(num_bytes, group.size)

    def __call__(self, seconds: float, passes: int) -> None:
        """Occupy the device for `seconds` over `passes` passes, and for their all-reduces."""
        count = round(passes * self._all_reduces)
        if self._is_inside or not count:
            compute(seconds + count * self._inside_s)
            return
        for _ in range(count):
            self._layer_part(seconds / count)

    def _layer_part(self, seconds: float) -> None:
        """Run attention or feed-forward of one layer."""
        if not self._splits_sequence:
            compute(seconds)
            ring_all_reduce(self._group, self._tensor, self._cut)
            return
        mine = self._tensor[slice(*self._chunks[self._group.index])]
        ring_all_gather(self._group, self._tensor, self._chunks, self._cut)
        compute(seconds)
        ring_reduce_scatter(self._group, mine, self._tensor, self._chunks, self._cut)


class VirtualOptimizer:
    """Steps in `optimizer_s` seconds on parameters that a stage does not update itself."""

    def __init__(self, optimizer_s: float) -> None:
        self._optimizer_s = optimizer_s

    def step(self) -> None:
        """Step."""
        compute(self._optimizer_s)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: there is no state."""
