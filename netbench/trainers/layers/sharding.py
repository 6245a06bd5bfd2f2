"""`fully_shard` whose collectives are rings, beside the computation.

Ranks that share one copy of the model gather and scatter in a ring of their own. Where there are
several copies (hybrid sharding), those that hold the same shard of each sum its gradients in a ring
across. A CPU has no streams: what goes on beside the computation does so in threads, one for each
communicator that NCCL would have. On a CUDA device these threads have streams, too.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

# FSDP's hooks import this on their first call: 25 MB in every rank, unless its parent has it.
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from netbench.plan.collectives import RingCut
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.rings import (
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from netbench.trainers.communication.world import World
from netbench.trainers.events import RECORDER


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """The groups of a rank, in a grid of groups x ranks of a group.

    inside: ranks that share one copy of the model. across: ranks that have the same shard of other
    copies. device_mesh: FSDP's view of `inside`.
    """

    inside: Group
    across: Group
    device_mesh: DeviceMesh

    @classmethod
    def of(
        cls, world: World, placement: Sequence[int], shard_ranks: int = 0, device: str = "cpu"
    ) -> "Mesh":
        """Form groups of `shard_ranks` neighbours in the order of ranks; 0 = one group.

        device: type of the device that has the model.
        """
        size = shard_ranks or len(placement)
        group, index = divmod(tuple(placement).index(world.rank), size)
        members = placement[group * size : (group + 1) * size]
        processes = dist.group.WORLD
        if size < len(placement):
            # In the order of ranks, so that a shard has the same index in every group.
            processes = dist.new_group(
                list(members), use_local_synchronization=True, sort_ranks=False
            )
        assert processes is not None
        return cls(
            inside=Group.of(world, members),
            across=Group.of(world, placement[index::size]),
            device_mesh=DeviceMesh.from_group(processes, device),
        )

    @property
    def peers(self) -> set[int]:
        """Processes this one exchanges data with."""
        return self.inside.neighbours | self.across.neighbours

    def chunks(self, tensor: torch.Tensor) -> list[tuple[int, int]]:
        """Return the part of `tensor` of each member of `inside`, in FSDP's order."""
        order = dist.get_process_group_ranks(self.device_mesh.get_group())
        size = tensor.numel() // len(order)
        indices = [order.index(process) for process in self.inside.members]
        return [(size * i, size * (i + 1)) for i in indices]


class Collectives:
    """Gathers and scatters of the units of one model.

    Each step of a ring is one message: all members' chunks are under way at once, so finer slices
    would only add messages. As in FSDP, a unit's gradients are scattered while the next unit
    computes, and its scatter ends before that of the next unit begins.

    seconds: time that the rank has waited. is_last_step: the micro-step in progress is the last of
    the iteration. Gradients of earlier ones are summed where they were scattered to, and are
    reduced across copies once.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.seconds = 0.0
        self.is_last_step = True
        self._mesh = mesh
        # A thread per communicator runs its collectives one after the other.
        self._inside, self._across = (ThreadPoolExecutor(max_workers=1) for _ in range(2))
        self._scatter: Future[None] | None = None
        self._reductions: list[Future[None]] = []

    def all_gather(self, tensor: torch.Tensor) -> "Pending":
        """Fill in the other members' parts of `tensor`."""
        chunks = self._mesh.chunks(tensor)
        with self._waiting():
            gather = self._inside.submit(
                self._after_now(ring_all_gather), self._mesh.inside, tensor, chunks, RingCut()
            )
        return Pending(partial(self._wait, gather))

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, before: torch.Tensor | None
    ) -> None:
        """Sum this member's part of all members' tensors, and `before`, into `output`.

        The sum is complete when `finish` returns. In the last micro-step it is over all groups.
        """
        if self._scatter is not None:
            self._wait(self._scatter)
        with self._waiting():
            self._scatter = self._inside.submit(
                self._after_now(self._reduce), output, tensor, before, self.is_last_step
            )

    def finish(self) -> None:
        """Wait for all gradients."""
        if self._scatter is not None:
            self._wait(self._scatter)
        for reduction in self._reductions:
            self._wait(reduction)
        self._scatter = None
        self._reductions.clear()

    def _reduce(
        self, output: torch.Tensor, tensor: torch.Tensor, before: torch.Tensor | None, last: bool
    ) -> None:
        chunks = self._mesh.chunks(tensor)
        ring_reduce_scatter(self._mesh.inside, output, tensor, chunks, RingCut())
        if before is not None:
            output += before
        if last and self._mesh.across.size > 1:
            self._reductions.append(
                self._across.submit(
                    self._after_now(ring_all_reduce), self._mesh.across, output, RingCut()
                )
            )

    def _after_now(self, call: Callable[..., None]) -> Callable[..., None]:
        """Return `call` for another thread, after the work that this one has queued so far."""
        forked = self._mesh.inside.world.fork()

        def run(*args: Any, **options: Any) -> None:
            with forked:
                call(*args, **options)

        return run

    def _wait(self, collective: Future[None]) -> None:
        if collective.done():
            return collective.result()
        with self._waiting(), RECORDER.span("collective", name="wait"):
            return collective.result()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        started_s = time.monotonic()
        yield
        self.seconds += time.monotonic() - started_s


class Pending(dist.distributed_c10d.Work):
    """A collective that FSDP waits for when it needs the result."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self._wait = wait

    def wait(self, timeout: Any = None) -> bool:
        """Block until the collective is done."""
        self._wait()
        return True


def shard(unit: nn.Module, mesh: Mesh, collectives: Collectives, *, keep: bool) -> None:
    """Shard a unit inside its group. Its gradients become sums over all ranks, not means.

    keep: the unit stays gathered between forward and backward.
    """
    fully_shard(unit, mesh=mesh.device_mesh, reshard_after_forward=not keep)
    assert isinstance(unit, FSDPModule)
    unit.set_force_sum_reduction_for_comms(True)
    unit.set_gradient_divide_factor(1.0)
    unit.set_custom_all_gather(_AllGather(collectives))  # type: ignore[arg-type]  # private base
    unit.set_custom_reduce_scatter(_ReduceScatter(collectives))  # type: ignore[arg-type]


def prefetch(units: Sequence[nn.Module], count: int) -> None:
    """Gather the next `count` units while a unit computes, forward and backward."""
    modules: list[FSDPModule] = [unit for unit in units if isinstance(unit, FSDPModule)]
    for index, unit in enumerate(modules):
        unit.set_modules_to_forward_prefetch(modules[index + 1 : index + 1 + count])
        unit.set_modules_to_backward_prefetch(modules[max(0, index - count) : index][::-1])


class _Collective:
    """The interface of FSDP's custom collectives, without the call."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=device)


class _AllGather(_Collective):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Pending:
        # The input is a view of this process's part of the output.
        return self._collectives.all_gather(output_tensor)


class _ReduceScatter(_Collective):
    """The reduce-scatter of one unit. It keeps the gradients of earlier micro-steps."""

    _before: torch.Tensor | None = None

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        self._collectives.reduce_scatter(output_tensor, input_tensor, self._before)
        self._before = None if self._collectives.is_last_step else output_tensor
