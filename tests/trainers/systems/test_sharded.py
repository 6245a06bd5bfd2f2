"""zero3 and fsdp with virtual layers, on loopback ranks."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from netbench.plan.model import Plan
from netbench.trainers.communication.world import TAG_COLLECTIVE, PendingTransfer, World
from netbench.trainers.layers.gpt import Embedding, GPTBlock, Head
from netbench.trainers.systems import segments
from netbench.trainers.systems.registry import build_trainer
from netbench.trainers.systems.sharded import Unit
from netbench.workload.costs import layer_parameters
from tests.trainers.parity import real_plan
from tests.trainers.processes import DEADLINE_S, on_processes
from tests.trainers.rank_processes import phases_add_up
from tests.trainers.worlds import PostingWorld

LAYER_PARAMETERS = 12 * 8**2 + 13 * 8
"""Parameters of a layer with hidden size 8, as in the test plans."""

UNIT_BYTES = 2 * LAYER_PARAMETERS
"""Bytes of one layer in fp16."""

MATRIX_BYTES = 2 * 12 * 8**2
"""Bytes of its matrices, which zero3 gathers one by one: without vectors."""


class CountingWorld(World):
    """Counts the bytes that collectives send."""

    sent_bytes = 0

    def send(self, tensor: torch.Tensor, process: int, tag: int) -> PendingTransfer:
        if tag == TAG_COLLECTIVE:
            self.sent_bytes += tensor.numel() * tensor.element_size()
        return super().send(tensor, process, tag)


def sharded_plan(
    plan_of: Callable[..., Plan],
    placement: Sequence[int],
    *,
    system: str = "zero3",
    units: tuple[int, ...] = (1, 1),
    live_parameters: int = LAYER_PARAMETERS,
    num_micro_batches: int = 3,
    forward_s: float = 0.001,
    scale: float = 1.0,
    **fields: Any,
) -> Plan:
    """Two units of one layer each, of which one may stay gathered. forward_s: of all layers."""
    plan = plan_of(
        system=system,
        pp=1,
        dp=len(placement),
        placement=placement,
        units=units,
        live_parameters=live_parameters,
        num_micro_batches=num_micro_batches,
        forward_s=forward_s,
        scale=scale,
    )
    layers, (cost,) = sum(units), plan.stages
    return dataclasses.replace(
        plan,
        workload=dataclasses.replace(plan.workload, layers=layers),
        stages=(dataclasses.replace(cost, num_layers=layers),),
        **fields,
    )


@pytest.mark.parametrize("placement", [(0, 1), (2, 0, 3, 1)])
def test_an_iteration_lasts_at_least_its_compute(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Any], placement: tuple[int, ...]
) -> None:
    """Two plans in one process, run in turn: micro-steps x (F + B), and the optimizer."""
    ranks = start_ranks(len(placement))
    ranks.connect()
    plans = [sharded_plan(plan_of, placement, forward_s=seconds) for seconds in (0.005, 0.01)]
    hashes = [ranks.prepare(plan) for plan in plans]
    for iteration in range(2):
        for plan, plan_hash in zip(plans, hashes, strict=True):
            ended = ranks.run_undisturbed(plan_hash, iteration, phases_add_up)
            floor_s = 3 * 4 * plan.stages[0].forward_s + 0.002
            for answer in ended:
                seconds = answer["end_s"] - answer["start_s"]
                assert seconds >= floor_s
                phases = answer["phases"]
                assert phases["forward_s"] >= 3 * plan.stages[0].forward_s
                assert phases["backward_s"] >= 9 * plan.stages[0].forward_s


def _iterate(world: CountingWorld, plan: Plan) -> list[int]:
    system = build_trainer(world, plan)
    world.warm(system.peers())
    sent = []
    for _ in range(2):
        before = world.sent_bytes
        system.iterate()
        sent.append(world.sent_bytes - before)
    return sent


@pytest.mark.parametrize(
    ("system", "placement", "live_parameters", "gathered_bytes"),
    [
        ("zero3", (1, 0), 2 * LAYER_PARAMETERS - 1, UNIT_BYTES + 2 * MATRIX_BYTES),
        ("zero3", (2, 0, 3, 1), 0, 4 * MATRIX_BYTES),
        ("zero3", (2, 0, 3, 1), 2 * LAYER_PARAMETERS, 2 * UNIT_BYTES),
        ("fsdp", (2, 0, 3, 1), 0, 4 * UNIT_BYTES),
    ],
)
def test_units_beyond_the_live_limit_are_gathered_twice(
    plan_of: Callable[..., Any],
    system: str,
    placement: tuple[int, ...],
    live_parameters: int,
    gathered_bytes: int,
) -> None:
    """A rank sends (n - 1)/n of the bytes that are gathered, and of the gradients."""
    plan = sharded_plan(
        plan_of,
        placement,
        system=system,
        live_parameters=live_parameters,
        forward_s=0.0,
        prefetch_units=1 if system == "fsdp" else 0,
    )
    ranks = len(placement)
    expected = 3 * (gathered_bytes + 2 * UNIT_BYTES) * (ranks - 1) // ranks
    assert (
        on_processes(ranks, _iterate, plan, world_type=CountingWorld)
        == [[expected, expected]] * ranks
    )


@pytest.mark.parametrize(
    ("live_parameters", "gathered_bytes"),
    [(0, 3 * 4 * MATRIX_BYTES), (LAYER_PARAMETERS, UNIT_BYTES + 3 * 2 * MATRIX_BYTES)],
)
def test_kept_gradients_are_scattered_once(
    plan_of: Callable[..., Any], live_parameters: int, gathered_bytes: int
) -> None:
    """The last of three micro-steps scatters both units. Units within the live limit are gathered
    once in all; the others twice per micro-step."""
    plan = sharded_plan(
        plan_of, (0, 1), live_parameters=live_parameters, forward_s=0.0, accumulation="keep"
    )
    expected = (gathered_bytes + 2 * UNIT_BYTES) // 2
    assert on_processes(2, _iterate, plan, world_type=CountingWorld) == [[expected, expected]] * 2


@pytest.mark.parametrize(("shard_ranks", "placement"), [(2, (2, 0, 3, 1)), (4, (0, 1, 2, 3))])
def test_hybrid_sharding_sums_over_the_groups_once(
    plan_of: Callable[..., Any], shard_ranks: int, placement: tuple[int, ...]
) -> None:
    """Sent bytes of a rank: (r - 1)/r of a unit for each gather and scatter in its group of r; then
    2 (g - 1)/g of its shard of both units, to the other g - 1 groups, in the last micro-step."""
    plan = sharded_plan(plan_of, placement, forward_s=0.0, shard_ranks=shard_ranks)
    num_groups = len(placement) // shard_ranks
    inside = 3 * (3 * UNIT_BYTES + 2 * MATRIX_BYTES) * (shard_ranks - 1) // shard_ranks
    across = 2 * UNIT_BYTES // shard_ranks * 2 * (num_groups - 1) // num_groups
    assert (
        on_processes(4, _iterate, plan, world_type=CountingWorld)
        == [[inside + across, inside + across]] * 4
    )


def test_scaled_down_a_message_is_shortened_by_the_overhead_of_gloo(
    plan_of: Callable[..., Any],
) -> None:
    """162 bytes of each message at scale 2 are gloo's and TCP's, not payload. fsdp sends two slices
    per unit for two gathers and a scatter, and those of two parts of a shard across two groups."""
    plan = sharded_plan(plan_of, (0, 1), system="fsdp", scale=2.0, forward_s=0.0)
    message_bytes = UNIT_BYTES // 2 // 2 - 2 * 162
    assert (
        on_processes(2, _iterate, plan, world_type=CountingWorld)
        == [[3 * 6 * message_bytes] * 2] * 2
    )
    hybrid = sharded_plan(
        plan_of, (0, 1, 2, 3), system="fsdp", scale=2.0, forward_s=0.0, shard_ranks=2
    )
    across_bytes = 2 * 4 * max(1, UNIT_BYTES // 16 - 162)  # one at least
    assert (
        on_processes(4, _iterate, hybrid, world_type=CountingWorld)
        == [[3 * 6 * message_bytes + across_bytes] * 2] * 4
    )


class SlowWorld(World):
    """If a collective's message takes `TRANSFER_S` more to be received, one after the other in
    each thread. It also tells how many have come."""

    TRANSFER_S = 0.05

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.received = threading.Condition()
        self.num_received = 0

    def receive(self, tensor: torch.Tensor, process: int, tag: int) -> PendingTransfer:
        work = super().receive(tensor, process, tag)
        return _Slow(work, self) if tag == TAG_COLLECTIVE else work


class _Slow:
    def __init__(self, work: PendingTransfer, world: SlowWorld) -> None:
        self._work, self._world = work, world

    def wait(self) -> None:
        self._work.wait()
        time.sleep(self._world.TRANSFER_S)
        with self._world.received:
            self._world.num_received += 1
            self._world.received.notify()


def _come_while_computing(world: SlowWorld, plan: Plan) -> list[bool]:
    """For every time that a unit computes: whether what was expected by then came meanwhile.

    With two ranks each collective is one message to receive.
    """
    system = build_trainer(world, plan)
    world.warm(system.peers())
    count = len(plan.units)
    # Forward, unit by unit: those gathered so far, and the next. Backward: all those, the last unit
    # again and the one before it; each further unit adds a gather and a scatter, the first none.
    expected = [min(count, unit + 2) for unit in range(count)]
    expected += [count + 2 + 2 * unit for unit in range(count - 1)] + [3 * count - 1]
    came: list[bool] = []

    def compute(seconds: float) -> None:
        with world.received:
            number = expected[len(came)] if len(came) < len(expected) else 0
            came.append(world.received.wait_for(lambda: world.num_received >= number, DEADLINE_S))

    # This process is forked for the test.
    segments.compute = compute  # type: ignore[attr-defined]
    system.iterate()
    return came


def test_the_next_unit_comes_while_one_computes(plan_of: Callable[..., Any]) -> None:
    """A device that goes on computing until the next unit is there, and the gradients of the one
    before are away, gets to the end of both passes."""
    plan = sharded_plan(
        plan_of, (0, 1), system="fsdp", units=(1,) * 4, num_micro_batches=1, prefetch_units=1
    )
    came = on_processes(2, _come_while_computing, plan, world_type=SlowWorld)
    assert came == [[True] * (4 + 4 + 1)] * 2  # passes of units, and the update


def _posted_when_waiting(world: PostingWorld, plan: Plan) -> list[int]:
    system = build_trainer(world, plan)
    world.warm(system.peers())
    world.num_posted = 0
    world.posted_when_waiting.clear()
    system.iterate()
    return world.posted_when_waiting


def test_the_next_collective_is_awaited_while_one_runs(plan_of: Callable[..., Any]) -> None:
    """NCCL's buffers are ready: while a collective is waited for, the two slices of the next are
    posted, in the next micro-step too. A micro-step gathers a unit, then four matrices in either
    pass, and scatters one bucket."""
    plan = sharded_plan(plan_of, (0, 1), forward_s=0.0)
    collectives = 3 * (1 + 2 * 6 + 1)
    posted = [2 * min(before + 2, collectives) for before in range(collectives)]
    found = on_processes(2, _posted_when_waiting, plan, world_type=PostingWorld)
    assert found == [[count for count in posted for _ in range(2)]] * 2


def test_real_units_are_the_model_in_order() -> None:
    """The embedding is in the first unit, the head in the last; blocks have the costs' size."""
    plan = real_plan("zero3", layers=(4,), dp=1, units=(3, 1))
    units = [Unit(plan, index) for index in range(2)]
    kinds = [[type(layer) for layer in unit.layers] for unit in units]
    assert kinds == [[Embedding, *[GPTBlock] * 3], [GPTBlock, Head]]
    blocks = [p for unit in units for p in unit.parameters()]
    ends = [p for unit in units for m in unit.modules() if isinstance(m, (Embedding, Head))
            for p in m.parameters()]  # fmt: skip
    counted = sum(p.numel() for p in blocks) - sum(p.numel() for p in ends)
    assert counted == 4 * layer_parameters(plan.workload)
