"""Megatron-LM: synchronous pipelines, then one all-reduce of gradients per model chunk.

1F1B, interleaved (a rank has several chunks of the model), or zero-bubble. Every exchange is waited
for before the rank computes again, as in `forward_backward_pipelining_without_interleaving`. Last
stages sum the loss of every micro-batch over the replicas, for the log
(`average_losses_across_data_parallel_group`); where layers compute, they do not. Not modelled: the
all-reduce of tied embeddings between the first and the last stage.
"""

import time
from collections.abc import Sequence
from typing import ClassVar

from netbench.plan.model import VIRTUAL, Plan
from netbench.plan.schedules import BACKWARD, FORWARD, build_programs
from netbench.plan.tensor import tensor_groups
from netbench.systems import pipeline_of, position_of, replicas_of, sums_losses
from netbench.trainers.communication.collectives import NumberSum
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.rings import ring_all_reduce
from netbench.trainers.communication.world import World
from netbench.trainers.layers.stage import StageRole, TrainedStage, build_stage, gradient_dtype
from netbench.trainers.layers.virtual import tensor_peers
from netbench.trainers.systems.pipeline import PipelineRank


class MegatronRank:
    """One rank of a stage, of a pipeline, of a tensor-parallel group.

    updates_shard: it updates its part of the parameters only. replicas: ranks with the same part of
    the model. cut: of a chunk's gradients in their ring.
    """

    updates_shard: ClassVar[bool] = False

    def __init__(self, world: World, plan: Plan) -> None:
        tp, pp, dp = plan.layout.tp, plan.layout.pp, plan.layout.dp
        rank = plan.placement.index(world.rank)
        pipeline, stage, _ = position_of(plan, rank)
        chunk_bytes = plan.stages[stage].gradient_bytes / plan.num_chunks
        self.cut = plan.transport.ring_cut(chunk_bytes, dp)
        self.replicas = Group.paced(world, replicas_of(plan, rank), plan)
        tensor_group = Group.of(world, tensor_groups(plan)[rank // tp]) if tp > 1 else None
        self._tensor_peers = tensor_peers(plan, tensor_group) if tensor_group else set()
        parts = [
            StageRole(
                index=chunk * pp + stage,
                replica=pipeline,
                gradient_dtype=gradient_dtype(plan),
                gradient_messages=dp * self.cut.num_messages,
                shard=(pipeline, dp) if self.updates_shard else (0, 1),
                tensor_group=tensor_group,
            )
            for chunk in range(plan.num_chunks)
        ]
        self._chunks = [build_stage(plan, part) for part in parts]
        (programs,) = build_programs(plan.schedule, pp, plan.num_micro_batches, plan.num_chunks)
        self._program = programs[stage]
        sums = sums_losses(plan) and plan.compute == VIRTUAL and stage == pp - 1
        self._losses = NumberSum(self.replicas) if sums else None
        self._num_losses = plan.num_micro_batches
        self._pipeline = PipelineRank(
            world,
            plan,
            pipeline_of(plan, rank),
            self._chunks,
            [self._program],
            self._losses.run if self._losses else None,
        )

    def peers(self) -> set[int]:
        summing = self._losses.peers if self._losses else set()
        return self._pipeline.peers | self.replicas.neighbours | summing | self._tensor_peers

    @property
    def rates(self) -> dict[int, float]:
        return self._pipeline.rates

    def arm(self) -> None:
        self._pipeline.open()
        if self._losses:
            self._losses.open(self._num_losses)

    def take_loss(self) -> float | None:
        shares = [chunk.take_loss() for chunk in self._chunks]
        return next((share for share in shares if share is not None), None)

    def iterate(self) -> dict[str, float]:
        spent_s = self._pipeline.run(self._program)
        began_s = time.monotonic()
        optimizer_s = self.synchronise(self._chunks)
        return {
            "forward_s": spent_s[FORWARD],
            "backward_s": spent_s[BACKWARD],
            "sync_s": time.monotonic() - began_s - optimizer_s,
            "optimizer_s": optimizer_s,
        }

    def synchronise(self, chunks: Sequence[TrainedStage]) -> float:
        """Sum the gradients of all replicas and update; return the seconds of the updates."""
        for chunk in chunks:
            ring_all_reduce(self.replicas, chunk.gradients, self.cut)
        return update(chunks)


def update(chunks: Sequence[TrainedStage]) -> float:
    """Update the chunks; return the seconds."""
    began_s = time.monotonic()
    for chunk in chunks:
        chunk.update()
    return time.monotonic() - began_s
