"""Virtual devices: computing is sleeping for the time the plan gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

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


def _compute_alone(seconds: float, passes: int) -> None:
    """Of layers that no other rank shares."""
    compute(seconds)


class VirtualStage:
    """Layers of the true boundary size over the scale, which compute nothing: a `Stage`.

    forward_s, backward_s: seconds per micro-batch. optimizer_s: seconds per update.
    boundary_bytes: size of the tensor passed on. gradients: what data parallelism sums; as large as
    the parameters, whose place it takes. occupy: computes for so many seconds, in so many passes
    through the layers. backward_passes: of a backward pass, which may recompute.
    """

    chunk = 0

    def __init__(
        self,
        *,
        forward_s: float,
        backward_s: float,
        optimizer_s: float,
        boundary_bytes: int,
        gradients: torch.Tensor,
        occupy: Callable[[float, int], None] = _compute_alone,
        backward_passes: int = 1,
    ) -> None:
        self._forward_s = forward_s
        self._backward_s = backward_s
        self._optimizer_s = optimizer_s
        self._occupy, self._backward_passes = occupy, backward_passes
        self._boundary = torch.zeros(boundary_bytes, dtype=torch.uint8)
        self.gradients = self.parameters = gradients

    @recorded_pass("forward")
    def forward(self, micro_batch: int, activation: torch.Tensor | None) -> torch.Tensor:
        """Activations in, activations out; the first stage gets None."""
        self._occupy(self._forward_s, 1)
        return self._boundary

    @recorded_pass("backward")
    def backward(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Gradient of the output in, gradient of the input out; the last stage gets None."""
        self._occupy(self._backward_s, self._backward_passes)
        return self._boundary

    @recorded_pass("backward")
    def backward_input(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """What is left of the backward pass: recomputation, and gradients of inputs."""
        self._occupy(self._backward_s - self._forward_s, self._backward_passes)
        return self._boundary

    def backward_weight(self, micro_batch: int) -> None:
        """Gradients of weights are as much work as a forward pass."""
        with RECORDER.span("weight", micro_batch=micro_batch, chunk=self.chunk):
            compute(self._forward_s)

    @recorded("optimizer")
    def update(self) -> None:
        """Step."""
        compute(self._optimizer_s)

    def load(self, parameters: torch.Tensor) -> None:
        """Go on from these parameters."""
        self.parameters.copy_(parameters)

    def zero_gradients(self) -> None:
        """Nothing was accumulated."""

    def skip(self, num_micro_batches: int) -> None:
        """There is no data."""

    def take_loss(self) -> None:
        """Nothing was learnt."""


class VirtualOptimizer:
    """Steps on parameters that a stage does not update itself, in `optimizer_s` seconds."""

    def __init__(self, optimizer_s: float) -> None:
        self._optimizer_s = optimizer_s

    def step(self) -> None:
        """Step."""
        compute(self._optimizer_s)

    def state_dict(self) -> dict[str, Any]:
        """There is none."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to keep."""
