"""Data parallelism: every rank has the whole model and a part of the batch.

`ring`, `tree`: gradients are all-reduced in buckets, filled from the last layer on. In the last
micro-batch's backward pass the all-reduce of a bucket starts when it is full, in a thread beside
the pass; one bucket at a time, as on an NCCL communicator. Layers that compute are in torch's
DistributedDataParallel, with this as its communication hook. Its first iteration, which learns the
order of gradients, has one bucket. Virtual layers sleep from bucket to bucket. With gloo the
all-reduce is gloo's own.

A parameter server gets gradients after the backward pass: the first rank (`central-ps`:
reduce, update, broadcast), or every rank for its shard of the parameters (`sharded-ps`: all-to-all,
update, all-gather).

Every replica computes its term of the mean loss over the batch, so gradients are summed, not
averaged. Running statistics of normalisations stay each replica's own (`broadcast_buffers=False`).
"""

import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from netbench.plan.model import VIRTUAL, Plan
from netbench.systems.ddp import OVERLAPPED, gradient_buckets
from netbench.trainers.communication.collectives import tree_lanes, tree_peers, tree_posts
from netbench.trainers.communication.group import Group, Post
from netbench.trainers.communication.links import payload_bytes
from netbench.trainers.communication.rings import all_reduce_posts
from netbench.trainers.communication.slices import sliced
from netbench.trainers.communication.world import Lane, World
from netbench.trainers.events import RECORDER
from netbench.trainers.layers.gpt import DTYPES
from netbench.trainers.layers.real import RealStage
from netbench.trainers.layers.stage import (
    Passes,
    StageRole,
    TrainedStage,
    build_stage,
    run_micro_batches,
)
from netbench.trainers.layers.virtual import VirtualStage, compute, sleep_until
from netbench.trainers.systems.dtfm import update_on_first, update_shards

_Opened = tuple[Callable[[], object], Sequence[Post]]
"""An all-reduce whose first pass has posted its receives: the rest of that pass, later passes."""


class DdpRank:
    """One rank, whose logical rank is its replica and its place in the ring."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._plan = plan
        self._world = world
        self._reducer = Reducer(
            bucket_posts(world, plan), plan.collective_s, world.fork, ahead=plan.compute == VIRTUAL
        )
        replica = plan.placement.index(world.rank)
        self._stage, self._passes = build_replica(plan, replica, self._reducer)
        (cost,) = plan.stages
        self._chain = plan.transport.chain_cut(cost.gradient_bytes)
        self._group = Group.buffered(world, plan.placement, plan)

    def peers(self) -> set[int]:
        if self._plan.data_parallel == "sharded-ps":
            return set(self._group.members)
        if self._plan.data_parallel == "tree":
            return tree_peers(self._group)
        if self._plan.backend == "gloo":  # whose ring is in the order of processes
            return Group.of(self._world, range(self._world.size)).neighbours
        return self._group.neighbours

    @property
    def lanes(self) -> set[Lane] | None:
        """See `LaneTrainer`."""
        return tree_lanes(self._group) if self._plan.data_parallel == "tree" else None

    def take_loss(self) -> float | None:
        return self._stage.take_loss()

    def iterate(self) -> dict[str, float]:
        """Run the micro-batches, the rest of the synchronisation, and the update.

        backward_s: until the last bucket is handed over. sync_s: from there until all are reduced.
        """
        forward_s, backward_s = run_micro_batches(self._passes, self._plan.num_micro_batches)
        now_s = time.monotonic()
        computed_s = self._reducer.started_s or now_s
        optimizer_s = self._synchronise()
        return {
            "forward_s": forward_s,
            "backward_s": backward_s - (now_s - computed_s),
            "sync_s": time.monotonic() - computed_s - optimizer_s,
            "optimizer_s": optimizer_s,
        }

    def _synchronise(self) -> float:
        """Synchronise and update; return the seconds that this rank spent updating."""
        if self._plan.data_parallel == "central-ps":
            compute(self._plan.collective_s)
            return update_on_first(self._group, self._stage, self._chain)
        if self._plan.data_parallel == "sharded-ps":
            compute(self._plan.collective_s)
            cut = sliced(self._chain.slices, self._group.size)
            return update_shards(self._group, self._stage, cut)
        self._reducer.finish()
        reduced_s = time.monotonic()
        self._stage.update()
        return time.monotonic() - reduced_s


class Reducer:
    """Runs all-reduces in its own thread, in the order in which they are started.

    posts: of an all-reduce, at least one. collective_s: seconds that each costs beside its bytes.
    fork: `World.fork`. ahead: post the receives of the next one while one runs, if it was started,
    as NCCL's buffers are ready; not for tensors that a GPU has yet to fill. started_s:
    CLOCK_MONOTONIC when the last one was started; None if none was since `finish`.
    """

    def __init__(
        self,
        posts: Callable[[torch.Tensor], Sequence[Post]],
        collective_s: float = 0.0,
        fork: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        ahead: bool = False,
    ) -> None:
        self._posts, self._collective_s, self._fork = posts, collective_s, fork
        self._ahead = ahead
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._running: list[Future[torch.Tensor]] = []
        self._waiting: deque[torch.Tensor] = deque()
        self._opened: _Opened | None = None  # of the first that waits
        self.started_s: float | None = None

    def start(self, tensor: torch.Tensor) -> Future[torch.Tensor]:
        """Sum `tensor` over all ranks, in place, after those before it."""
        self.started_s = time.monotonic()
        self._waiting.append(tensor)
        self._running.append(self._thread.submit(self._run, tensor, self._fork()))
        return self._running[-1]

    def finish(self) -> None:
        """Block until all are done. Re-raises the exception of any."""
        for future in self._running:
            future.result()
        self._running.clear()
        self.started_s = None

    def _run(self, tensor: torch.Tensor, forked: AbstractContextManager[None]) -> torch.Tensor:
        self._waiting.popleft()  # this tensor
        compute(self._collective_s)
        with forked:
            run, others = self._opened or self._open(tensor)
            self._opened = None
            with RECORDER.span("collective", name="all_reduce"):
                for post in others:
                    following = post()
                    run()
                    run = following
                if self._ahead and self._waiting:
                    self._opened = self._open(self._waiting[0])
                run()
        return tensor

    def _open(self, tensor: torch.Tensor) -> _Opened:
        """Post the receives of the first pass."""
        first, *others = self._posts(tensor)
        return first(), others


def bucket_posts(world: World, plan: Plan) -> Callable[[torch.Tensor], Sequence[Post]]:
    """Return a function that prepares the sum of a tensor over all ranks, in place."""
    group = Group.paced(world, plan.placement, plan)

    def ring(tensor: torch.Tensor) -> Sequence[Post]:
        cut = plan.transport.ring_cut(tensor.nbytes * plan.scale, group.size)
        return all_reduce_posts(group, tensor, cut)

    def tree(tensor: torch.Tensor) -> Sequence[Post]:
        slices = plan.transport.num_tree_slices(tensor.nbytes * plan.scale)
        return tree_posts(group, tensor, slices)

    def gloo(tensor: torch.Tensor) -> Sequence[Post]:
        return [lambda: partial(dist.all_reduce, tensor)]

    if plan.data_parallel == "tree":
        return tree
    return gloo if plan.backend == "gloo" else ring


def num_messages(plan: Plan, full_bytes: float) -> int:
    """Return the messages in which gradients are sent: a ring first cuts them into a part per
    replica, two trees carry a half each."""
    if plan.data_parallel == "tree":
        return 2 * plan.transport.num_tree_slices(full_bytes)
    if plan.data_parallel == "ring":
        return plan.layout.dp * plan.transport.ring_cut(full_bytes, plan.layout.dp).num_messages
    slices = plan.transport.num_slices(full_bytes)
    return slices if plan.data_parallel == "central-ps" else max(slices, plan.layout.dp)


def build_replica(plan: Plan, index: int, reducer: Reducer) -> tuple[TrainedStage, Passes]:
    """Return replica `index` on the plan's device, and its passes. The last backward pass of an
    iteration starts the all-reduces of its buckets in `reducer`, if they overlap."""
    if plan.data_parallel in OVERLAPPED and plan.compute == VIRTUAL:
        replica = VirtualReplica(plan, reducer)
        return replica, replica
    (cost,) = plan.stages
    part = StageRole(
        index=0,
        replica=index,
        gradient_dtype=DTYPES[plan.workload.dtype],
        gradient_messages=num_messages(plan, cost.gradient_bytes),
        shard=(index, plan.layout.dp) if plan.data_parallel == "sharded-ps" else (0, 1),
    )
    stage = build_stage(plan, part)
    if plan.data_parallel in OVERLAPPED:
        assert isinstance(stage, RealStage)
        return stage, RealReplica(plan, stage, reducer)
    return stage, stage


class VirtualReplica(VirtualStage):
    """Sleeps through the backward pass from bucket to bucket. Buckets have their size / scale."""

    def __init__(self, plan: Plan, reducer: Reducer) -> None:
        (cost,) = plan.stages
        self._reducer, self._last = reducer, plan.num_micro_batches - 1
        self._buckets = gradient_buckets(plan)
        dtype = DTYPES[plan.workload.dtype]
        sizes = []
        for bucket in self._buckets:
            messages = num_messages(plan, bucket.size_bytes)
            size_bytes = payload_bytes(plan, bucket.size_bytes, messages)
            sizes.append(max(1, size_bytes // dtype.itemsize))
        gradients = torch.zeros(sum(sizes), dtype=dtype)
        self._tensors = torch.split(gradients, sizes)
        super().__init__(
            forward_s=cost.forward_s,
            backward_s=cost.backward_s,
            optimizer_s=cost.optimizer_s,
            boundary_bytes=0,
            gradients=gradients,
        )

    def backward(self, micro_batch: int, gradient: torch.Tensor | None) -> torch.Tensor:
        if micro_batch != self._last:
            return super().backward(micro_batch, gradient)
        with RECORDER.span("backward", micro_batch=micro_batch, chunk=0):
            began_s = time.monotonic()
            for bucket, tensor in zip(self._buckets, self._tensors, strict=True):
                sleep_until(began_s + bucket.ready_s)
                self._reducer.start(tensor)
        return self._boundary


class RealReplica:
    """Wraps the stage in torch's DistributedDataParallel, which fills the buckets."""

    def __init__(self, plan: Plan, stage: RealStage, reducer: Reducer) -> None:
        self.backward, self._last = stage.backward, plan.num_micro_batches - 1
        bucket_bytes = plan.bucket_bytes or stage.gradients.nbytes
        with warnings.catch_warnings():
            # About `broadcast_buffers`, whose new name torch 2.8 does not know.
            warnings.simplefilter("ignore", FutureWarning)
            self._model = DistributedDataParallel(
                _Whole(stage),
                bucket_cap_mb=bucket_bytes / 2**20,
                broadcast_buffers=False,
                init_sync=False,  # every rank makes the same weights
            )
        # A lambda: torch compares annotations with types, and here they are text.
        self._model.register_comm_hook(reducer, lambda state, bucket: _start(state, bucket))

    def forward(self, micro_batch: int, activation: torch.Tensor | None) -> torch.Tensor:
        with nullcontext() if micro_batch == self._last else self._model.no_sync():
            output: torch.Tensor = self._model(micro_batch)
        return output


class _Whole(nn.Module):
    """The whole model as a module whose forward pass is one micro-batch."""

    def __init__(self, stage: RealStage) -> None:
        super().__init__()
        self.layers = stage.layers
        self._stage = stage

    def forward(self, micro_batch: int) -> torch.Tensor:
        return self._stage.forward(micro_batch, None)


def _start(reducer: Reducer, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Communication hook: return a future of the sum of `bucket`, a `dist.GradBucket`."""
    buffer = bucket.buffer()
    devices = [buffer.device] if buffer.is_cuda else None
    reduced: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)

    def pass_on(future: Future[Any]) -> None:
        error = future.exception()
        if error is None:
            reduced.set_result(future.result())
        else:
            reduced.set_exception(error)  # type: ignore[arg-type]  # any exception would do

    reducer.start(buffer).add_done_callback(pass_on)
    return reduced
