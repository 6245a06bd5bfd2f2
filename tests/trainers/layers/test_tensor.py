"""Layers that several ranks share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.debug import CommDebugMode

from netbench.plan.model import Plan
from netbench.plan.tensor import inside_all_reduce_s
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.world import TAG_COLLECTIVE, PendingTransfer, World
from netbench.trainers.layers.gpt import GPTBlock, build_layer
from netbench.trainers.layers.stage import StageRole, TrainedStage, build_stage
from netbench.trainers.layers.tensor import SharedLayers
from netbench.trainers.systems.registry import AheadTrainer, build_trainer
from tests.trainers.parity import real_plan
from tests.trainers.processes import on_processes
from tests.trainers.rank_processes import RankProcesses

RANKS = 4


class CountingWorld(World):
    """Counts messages and bytes of collectives."""

    num_messages = num_bytes = 0

    def send(self, tensor: torch.Tensor, process: int, tag: int) -> PendingTransfer:
        if tag == TAG_COLLECTIVE:
            self.num_messages += 1
            self.num_bytes += tensor.nbytes
        return super().send(tensor, process, tag)


def virtual_plan(*, num_nodes: int, **changes: Any) -> Plan:
    """One stage of 3 layers that 4 ranks share, 4 micro-batches, recomputed."""
    plan = real_plan("megatron", layers=(3,), tp=RANKS, dp=1, batch=4, recomputation=True)
    stage = dataclasses.replace(plan.stages[0], forward_s=0.004, backward_s=0.012)
    nodes = tuple(rank * num_nodes // RANKS for rank in range(RANKS))
    return dataclasses.replace(
        plan, compute="virtual", stages=(stage,), device_nodes=nodes, activation_bytes=16_000,
        **changes,
    )  # fmt: skip


def train_counted(world: CountingWorld, plan: Plan) -> tuple[int, int, float]:
    """One iteration: messages and bytes that this rank sent, seconds that it slept."""
    system = build_trainer(world, plan)
    world.warm(system.peers())
    if isinstance(system, AheadTrainer):
        system.arm()
    slept_s: list[float] = []
    with mock.patch("time.sleep", slept_s.append):
        system.iterate()
    return world.num_messages, world.num_bytes, sum(slept_s)


@pytest.mark.parametrize("splits", [False, True])
def test_ranks_of_several_nodes_all_reduce_twice_per_layer_and_pass(*, splits: bool) -> None:
    """Micro-batches x layers x (forward, again, backward) x 2, each sending 3/4 twice."""
    plan = virtual_plan(num_nodes=2, sequence_parallel=splits)
    count = 4 * 3 * 3 * 2
    for messages, num_bytes, slept_s in on_processes(
        RANKS, train_counted, plan, world_type=CountingWorld
    ):
        assert messages == count * 2 * (RANKS - 1)
        assert num_bytes == count * 2 * (RANKS - 1) / RANKS * 16_000
        assert slept_s == pytest.approx(4 * (0.004 + 0.012) + 0.002)


def test_ranks_of_one_node_sleep_for_their_all_reduces() -> None:
    """Nothing is sent; every pass takes its compute and a ring at the rate inside a node."""
    plan = virtual_plan(num_nodes=1)
    transport = dataclasses.replace(plan.transport, inside_node_bps=96e6)
    plan = dataclasses.replace(plan, transport=transport)
    assert inside_all_reduce_s(plan) == pytest.approx(0.002)
    for messages, _, slept_s in on_processes(RANKS, train_counted, plan, world_type=CountingWorld):
        assert messages == 0
        assert slept_s == pytest.approx(4 * (0.004 + 0.012 + 3 * 3 * 2 * 0.002) + 0.002)


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_gradients_of_weights_alone_need_no_all_reduce(num_nodes: int) -> None:
    """Zero-bubble's pass of its own: the same bytes as the others' passes, the same sleep."""
    plan = virtual_plan(num_nodes=num_nodes, schedule="zero-bubble")
    joined = dataclasses.replace(plan, schedule="1f1b")
    apart, together = (
        on_processes(RANKS, train_counted, each, world_type=CountingWorld)
        for each in (plan, joined)
    )
    for (*sent, slept_s), (*expected, expected_s) in zip(apart, together, strict=True):
        assert sent == expected
        assert slept_s == pytest.approx(expected_s)


def count_collectives(world: World, plan: Plan) -> list[dict[str, int]]:
    """Count the collectives of a shared block's forward pass and of its backward pass."""
    shared = SharedLayers(plan, Group.of(world, range(world.size)))
    block = build_layer(plan.workload, 1, plan.seed)
    assert isinstance(block, GPTBlock)
    shared.shard([block])
    length = plan.workload.sequence // (world.size if plan.sequence_parallel else 1)
    x = torch.zeros(1, length, plan.workload.hidden, requires_grad=True)
    counts = []
    with CommDebugMode() as forward:  # type: ignore[no-untyped-call]
        y = block(x)
    with CommDebugMode() as backward:  # type: ignore[no-untyped-call]
        y.backward(torch.ones_like(y))
    for mode in (forward, backward):
        found = mode.get_comm_counts().items()
        counts.append({str(op).rpartition(".")[2]: count for op, count in found})
    return counts


def test_a_computed_block_all_reduces_twice_in_each_direction() -> None:
    """Virtual layers do the same: after attention and feed-forward, before their norms."""
    plan = real_plan("megatron", layers=(1,), tp=2, dp=1)
    for counts in on_processes(2, count_collectives, plan):
        assert counts == [{"all_reduce": 2}, {"all_reduce": 2}]


def test_sequence_parallelism_cuts_all_reduces_in_two() -> None:
    """An all-gather before what a reduce-scatter ends, in each direction."""
    plan = real_plan("megatron", layers=(1,), tp=2, dp=1, sequence_parallel=True)
    halves = {"all_gather_into_tensor": 2, "reduce_scatter_tensor": 2}
    for counts in on_processes(2, count_collectives, plan):
        assert counts == [halves, halves]


def train_parameters(world: World, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """After 3 steps: what every rank holds by itself, and what each holds a part of."""
    group = Group.of(world, range(world.size))
    stage: TrainedStage = build_stage(plan, StageRole(
        index=0, replica=0, gradient_dtype=torch.float32, gradient_messages=1, tensor_group=group
    ))  # fmt: skip
    for _ in range(3):
        for micro_batch in range(plan.num_micro_batches):
            stage.forward(micro_batch, None)
            stage.backward(micro_batch, None)
        stage.update()
    replicated: dict[str, Any] = {}
    sharded: dict[str, Any] = {}
    for name, parameter in stage._layers.named_parameters():  # type: ignore[attr-defined]
        is_shard = isinstance(parameter, DTensor) and parameter.placements != (Replicate(),)
        local = parameter.detach()
        local = local.to_local() if isinstance(local, DTensor) else local
        (sharded if is_shard else replicated)[name] = local.numpy().copy()
    return replicated, sharded


@pytest.mark.parametrize("splits", [False, True])
def test_replicated_parameters_stay_the_same_on_all_ranks(*, splits: bool) -> None:
    """To the last bit: norms, positions, and biases behind a reduction. The rest is parts."""
    plan = real_plan("megatron", layers=(2,), tp=2, dp=1, batch=2, sequence_parallel=splits)
    (first, first_parts), (second, second_parts) = on_processes(2, train_parameters, plan)
    assert first.keys() == second.keys()
    assert {name.partition(".")[2] for name in first} == {
        "positions.weight", "norm.weight", "norm.bias", "projection.bias", "feed_out.bias",
        "attention_norm.weight", "attention_norm.bias", "feed_norm.weight", "feed_norm.bias",
    }  # fmt: skip
    for name, values in first.items():
        assert values.tobytes() == second[name].tobytes(), name
    hidden, (query, table) = 16, (first_parts["1.query.weight"], first_parts["0.tokens.weight"])
    assert query.shape == (hidden // 2, hidden)
    assert table.shape == (128, hidden)
    for name, values in first_parts.items():
        if name.endswith("weight"):
            assert values.tobytes() != second_parts[name].tobytes(), name


def test_one_rank_of_those_that_share_the_head_reports_the_loss(
    start_ranks: Callable[[int], RankProcesses],
) -> None:
    """One rank of each replica. All know the loss. Plans follow one another in one world."""
    ranks = start_ranks(4)
    ranks.connect()
    for placement in ((0, 1, 2, 3), (3, 1, 0, 2)):
        plan = real_plan("megatron", layers=(1,), tp=2, dp=2, batch=4, placement=placement)
        answers = ranks.run(ranks.prepare(plan), 0)
        reporters = [rank for rank, answer in enumerate(answers) if answer["loss"] is not None]
        assert reporters == sorted((placement[0], placement[2]))
