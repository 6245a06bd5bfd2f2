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
from netbench.trainers.links import payload_bytes
from netbench.trainers.pipeline import PipelineRank, boundary_bytes
from netbench.trainers.schedules import Phase, one_forward_one_backward
from netbench.trainers.virtual import VirtualStage, compute
from netbench.trainers.world import World

GRADIENT_DTYPE = torch.float32


class Megatron:
    """One rank: `stage` of `pipeline`, logical rank stage * dp + pipeline."""

    def __init__(self, world: World, plan: Plan) -> None:
        pp, dp = plan.layout.pp, plan.layout.dp
        placement = plan.placement
        stage, pipeline = divmod(placement.index(world.rank), dp)
        self._plan = plan
        self._cost = plan.stages[stage]
        self._pipeline = PipelineRank(
            world,
            plan,
            placement[pipeline::dp],
            stage,
            VirtualStage(
                forward_s=self._cost.forward_s,
                backward_s=self._cost.backward_s,
                boundary_bytes=boundary_bytes(plan),
            ),
        )
        self._actions = one_forward_one_backward(stage, pp, plan.num_micro_batches)
        self._slices = count_slices(self._cost.gradient_bytes, plan.transport.chunk_bytes)
        # A ring cuts the gradients into a chunk per replica, and those into slices.
        messages = max(self._slices, dp)
        replicas = placement[stage * dp : (stage + 1) * dp]
        slice_bytes = self._cost.gradient_bytes / messages
        self._replicas = Group.buffered(world, replicas, plan, slice_bytes)
        payload = payload_bytes(self._cost.gradient_bytes, plan.scale, messages)
        elements = max(1, payload // GRADIENT_DTYPE.itemsize)
        self._gradients = torch.zeros(elements, dtype=GRADIENT_DTYPE)

    def peers(self) -> set[int]:
        return self._pipeline.peers | self._replicas.neighbours

    def arm(self) -> None:
        self._pipeline.open(self._plan.num_micro_batches)

    def iterate(self) -> dict[str, float]:
        spent_s = self._pipeline.run(self._actions)
        began_s = time.monotonic()
        ring_all_reduce(self._replicas, self._gradients, self._slices)
        reduced_s = time.monotonic()
        compute(self._cost.optimizer_s)
        return {
            "forward_s": spent_s[Phase.FORWARD],
            "backward_s": spent_s[Phase.BACKWARD],
            "sync_s": reduced_s - began_s,
            "optimizer_s": time.monotonic() - reduced_s,
        }
