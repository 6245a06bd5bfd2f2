"""Virtual devices: computing is sleeping for the time the plan gives."""

from __future__ import annotations

import time

import torch

from netbench.trainers.events import recorded, recorded_pass


def sleep_until(moment_s: float) -> None:
    """Sleep until CLOCK_MONOTONIC reads `moment_s`; not at all if it is past."""
    left_s = moment_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)


def compute(seconds: float) -> None:
    """Occupy the device for this long."""
    if seconds > 0:
        time.sleep(seconds)


class VirtualStage:
    """Layers of the true boundary size over the scale, which compute nothing: a `Stage`.

    forward_s, backward_s: seconds per micro-batch. optimizer_s: seconds per update.
    boundary_bytes: size of the tensor passed on. gradients: what data parallelism sums; as large as
    the parameters, whose place it takes.
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
    ) -> None:
        self._forward_s = forward_s
        self._backward_s = backward_s
        self._optimizer_s = optimizer_s
        self._boundary = torch.zeros(boundary_bytes, dtype=torch.uint8)
        self.gradients = self.parameters = gradients

    @recorded_pass("forward")
    def forward(self, micro_batch: int, activation: torch.Tensor | None) -> torch.Tensor:
        """Activations in, activations out; the first stage gets None."""
        compute(self._forward_s)
        return self._boundary

    @recorded_pass("backward")
    def backward(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Gradient of the output in, gradient of the input out; the last stage gets None."""
        compute(self._backward_s)
        return self._boundary

    @recorded("optimizer")
    def update(self) -> None:
        """Step."""
        compute(self._optimizer_s)

    def zero_gradients(self) -> None:
        """Nothing was accumulated."""

    def take_loss(self) -> None:
        """Nothing was learnt."""
