"""The buckets in which ddp all-reduces gradients, and when in the backward pass each is full."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netbench.plan.model import Plan
from netbench.workload.whole import blocks

OVERLAPPED = ("ring", "tree")
"""Kinds of data parallelism that start while the backward pass goes on. A parameter server gets
gradients as a whole, when it is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Gradients that are reduced together. size_bytes: full size. ready_s: seconds into the last
    micro-batch's backward pass at which the last of them is there."""

    size_bytes: float
    ready_s: float


def gradient_buckets(plan: Plan) -> tuple[Bucket, ...]:
    """A ddp plan's, in the order in which they are full: from the last layer on.

    Gradients of a block of layers (`workload.whole.blocks`) come evenly over its time. What is
    left over is the last bucket. torch fills buckets tensor by tensor, so one may have a tensor
    more than fits, and a tensor larger than a bucket, such as embeddings, is one of its own: here
    it is several, full at the same moment.
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
