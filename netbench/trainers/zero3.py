"""ZeRO stage 3: torch's `fully_shard`, its collectives as NCCL's rings.

Every rank holds a shard of the parameters: 1/n of them, or 1/r with hybrid sharding among groups of
r ranks. A unit of layers is gathered before it computes; units beyond the live limit are freed
after their forward pass and gathered again for the backward.

Gradients are reduce-scattered in every micro-step, and summed where they are scattered to, or
(`accumulation` "keep") kept whole, with the parameters within the live limit, until the last.
With hybrid sharding they are summed over the groups once, in the last micro-step.

Communication and computation take turns, unless units are prefetched: then they are gathered while
those before them compute, and gradients are scattered while those after them do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from netbench.plan import Plan
from netbench.plan.zero3 import stays_gathered, unit_parameters
from netbench.trainers.events import RECORDER
from netbench.trainers.links import GLOO_WIRE_BYTES
from netbench.trainers.sharding import Collectives, Mesh, prefetch, shard
from netbench.trainers.units import build_model, build_unit
from netbench.trainers.world import World

T = TypeVar("T")


class Zero3:
    """One rank; logical rank = place in the ring."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._num_micro_steps = plan.num_micro_batches
        self._keeps_gradients = plan.accumulation == "keep"
        self._keep = stays_gathered(unit_parameters(plan), plan.live_parameters)
        self._mesh = mesh = Mesh.of(world, plan.placement, plan.shard_ranks)
        self._collectives = Collectives(
            mesh,
            overlap=plan.prefetch_units > 0,
            # A ring across cuts a shard into a message for each group.
            across_overhead_bytes=(mesh.across.size - 1) * GLOO_WIRE_BYTES if plan.scale > 1 else 0,
        )
        self._units: list[nn.Module] = []
        for index, keep in enumerate(self._keep):
            self._units.append(build_unit(plan, index))
            shard(self._units[-1], mesh, self._collectives, keep=keep)
        if plan.prefetch_units:
            prefetch(self._units, plan.prefetch_units)
        self._model = build_model(plan, self._units, plan.placement.index(world.rank))
        fully_shard(self._model, mesh=mesh.device_mesh)
        self._model.begin_training()

    def peers(self) -> set[int]:
        return self._mesh.peers

    def arm(self) -> None:
        """Nothing is posted ahead: a ring posts all its receives when a rank comes to it."""

    def take_loss(self) -> float | None:
        return self._model.take_loss()

    def iterate(self) -> dict[str, float]:
        """Micro-steps, then the update.

        forward_s, backward_s: the passes without waiting for collectives. sync_s: waiting for them,
        so that waiting for a slower rank is in it. optimizer_s: the update.
        """
        self._collectives.seconds = 0.0
        started_s = time.monotonic()
        forward_s = 0.0
        backward_s = 0.0
        for step in range(self._num_micro_steps):
            self._begin(step)
            with RECORDER.span("forward", micro_batch=step):
                output, seconds = self._without_collectives(lambda: self._model(step))  # noqa: B023
            forward_s += seconds
            with RECORDER.span("backward", micro_batch=step):
                _, seconds = self._without_collectives(output.backward)
            backward_s += seconds
            self._end()
        updated_s = time.monotonic()
        with RECORDER.span("optimizer"):
            self._model.update()
        return {
            "forward_s": forward_s,
            "backward_s": backward_s,
            "sync_s": updated_s - started_s - forward_s - backward_s,
            "optimizer_s": time.monotonic() - updated_s,
        }

    def _begin(self, step: int) -> None:
        """Say what becomes of gradients and parameters after this micro-step's backward pass."""
        self._collectives.is_last_step = is_last = step == self._num_micro_steps - 1
        if not self._keeps_gradients:
            return
        for unit, keep in zip(self._units, self._keep, strict=True):
            assert isinstance(unit, FSDPModule)
            unit.set_requires_gradient_sync(is_last)
            unit.set_reshard_after_backward(is_last or not keep)

    def _end(self) -> None:
        """Gradients are complete; those of earlier micro-steps are held beside FSDP's."""
        self._collectives.finish()
        is_scattered = self._mesh.inside.size > 1 and not self._keeps_gradients
        if is_scattered and not self._collectives.is_last_step:
            self._model.zero_grad()

    def _without_collectives(self, call: Callable[[], T]) -> tuple[T, float]:
        """The result of `call`, and its seconds outside of collectives."""
        before_s = time.monotonic() - self._collectives.seconds
        result = call()
        return result, time.monotonic() - self._collectives.seconds - before_s
