"""DT-FM: GPipe rounds, then data parallelism through a central parameter server.

Source: the published release. In each round every stage takes all micro-batches forward, all ranks
meet at a barrier, and the backward passes follow in the same order. After the last round the ranks
of a stage reduce their gradients to the first pipeline's rank, which updates the parameters on the
CPU of its node and broadcasts them. Updates on one node share its CPU. None of that overlaps with
the pipeline. All ranks meet at a barrier once more.

The release has no 1F1B, which needs no barriers, no all-reduce of gradients, and no server sharded
over the ranks of a stage.
"""

import time
from itertools import accumulate, pairwise

from netbench.plan.collectives import SHORT_TENSOR_BYTES, ChainCut, RingCut
from netbench.plan.model import VIRTUAL, Plan
from netbench.plan.schedules import BACKWARD, FORWARD, build_programs
from netbench.systems import pipeline_of, position_of, replicas_of
from netbench.trainers.communication.collectives import (
    all_reduce_each,
    all_to_all_sum,
    chain_broadcast,
    chain_reduce,
    tree_lanes,
    tree_peers,
)
from netbench.trainers.communication.group import Barrier, Group
from netbench.trainers.communication.rings import ring_all_gather, ring_all_reduce
from netbench.trainers.communication.slices import equal_chunks, sliced
from netbench.trainers.communication.world import Lane, World, both_ways
from netbench.trainers.layers.gpt import DTYPES
from netbench.trainers.layers.stage import StageRole, TrainedStage, build_stage
from netbench.trainers.systems.pipeline import PipelineRank
from netbench.workload.costs import DTYPE_BYTES, stage_tensors

NUM_TREES = 2
"""Trees in which a short tensor is reduced, each with a message of its half."""


class DtfmRank:
    """One rank of a stage of a pipeline."""

    def __init__(self, world: World, plan: Plan) -> None:
        pp, dp = plan.layout.pp, plan.layout.dp
        placement = plan.placement
        rank = placement.index(world.rank)
        pipeline, stage, _ = position_of(plan, rank)
        self._plan = plan
        cost = plan.stages[stage]
        self._is_central = plan.data_parallel == "reduce-broadcast"
        self._by_tensor = plan.data_parallel == "by-tensor" and dp > 1
        self._tensors = stage_tensors(plan.workload, cost)
        tensor_bytes = [DTYPE_BYTES[plan.workload.dtype] * count for count in self._tensors]
        self._cuts = [
            None if size <= SHORT_TENSOR_BYTES else plan.transport.ring_cut(size, dp)
            for size in tensor_bytes
        ]
        self._chain = plan.transport.chain_cut(cost.gradient_bytes)
        slices = self._chain.slices
        if self._by_tensor:
            self._cut = RingCut()
            messages = sum(dp * cut.num_messages if cut else NUM_TREES for cut in self._cuts)
        elif self._is_central:
            self._cut, messages = RingCut(), slices
        elif plan.data_parallel == "sharded-ps":  # a part per replica
            self._cut, messages = sliced(slices, dp), max(slices, dp)
        else:
            self._cut = plan.transport.ring_cut(cost.gradient_bytes, dp)
            messages = dp * self._cut.num_messages
        replicas = replicas_of(plan, rank)
        self._replicas = Group.paced(world, replicas, plan)
        if self._is_central or plan.data_parallel == "sharded-ps":  # chains, and a ring in one pass
            self._replicas = Group.buffered(world, replicas, plan)
        updating = (
            pipeline_of(plan, placement.index(replicas[0])) if self._is_central else placement
        )
        nodes = [plan.device_nodes[device] for device in updating]
        server = replicas[0] if self._is_central else world.rank
        part = StageRole(
            index=stage,
            replica=pipeline,
            gradient_dtype=DTYPES[plan.workload.dtype],
            gradient_messages=messages,
            updating=nodes.count(plan.device_nodes[server]),
            shard=(pipeline, dp) if plan.data_parallel == "sharded-ps" else (0, 1),
        )
        self._stage = build_stage(plan, part)
        beside = plan.compute == VIRTUAL  # transfers are, and follow the order of the release
        phases = build_programs(plan.schedule, pp, plan.num_micro_batches, one_thread=not beside)
        self._programs = [programs[stage] for programs in phases]
        self._pipeline = PipelineRank(
            world, plan, pipeline_of(plan, rank), [self._stage], self._programs * plan.num_rounds
        )
        self._barrier = Barrier(Group.of(world, placement))

    def peers(self) -> set[int]:
        return self._data_peers() | self._barrier.peers

    @property
    def lanes(self) -> set[Lane]:
        """Lanes of pipelines and gradients; a barrier passes bytes of the CPU."""
        me = self._replicas.world.rank
        trees = tree_lanes(self._replicas) if self._by_tensor else set()
        return both_ways(me, self._data_peers() - {me}) | trees

    def _data_peers(self) -> set[int]:
        replicas = self._replicas.neighbours
        if self._plan.data_parallel == "sharded-ps":
            replicas = set(self._replicas.members)
        if self._by_tensor:
            replicas = replicas | tree_peers(self._replicas)
        return self._pipeline.peers | replicas

    @property
    def rates(self) -> dict[int, float]:
        return self._pipeline.rates

    def arm(self) -> None:
        self._pipeline.open()

    def take_loss(self) -> float | None:
        return self._stage.take_loss()

    def iterate(self) -> dict[str, float]:
        is_gpipe = self._plan.has_turn
        spent_s = self._rounds() if is_gpipe else self._pipeline.run(self._programs[0])
        began_s = time.monotonic()
        optimizer_s = self._synchronise()
        if is_gpipe:
            self._barrier.wait()
        return {
            "forward_s": spent_s[FORWARD],
            "backward_s": spent_s[BACKWARD],
            "sync_s": time.monotonic() - began_s - optimizer_s,
            "optimizer_s": optimizer_s,
        }

    def _synchronise(self) -> float:
        """Synchronise and update; return the seconds that this rank spent updating."""
        if self._is_central:
            return update_on_first(self._replicas, self._stage, self._chain)
        if self._plan.data_parallel == "sharded-ps":
            return update_shards(self._replicas, self._stage, self._cut)
        if not self._by_tensor:
            ring_all_reduce(self._replicas, self._stage.gradients, self._cut)
            return _update(self._stage)
        gradients = self._stage.gradients
        ends = [0, *accumulate(self._tensors)]
        scaled = [gradients.numel() * end // ends[-1] for end in ends]
        tensors = [gradients[start:end] for start, end in pairwise(scaled)]
        all_reduce_each(self._replicas, tensors, self._cuts)
        return _update(self._stage)

    def _rounds(self) -> dict[str, float]:
        """Run all rounds; return the seconds forward, with the barrier, and backward."""
        spent_s = {FORWARD: 0.0, BACKWARD: 0.0}
        forward, backward = self._programs
        then_s = time.monotonic()
        for _ in range(self._plan.num_rounds):
            self._pipeline.run(forward)
            self._barrier.wait()
            turned_s = time.monotonic()
            self._pipeline.run(backward)
            now_s = time.monotonic()
            spent_s[FORWARD] += turned_s - then_s
            spent_s[BACKWARD] += now_s - turned_s
            then_s = now_s
        return spent_s


def update_on_first(replicas: Group, stage: TrainedStage, cut: ChainCut) -> float:
    """Reduce to the first replica, update there, broadcast; return the seconds of this update."""
    chain_reduce(replicas, stage.gradients, cut)
    if replicas.index == 0:
        optimizer_s = _update(stage)
    else:
        optimizer_s = 0.0
        stage.zero_gradients()
    chain_broadcast(replicas, stage.parameters, cut)
    return optimizer_s


def update_shards(replicas: Group, stage: TrainedStage, cut: RingCut) -> float:
    """Every rank sums and updates its shard, then all gather the parameters."""
    shards = equal_chunks(stage.gradients.numel(), replicas.size)
    mine = stage.gradients[slice(*shards[replicas.index])]
    all_to_all_sum(replicas, mine, stage.gradients, shards)
    optimizer_s = _update(stage)
    ring_all_gather(replicas, stage.parameters, shards, cut)
    return optimizer_s


def _update(stage: TrainedStage) -> float:
    started_s = time.monotonic()
    stage.update()
    return time.monotonic() - started_s
