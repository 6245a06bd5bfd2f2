"""Sharded data parallelism of layers that compute: `zero3` and `fsdp`.

Layers are torch's `fully_shard` with NCCL's rings for its collectives: a unit of layers is gathered
while the unit before it computes, and its gradients are reduced while those after it do. zero3's
units within the live limit stay gathered from the forward to the backward pass.

Gradients are reduce-scattered in every micro-step, and summed where they are scattered to; or, with
`accumulation` "keep", kept whole, with the live parameters, until the last. With hybrid sharding
they are summed over the groups once, in the last micro-step.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.checkpoint import checkpoint

from netbench.plan.model import Plan
from netbench.systems import system_of
from netbench.systems.sharded import stays_gathered, unit_parameters
from netbench.trainers.communication.world import World
from netbench.trainers.events import RECORDER
from netbench.trainers.layers.real import OPTIMIZERS, Batches, build_blocks, find_device, settle
from netbench.trainers.layers.sharding import Collectives, Mesh, prefetch, shard

T = TypeVar("T")


class FullyShardRank:
    """One rank whose layers compute; logical rank = place in the ring."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._num_micro_steps = plan.num_micro_batches
        self._keeps_gradients = plan.accumulation == "keep"
        self._keep = stays_gathered(unit_parameters(plan), plan.live_parameters)
        self._device = find_device(plan.compute)
        self._mesh = mesh = Mesh.of(world, plan.placement, plan.shard_ranks, self._device.type)
        self._collectives = Collectives(mesh)
        self._units: list[nn.Module] = []
        for index, keep in enumerate(self._keep):
            self._units.append(Unit(plan, index).to(self._device))
            shard(self._units[-1], mesh, self._collectives, keep=keep)
        prefetch(self._units, max(1, plan.prefetch_units))
        self._model = ShardedModel(self._units, plan, plan.placement.index(world.rank))
        fully_shard(self._model, mesh=mesh.device_mesh)
        self._model.begin_training()

    def peers(self) -> set[int]:
        return self._mesh.peers

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
            settle(self._device)
        return {
            "forward_s": forward_s,
            "backward_s": backward_s,
            "sync_s": updated_s - started_s - forward_s - backward_s,
            "optimizer_s": time.monotonic() - updated_s,
        }

    def _begin(self, step: int) -> None:
        """Set what happens to gradients and parameters after this micro-step's backward pass."""
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
        """Return the result of `call`, and its seconds outside collectives."""
        before_s = time.monotonic() - self._collectives.seconds
        result = call()
        settle(self._device)
        return result, time.monotonic() - self._collectives.seconds - before_s


class ShardedModel(nn.Module):
    """Units one after another, trained with Adam on this rank's shards of them.

    Gradients are of the rank's share of the batch's mean loss, so they are to be summed.
    """

    def __init__(self, units: Sequence[nn.Module], plan: Plan, rank: int) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)
        self._device = find_device(plan.compute)
        self._batches = Batches(plan, rank)
        self._share = plan.workload.micro_batch / plan.workload.batch
        self._has_master = bool(plan.master_weights)
        self._build_optimizer = OPTIMIZERS[system_of(plan).optimizer]
        self._iteration = 0
        self._loss = 0.0

    def forward(self, micro_step: int) -> torch.Tensor:
        """A micro-batch's share of the mean loss over the batch."""
        tokens = self._batches.tokens(self._iteration, micro_step).to(self._device)
        x = tokens[:, :-1]
        for unit in self.units:
            x = unit(x)
        scores = x.flatten(0, 1).float() if x.dtype.itemsize < 4 else x.flatten(0, 1)
        loss = F.cross_entropy(scores, tokens[:, 1:].flatten()) * self._share
        self._loss += loss.item()
        return loss

    def begin_training(self) -> None:
        """Give the optimizer the shards, or fp32 copies of them."""
        self._shards = list(self.parameters())
        self._updated: list[torch.Tensor] = [*self._shards]
        if self._has_master:
            self._updated = [shard.detach().float() for shard in self._shards]
        self._optimizer = self._build_optimizer(self._updated)

    @torch.no_grad()
    def update(self) -> None:
        """Step, zero the gradients, go on to the next batch."""
        pairs = list(zip(self._shards, self._updated, strict=True)) if self._has_master else []
        for part, updated in pairs:
            assert part.grad is not None
            updated.grad = part.grad.float()
        self._optimizer.step()
        for part, updated in pairs:
            part.copy_(updated)
        self.zero_grad()
        self._iteration += 1

    def take_loss(self) -> float:
        """This rank's share of the mean loss since it was last asked."""
        loss, self._loss = self._loss, 0.0
        return loss


class Unit(nn.Module):
    """Layers that compute: blocks, before them the embedding in the first unit, after them the head
    in the last."""

    def __init__(self, plan: Plan, index: int) -> None:
        super().__init__()
        unit_parameters(plan)  # refuses units that are not the model
        self.layers = nn.ModuleList(build_blocks(plan, plan.units, index))
        self._recomputes = plan.workload.recomputation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One micro-batch: tokens or activations in, activations or scores out."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self._recomputes else layer(x)
        return x
