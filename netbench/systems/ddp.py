"""Data parallelism: every rank has the whole model, and gradients are synchronised in buckets."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from netbench.plan.collectives import DATA_PARALLEL
from netbench.plan.model import Plan
from netbench.systems.base import System, Variant
from netbench.systems.iteration import (
    BACKWARD,
    COLLECTIVE,
    FORWARD,
    OPTIMIZER,
    Call,
    Segment,
    SegmentBuilder,
)
from netbench.workload.memory import StateBytes
from netbench.workload.whole import blocks

BUCKET_BYTES = 25 * 2**20
"""PyTorch's documented default, `bucket_cap_mb=25` of DistributedDataParallel (MiB)."""

OVERLAPPED = ("ring", "tree")
"""Kinds of data parallelism that start during the backward pass. A parameter server gets all
gradients after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Gradients that are reduced together. size_bytes: full size. ready_s: seconds from the start
    of the last micro-batch's backward pass until the bucket is full."""

    size_bytes: float
    ready_s: float


class Ddp(System):
    """Named models and GPTs."""

    name = "ddp"
    grammar = "ddp[-tree|-central-ps|-sharded-ps]"
    pattern = re.compile(r"ddp(-(?P<data_parallel>tree|central-ps|sharded-ps))?")
    examples = ("ddp",)
    trainer = "netbench.trainers.systems.ddp:DdpRank"
    overlaps_gradients = True
    counts_calls = True
    trains_named_models = True
    repairable = True

    def variant(self, found: re.Match[str]) -> Variant:
        return Variant(system=self.name, data_parallel=found["data_parallel"] or "ring", pipeline=1)

    def whole_layouts(self) -> Iterator[str]:
        yield from ("ddp", "ddp-tree", "ddp-central-ps", "ddp-sharded-ps")

    def complete(self, plan: Plan, variant: Variant) -> Plan:
        return dataclasses.replace(plan, bucket_bytes=BUCKET_BYTES)

    def state_bytes(self, dtype: str) -> StateBytes:
        """Gradients are there a second time, in buckets (`gradient_as_bucket_view=False`)."""
        state = super().state_bytes(dtype)
        return dataclasses.replace(state, gradient=2 * state.gradient)

    def segments(self, plan: Plan) -> tuple[Segment, ...]:
        """Gradient accumulation. The last backward pass hands over a bucket as soon as it is full,
        and one communicator reduces bucket after bucket while the pass goes on."""
        (stage,), buckets = plan.stages, gradient_buckets(plan)
        micro, last = SegmentBuilder(), SegmentBuilder()
        micro.add("device", FORWARD, stage.forward_s)
        micro.add("device", BACKWARD, stage.backward_s)
        last.add("device", FORWARD, stage.forward_s)
        between_s = np.diff([bucket.ready_s for bucket in buckets], prepend=0.0).tolist()
        pieces = [
            last.add("device", BACKWARD, seconds, label=index)
            for index, seconds in enumerate(between_s)
        ]
        for index, bucket in enumerate(buckets):
            call = _call(plan, bucket.size_bytes)
            last.add("network", COLLECTIVE, calls=[call], after=[pieces[index]], label=index)
        last.add("device", OPTIMIZER, stage.optimizer_s, after=last.last("network"))
        return (
            micro.build("micro-batch", plan.num_micro_batches - 1),
            last.build("last, synchronise"),
        )


def _call(plan: Plan, size_bytes: float) -> Call:
    """gloo has an all-reduce of its own, but no trees and no parameter servers: those are NCCL's
    whatever the backend."""
    return Call(
        op=DATA_PARALLEL[plan.data_parallel],
        library=plan.backend if plan.data_parallel == "ring" else "nccl",
        size_bytes=size_bytes,
        group_size=plan.layout.num_ranks,
        host_s=plan.collective_s,
    )


def gradient_buckets(plan: Plan) -> tuple[Bucket, ...]:
    """The buckets of a ddp plan in the order in which they fill: from the last layer on.

    Gradients of a block of layers (`workload.whole.blocks`) arrive evenly over its backward pass.
    The remainder is the last bucket. torch fills buckets tensor by tensor, so a bucket may exceed
    its size by a tensor, and a larger tensor, such as embeddings, has its own bucket. Here such a
    tensor is several buckets that fill at the same moment.
    """
    (stage,) = plan.stages
    total = float(stage.gradient_bytes)
    if plan.data_parallel not in OVERLAPPED:
        return (Bucket(size_bytes=total, ready_s=stage.backward_s),)
    backward = blocks(plan.workload)[::-1]
    size = plan.bucket_bytes or total
    ends = np.append(np.arange(size, total, size), total)
    come = np.cumsum([0.0, *(block.parameters for block in backward)])
    spent = np.cumsum([0.0, *(block.forward_flops for block in backward)])
    ready = np.interp(ends / total, come / come[-1], spent / spent[-1])
    return tuple(
        Bucket(size_bytes=float(size_bytes), ready_s=float(share * stage.backward_s))
        for size_bytes, share in zip(np.diff(ends, prepend=0.0), ready, strict=True)
    )
