"""Megatron-LM: synchronous 1F1B pipelines, then one all-reduce of fp32 gradients per stage.

Every exchange with a neighbour is waited for before the stage computes again, as in
`forward_backward_pipelining_without_interleaving`. Not modelled: the all-reduce of tied embeddings
between the first and the last stage.
"""

from __future__ import annotations

import time

import torch

from netbench.plan import Plan
from netbench.trainers.collectives import Group, count_slices, ring_all_reduce
from netbench.trainers.layers import DTYPES
from netbench.trainers.pipeline import PipelineRank
from netbench.trainers.schedules import Phase, one_forward_one_backward
from netbench.trainers.stage import Part, build_stage
from netbench.trainers.world import World


class Megatron:
    """One rank: `stage` of `pipeline`, logical rank stage * dp + pipeline."""

    def __init__(self, world: World, plan: Plan) -> None:
        pp, dp = plan.layout.pp, plan.layout.dp
        placement = plan.placement
        stage, pipeline = divmod(placement.index(world.rank), dp)
        self._plan = plan
        cost = plan.stages[stage]
        self._slices = count_slices(cost.gradient_bytes, plan.transport.chunk_bytes)
        # A ring cuts the gradients into a chunk per replica, and those into slices.
        messages = max(self._slices, dp)
        replicas = placement[stage * dp : (stage + 1) * dp]
        self._replicas = Group.buffered(world, replicas, plan, cost.gradient_bytes / messages)
        part = Part(
            index=stage,
            replica=pipeline,
            gradient_dtype=_gradient_dtype(plan),
            gradient_messages=messages,
        )
        self._stage = build_stage(plan, part)
        self._pipeline = PipelineRank(world, plan, placement[pipeline::dp], stage, self._stage)
        self._actions = one_forward_one_backward(stage, pp, plan.num_micro_batches)

    def peers(self) -> set[int]:
        return self._pipeline.peers | self._replicas.neighbours

    def arm(self) -> None:
        self._pipeline.open(self._plan.num_micro_batches)

    def take_loss(self) -> float | None:
        return self._stage.take_loss()

    def iterate(self) -> dict[str, float]:
        spent_s = self._pipeline.run(self._actions)
        began_s = time.monotonic()
        ring_all_reduce(self._replicas, self._stage.gradients, self._slices)
        reduced_s = time.monotonic()
        self._stage.update()
        return {
            "forward_s": spent_s[Phase.FORWARD],
            "backward_s": spent_s[Phase.BACKWARD],
            "sync_s": reduced_s - began_s,
            "optimizer_s": time.monotonic() - reduced_s,
        }


def _gradient_dtype(plan: Plan) -> torch.dtype:
    """Megatron accumulates and reduces in fp32 what is computed in less."""
    dtype = DTYPES[plan.workload.dtype]
    return dtype if dtype.itemsize > torch.float32.itemsize else torch.float32
