"""What `fully_shard` shards: units of layers, virtual or real, and the model that they make up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from netbench.plan import Plan
from netbench.plan.model import VIRTUAL
from netbench.plan.zero3 import unit_parameters
from netbench.trainers.layers import DTYPES, build_layer
from netbench.trainers.links import payload_bytes
from netbench.trainers.real import Batches, adam
from netbench.trainers.virtual import compute


def build_unit(plan: Plan, index: int) -> nn.Module:
    """The index-th of the plan's units, whole; virtual ones are without data yet."""
    return _virtual_unit(plan, index) if plan.compute == VIRTUAL else RealUnit(plan, index)


def build_model(plan: Plan, units: Sequence[nn.Module], rank: int) -> VirtualModel | RealModel:
    """The model that the sharded units make up, on logical rank `rank`'s share of the batch."""
    if plan.compute == VIRTUAL:
        return VirtualModel(units, plan.stages[0].optimizer_s)
    return RealModel(units, plan, rank)


class VirtualModel(nn.Module):
    """Units one after another, which compute nothing. optimizer_s: seconds of an update."""

    def __init__(self, units: Sequence[nn.Module], optimizer_s: float) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)
        self._optimizer_s = optimizer_s
        # FSDP scatters a unit's gradients when the gradient of the unit's input is there.
        self._input = torch.zeros(1, requires_grad=True)

    def forward(self, micro_step: int) -> torch.Tensor:
        """One micro-batch through all units: what to call `backward` on."""
        activation = self._input
        for unit in self.units:
            activation = unit(activation)
        return activation

    def begin_training(self) -> None:
        """Get memory for the shards."""
        self.to_empty(device="cpu")
        for weight in self.parameters():
            nn.init.zeros_(weight)

    def update(self) -> None:
        """Step."""
        compute(self._optimizer_s)
        self.zero_grad()
        self._input.grad = None

    def take_loss(self) -> None:
        """Nothing was learnt."""


class VirtualUnit(nn.Module):
    """Layers that share one parameter tensor, sleep instead of computing, and have gradient 0.

    forward_s, backward_s: seconds per micro-batch.
    """

    def __init__(
        self, *, num_parameters: int, dtype: torch.dtype, forward_s: float, backward_s: float
    ) -> None:
        super().__init__()
        # Only shapes until it is sharded: no rank ever holds all of it but while it computes.
        self.weight = nn.Parameter(torch.empty(num_parameters, dtype=dtype, device="meta"))
        self._forward_s, self._backward_s = forward_s, backward_s

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        """One micro-batch."""
        result: torch.Tensor = _Sleep.apply(  # type: ignore[no-untyped-call]
            activation, self.weight, self._forward_s, self._backward_s
        )
        return result


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        activation: torch.Tensor,
        weight: torch.Tensor,
        forward_s: float,
        backward_s: float,
    ) -> torch.Tensor:
        compute(forward_s)
        # Not the weight itself: its storage is freed between the passes.
        ctx.shape, ctx.dtype, ctx.backward_s = weight.shape, weight.dtype, backward_s
        return activation.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        compute(ctx.backward_s)
        return gradients[0], torch.zeros(ctx.shape, dtype=ctx.dtype), None, None


def _virtual_unit(plan: Plan, index: int) -> VirtualUnit:
    """A rank's shard of a unit is what one message carries."""
    (cost,) = plan.stages
    dtype, num_shards = DTYPES[plan.workload.dtype], plan.shard_ranks or plan.layout.num_ranks
    shard_bytes = unit_parameters(plan)[index] * dtype.itemsize / num_shards
    payload = payload_bytes(shard_bytes, plan.scale)
    return VirtualUnit(
        num_parameters=num_shards * max(1, -(-payload // dtype.itemsize)),
        dtype=dtype,
        forward_s=cost.forward_s * plan.units[index] / cost.num_layers,
        backward_s=cost.backward_s * plan.units[index] / cost.num_layers,
    )


class RealModel(nn.Module):
    """Units one after another, trained with Adam on this rank's shards of them.

    Gradients are of the rank's share of the batch's mean loss, so they are to be summed.
    """

    def __init__(self, units: Sequence[nn.Module], plan: Plan, rank: int) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)
        self._batches = Batches(plan, rank)
        self._share = plan.workload.micro_batch / plan.workload.batch
        self._has_master = bool(plan.master_weights)
        self._iteration = 0
        self._loss = 0.0

    def forward(self, micro_step: int) -> torch.Tensor:
        """A micro-batch's share of the mean loss over the batch."""
        tokens = self._batches.tokens(self._iteration, micro_step)
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
        self._optimizer = adam(self._updated)

    @torch.no_grad()
    def update(self) -> None:
        """Step, zero the gradients, go on to the next batch."""
        pairs = list(zip(self._shards, self._updated, strict=True)) if self._has_master else []
        for shard, updated in pairs:
            assert shard.grad is not None
            updated.grad = shard.grad.float()
        self._optimizer.step()
        for shard, updated in pairs:
            shard.copy_(updated)
        self.zero_grad()
        self._iteration += 1

    def take_loss(self) -> float:
        """This rank's share of the mean loss since it was last asked."""
        loss, self._loss = self._loss, 0.0
        return loss


class RealUnit(nn.Module):
    """Layers that compute: blocks, before them the embedding in the first unit, after them the head
    in the last."""

    def __init__(self, plan: Plan, index: int) -> None:
        super().__init__()
        workload = plan.workload
        unit_parameters(plan)  # refuses units that are not the model
        first = 1 + sum(plan.units[:index])
        indices = list(range(first, first + plan.units[index]))
        if index == 0:
            indices.insert(0, 0)
        if index == len(plan.units) - 1:
            indices.append(workload.layers + 1)
        self.layers = nn.ModuleList(build_layer(workload, i, plan.seed) for i in indices)
        self._recomputes = workload.recomputation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One micro-batch: tokens or activations in, activations or scores out."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self._recomputes else layer(x)
        return x
