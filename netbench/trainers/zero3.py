"""ZeRO stage 3: torch's `fully_shard` on a virtual model, its collectives as NCCL's rings.

Every rank holds 1/n of the parameters. A unit of layers is gathered before it computes; units
beyond the live limit are freed after their forward pass and gathered again for the backward, and
every unit's gradients are reduce-scattered, in every micro-step. Communication and computation
take turns: nothing of a unit is gathered while another computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

# FSDP's hooks import this on their first call: 25 MB in every rank, unless its parent has it.
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from netbench.errors import PlanError
from netbench.plan import Plan
from netbench.trainers.collectives import Group, ring_all_gather, ring_reduce_scatter
from netbench.trainers.events import RECORDER
from netbench.trainers.layers import DTYPES
from netbench.trainers.links import payload_bytes
from netbench.trainers.virtual import compute
from netbench.trainers.world import World
from netbench.workload.costs import layer_parameters


class Zero3:
    """One rank; logical rank = place in the ring."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._num_micro_steps = plan.num_micro_batches
        (self._cost,) = plan.stages
        self._group = Group.of(world, plan.placement)
        self._ring = Ring(self._group)
        self._model = build_model(plan)
        keep = stays_gathered(unit_parameters(plan), plan.live_parameters)
        shard(self._model, list(self._model.units), self._ring, keep)
        self._model.to_empty(device="cpu")
        for weight in self._model.parameters():
            nn.init.zeros_(weight)
        # FSDP scatters a unit's gradients when the gradient of the unit's input is there.
        self._input = torch.zeros(1, requires_grad=True)

    def peers(self) -> set[int]:
        return self._group.neighbours

    def arm(self) -> None:
        """Nothing is posted ahead: a ring posts all its receives when a rank comes to it."""

    def take_loss(self) -> float | None:
        return None

    def iterate(self) -> dict[str, float]:
        """Micro-steps, then the update.

        forward_s, backward_s: the passes without their collectives. sync_s: inside collectives,
        so that waiting for a slower rank is in it. optimizer_s: the update.
        """
        self._ring.seconds = 0.0
        started_s = time.monotonic()
        forward_s = 0.0
        backward_s = 0.0
        for step in range(self._num_micro_steps):
            with RECORDER.span("forward", micro_batch=step):
                output, seconds = self._without_collectives(lambda: self._model(self._input))
            forward_s += seconds
            with RECORDER.span("backward", micro_batch=step):
                _, seconds = self._without_collectives(output.backward)
            backward_s += seconds
        updated_s = time.monotonic()
        with RECORDER.span("optimizer"):
            compute(self._cost.optimizer_s)
        self._model.zero_grad()
        self._input.grad = None
        return {
            "forward_s": forward_s,
            "backward_s": backward_s,
            "sync_s": updated_s - started_s - forward_s - backward_s,
            "optimizer_s": time.monotonic() - updated_s,
        }

    def _without_collectives(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """The result of `call`, and its seconds outside of collectives."""
        before_s = time.monotonic() - self._ring.seconds
        result = call()
        return result, time.monotonic() - self._ring.seconds - before_s


def unit_parameters(plan: Plan) -> list[int]:
    """Parameters of each unit at full size; the embeddings are in the first."""
    if not plan.units or sum(plan.units) != plan.workload.layers:
        raise PlanError(
            f"units {plan.units} hold {sum(plan.units)} layers; the model has "
            f"{plan.workload.layers}"
        )
    sizes = [layers * layer_parameters(plan.workload) for layers in plan.units]
    sizes[0] += plan.workload.embedding_parameters
    return sizes


def stays_gathered(sizes: Sequence[int], live_parameters: int) -> list[bool]:
    """Which units stay gathered between forward and backward: the first, up to the live limit.

    Source: DeepSpeed, `stage3_max_live_parameters`, parameters resident before releasing.
    """
    return [total <= live_parameters for total in accumulate(sizes)]


def build_model(plan: Plan) -> VirtualModel:
    """The plan's model, without data yet. A rank's shard of a unit is what one message carries."""
    num_ranks, (cost,) = plan.layout.num_ranks, plan.stages
    dtype = DTYPES[plan.workload.dtype]
    sizes = unit_parameters(plan)
    units = []
    for layers, size in zip(plan.units, sizes, strict=True):
        payload = payload_bytes(size * dtype.itemsize / num_ranks, plan.scale)
        units.append(
            VirtualUnit(
                num_parameters=num_ranks * max(1, -(-payload // dtype.itemsize)),
                dtype=dtype,
                forward_s=cost.forward_s * layers / cost.num_layers,
                backward_s=cost.backward_s * layers / cost.num_layers,
            )
        )
    return VirtualModel(units)


class VirtualModel(nn.Module):
    """Units one after another."""

    def __init__(self, units: Sequence[VirtualUnit]) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        """One micro-batch through all units."""
        for unit in self.units:
            activation = unit(activation)
        return activation


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


class Ring:
    """The collectives of one model's units, and the seconds spent in them.

    gloo's own wait for a round trip per step. One message per step: all members' chunks are under
    way at once, so finer slices would only cost messages.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.seconds = 0.0

    def all_gather(self, tensor: torch.Tensor) -> None:
        """Fill in the other members' parts of `tensor`."""
        started_s = time.monotonic()
        ring_all_gather(self._group, tensor, self._chunks(tensor), num_slices=1)
        self.seconds += time.monotonic() - started_s

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """`output` becomes the sum of all members' tensors, this process's part of it."""
        started_s = time.monotonic()
        ring_reduce_scatter(self._group, output, tensor, self._chunks(tensor), num_slices=1)
        self.seconds += time.monotonic() - started_s

    def _chunks(self, tensor: torch.Tensor) -> list[tuple[int, int]]:
        """The member's parts: FSDP orders them by process, the ring by logical rank."""
        size = tensor.numel() // self._group.size
        return [(size * process, size * (process + 1)) for process in self._group.members]


def shard(model: nn.Module, units: Sequence[nn.Module], ring: Ring, keep: Sequence[bool]) -> None:
    """Shard the units over all processes and let their collectives go round the ring.

    keep: whether a unit stays gathered between forward and backward.
    """
    world = dist.group.WORLD
    assert world is not None
    mesh = DeviceMesh.from_group(world, "cpu")
    gather, scatter = _AllGather(ring), _ReduceScatter(ring)
    for unit, keeps in zip(units, keep, strict=True):
        fully_shard(unit, mesh=mesh, reshard_after_forward=not keeps)
        assert isinstance(unit, FSDPModule)
        # Asks for sums, and divides by the number of ranks itself: sums are what the ring does.
        unit.set_force_sum_reduction_for_comms(True)
        unit.set_custom_all_gather(gather)  # type: ignore[arg-type]  # the base class is private
        unit.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]
    fully_shard(model, mesh=mesh)


class _RingCollective:
    """What FSDP asks of a custom collective beside the call."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=device)


class _AllGather(_RingCollective):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        # FSDP has made the input a view of this process's part of the output.
        self._ring.all_gather(output_tensor)


class _ReduceScatter(_RingCollective):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        self._ring.reduce_scatter(output_tensor, input_tensor)
