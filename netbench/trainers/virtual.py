"""Virtual devices: computing is sleeping for the time the plan gives."""

from __future__ import annotations

import time

import torch


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
    """Layers of the true boundary size over the scale, which compute nothing.

    forward_s, backward_s: seconds per micro-batch. boundary_bytes: size of the tensor passed on.
    """

    def __init__(self, *, forward_s: float, backward_s: float, boundary_bytes: int) -> None:
        self._forward_s = forward_s
        self._backward_s = backward_s
        self._boundary = torch.zeros(boundary_bytes, dtype=torch.uint8)

    def forward(self, micro_batch: int, activation: torch.Tensor | None) -> torch.Tensor:
        """Activations in, activations out; the first stage gets None."""
        compute(self._forward_s)
        return self._boundary

    def backward(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Gradient of the output in, gradient of the input out; the last stage gets None."""
        compute(self._backward_s)
        return self._boundary
