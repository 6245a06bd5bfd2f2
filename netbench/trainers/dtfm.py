"""DT-FM: GPipe rounds, then data parallelism through a central parameter server.

Source: the published release. In each round every stage takes all micro-batches forward, all ranks
meet at a barrier, and the backward passes go in the same order. After the last round the ranks
that hold the same stage reduce their gradients to the first pipeline's rank, which updates the
parameters, on the CPU that it shares with others of its node that do, and broadcasts them. Nothing
of that overlaps with the pipeline. All ranks meet at a barrier once more.
"""

from __future__ import annotations

import time

from netbench.plan import Plan
from netbench.trainers.collectives import (
    Barrier,
    Group,
    chain_broadcast,
    chain_reduce,
    count_slices,
)
from netbench.trainers.layers import DTYPES
from netbench.trainers.pipeline import PipelineRank
from netbench.trainers.schedules import Phase, gpipe_phase
from netbench.trainers.stage import Part, build_stage
from netbench.trainers.world import World


class Dtfm:
    """One rank: `stage` of `pipeline`, logical rank pipeline * pp + stage."""

    def __init__(self, world: World, plan: Plan) -> None:
        pp, dp = plan.layout.pp, plan.layout.dp
        placement = plan.placement
        pipeline, stage = divmod(placement.index(world.rank), pp)
        self._plan = plan
        cost = plan.stages[stage]
        self._slices = count_slices(cost.gradient_bytes, plan.transport.chunk_bytes)
        replicas = [placement[p * pp + stage] for p in range(dp)]
        self._replicas = Group.buffered(world, replicas, plan, cost.gradient_bytes / self._slices)
        nodes = [plan.device_nodes[device] for device in placement[:pp]]
        part = Part(
            index=stage,
            replica=pipeline,
            gradient_dtype=DTYPES[plan.workload.dtype],
            gradient_messages=self._slices,
            updating=nodes.count(plan.device_nodes[replicas[0]]),
        )
        self._stage = build_stage(plan, part)
        self._pipeline = PipelineRank(
            world,
            plan,
            placement[pipeline * pp : (pipeline + 1) * pp],
            stage,
            self._stage,
        )
        self._actions = {
            phase: gpipe_phase(phase, stage, pp, plan.num_micro_batches) for phase in Phase
        }
        self._barrier = Barrier(Group.of(world, placement))

    def peers(self) -> set[int]:
        return self._pipeline.peers | self._replicas.neighbours | self._barrier.peers

    def arm(self) -> None:
        self._pipeline.open(self._plan.num_rounds * self._plan.num_micro_batches)

    def take_loss(self) -> float | None:
        return self._stage.take_loss()

    def iterate(self) -> dict[str, float]:
        marks = [time.monotonic()]
        forward_s = backward_s = 0.0
        for _ in range(self._plan.num_rounds):
            self._pipeline.run(self._actions[Phase.FORWARD])
            self._barrier.wait()
            marks.append(time.monotonic())
            self._pipeline.run(self._actions[Phase.BACKWARD])
            marks.append(time.monotonic())
            forward_s += marks[-2] - marks[-3]
            backward_s += marks[-1] - marks[-2]
        optimizer_s = self._synchronise()
        self._barrier.wait()
        sync_s = time.monotonic() - marks[-1] - optimizer_s
        return {
            "forward_s": forward_s,
            "backward_s": backward_s,
            "sync_s": sync_s,
            "optimizer_s": optimizer_s,
        }

    def _synchronise(self) -> float:
        """Reduce, update, broadcast; seconds this rank spent updating."""
        chain_reduce(self._replicas, self._stage.gradients, self._slices)
        started_s = time.monotonic()
        if self._replicas.index == 0:
            self._stage.update()
        else:
            self._stage.zero_gradients()
        optimizer_s = time.monotonic() - started_s
        chain_broadcast(self._replicas, self._stage.parameters, self._slices)
        return optimizer_s
