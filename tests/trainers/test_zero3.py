"""ZeRO-3 on loopback ranks."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from netbench.plan import Plan
from netbench.trainers import units
from netbench.trainers.world import TAG_COLLECTIVE, Work, World
from netbench.trainers.zero3 import Zero3
from tests.trainers.processes import DEADLINE_S, on_processes

LAYER_PARAMETERS = 12 * 8**2 + 13 * 8
"""Of the test plans' hidden size of 8."""

UNIT_BYTES = 2 * LAYER_PARAMETERS
"""Of one layer in fp16."""


class CountingWorld(World):
    """Counts the bytes that collectives send."""

    sent_bytes = 0

    def send(self, tensor: torch.Tensor, process: int, tag: int) -> Work:
        if tag == TAG_COLLECTIVE:
            self.sent_bytes += tensor.numel() * tensor.element_size()
        return super().send(tensor, process, tag)


def zero3_plan(
    plan_of: Callable[..., Plan],
    placement: Sequence[int],
    *,
    units: tuple[int, ...] = (1, 1),
    live_parameters: int = LAYER_PARAMETERS,
    num_micro_batches: int = 3,
    forward_s: float = 0.001,
    scale: float = 1.0,
    **fields: Any,
) -> Plan:
    """Two units of one layer each, of which one may stay gathered. forward_s: of all layers."""
    plan = plan_of(
        system="zero3",
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
    plans = [zero3_plan(plan_of, placement, forward_s=seconds) for seconds in (0.005, 0.01)]
    hashes = [ranks.prepare(plan) for plan in plans]
    for iteration in range(2):
        for plan, plan_hash in zip(plans, hashes, strict=True):
            ended = ranks.run(plan_hash, iteration)
            floor_s = 3 * 4 * plan.stages[0].forward_s + 0.002
            for answer in ended:
                seconds = answer["end_s"] - answer["start_s"]
                assert seconds >= floor_s
                phases = answer["phases"]
                assert sum(phases.values()) == pytest.approx(seconds, abs=0.02)
                assert phases["forward_s"] >= 3 * plan.stages[0].forward_s
                assert phases["backward_s"] >= 9 * plan.stages[0].forward_s


def _iterate(world: CountingWorld, plan: Plan) -> list[int]:
    system = Zero3(world, plan)
    world.warm(system.peers())
    sent = []
    for _ in range(2):
        before = world.sent_bytes
        system.arm()
        system.iterate()
        sent.append(world.sent_bytes - before)
    return sent


@pytest.mark.parametrize("prefetch_units", [0, 1])
@pytest.mark.parametrize(
    ("placement", "live_parameters", "gathers"),
    [
        ((1, 0), 2 * LAYER_PARAMETERS - 1, 3),
        ((2, 0, 3, 1), 0, 4),
        ((2, 0, 3, 1), 2 * LAYER_PARAMETERS, 2),
    ],
)
def test_units_beyond_the_live_limit_are_gathered_twice(
    plan_of: Callable[..., Any],
    placement: tuple[int, ...],
    live_parameters: int,
    gathers: int,
    prefetch_units: int,
) -> None:
    """Sent bytes of a rank: (n - 1)/n of a unit for each gather and each of the two scatters.
    Whether they are prefetched makes no difference."""
    plan = zero3_plan(
        plan_of,
        placement,
        live_parameters=live_parameters,
        forward_s=0.0,
        prefetch_units=prefetch_units,
    )
    ranks = len(placement)
    expected = 3 * (gathers + 2) * UNIT_BYTES * (ranks - 1) // ranks
    assert (
        on_processes(ranks, _iterate, plan, world_type=CountingWorld)
        == [[expected, expected]] * ranks
    )


@pytest.mark.parametrize(
    ("live_parameters", "gathers"), [(0, 3 * 4), (LAYER_PARAMETERS, 1 + 3 * 2)]
)
def test_kept_gradients_are_scattered_once(
    plan_of: Callable[..., Any], live_parameters: int, gathers: int
) -> None:
    """Of three micro-steps the last scatters both units. Those within the live limit are gathered
    once in all; the others twice per micro-step."""
    plan = zero3_plan(
        plan_of, (0, 1), live_parameters=live_parameters, forward_s=0.0, accumulation="keep"
    )
    expected = (gathers + 2) * UNIT_BYTES // 2
    assert on_processes(2, _iterate, plan, world_type=CountingWorld) == [[expected, expected]] * 2


@pytest.mark.parametrize(("shard_ranks", "placement"), [(2, (2, 0, 3, 1)), (4, (0, 1, 2, 3))])
def test_hybrid_sharding_sums_over_the_groups_once(
    plan_of: Callable[..., Any], shard_ranks: int, placement: tuple[int, ...]
) -> None:
    """Sent bytes of a rank: (r - 1)/r of a unit for each gather and scatter in its group of r; then
    2 (g - 1)/g of its shard of both units, to the other g - 1 groups, in the last micro-step."""
    plan = zero3_plan(plan_of, placement, forward_s=0.0, shard_ranks=shard_ranks)
    num_groups = len(placement) // shard_ranks
    inside = 3 * 5 * UNIT_BYTES * (shard_ranks - 1) // shard_ranks
    across = 2 * UNIT_BYTES // shard_ranks * 2 * (num_groups - 1) // num_groups
    assert (
        on_processes(4, _iterate, plan, world_type=CountingWorld)
        == [[inside + across, inside + across]] * 4
    )


def test_scaled_down_a_message_is_shortened_by_what_gloo_adds(
    plan_of: Callable[..., Any],
) -> None:
    """162 bytes of each message at scale 2 are gloo's and TCP's, not payload: of one message per
    gather and scatter, and of one per group across."""
    plan = zero3_plan(plan_of, (0, 1), scale=2.0, forward_s=0.0)
    message_bytes = UNIT_BYTES // 2 // 2 - 162
    assert (
        on_processes(2, _iterate, plan, world_type=CountingWorld)
        == [[3 * 5 * message_bytes] * 2] * 2
    )
    hybrid = zero3_plan(plan_of, (0, 1, 2, 3), scale=2.0, forward_s=0.0, shard_ranks=2)
    across_bytes = 2 * (UNIT_BYTES // 2 // 2 - 2 * 162)
    assert (
        on_processes(4, _iterate, hybrid, world_type=CountingWorld)
        == [[3 * 5 * message_bytes + across_bytes] * 2] * 4
    )


class SlowWorld(World):
    """Where a collective's message takes `TRANSFER_S` more to be received, one after the other in
    each thread. It also tells how many have come."""

    TRANSFER_S = 0.05

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.received = threading.Condition()
        self.num_received = 0

    def receive(self, tensor: torch.Tensor, process: int, tag: int) -> Work:
        work = super().receive(tensor, process, tag)
        return _Slow(work, self) if tag == TAG_COLLECTIVE else work


class _Slow:
    def __init__(self, work: Work, world: SlowWorld) -> None:
        self._work, self._world = work, world

    def wait(self) -> None:
        self._work.wait()
        time.sleep(self._world.TRANSFER_S)
        with self._world.received:
            self._world.num_received += 1
            self._world.received.notify()


def _best_s(world: SlowWorld, plan: Plan) -> float:
    system = Zero3(world, plan)
    world.warm(system.peers())
    best_s = float("inf")
    for _ in range(3):
        started_s = time.monotonic()
        system.iterate()
        best_s = min(best_s, time.monotonic() - started_s)
    return best_s


def test_prefetching_hides_transfers_behind_the_computation(plan_of: Callable[..., Any]) -> None:
    """k units on two ranks, each with a transfer T per collective, forward f >= T, backward
    b >= 2 T. In turn: k (f + b + 3 T). Prefetched: k (f + b) + 3 T, for only the first gather of
    either pass and the last scatter are waited for; less is impossible, and it takes less than in
    turn even if the machine is slow."""
    count, transfer_s, forward_s, update_s = 6, SlowWorld.TRANSFER_S, 0.05, 0.002
    computing_s = count * 4 * forward_s + update_s
    in_turn_s = computing_s + 3 * count * transfer_s
    seconds = {}
    for prefetch_units in (0, 1):
        plan = zero3_plan(
            plan_of,
            (0, 1),
            units=(1,) * count,
            live_parameters=0,
            num_micro_batches=1,
            forward_s=count * forward_s,
            prefetch_units=prefetch_units,
        )
        seconds[prefetch_units] = on_processes(2, _best_s, plan, world_type=SlowWorld)
    assert min(seconds[0]) >= in_turn_s
    assert computing_s + 3 * transfer_s <= min(seconds[1])
    assert max(seconds[1]) < in_turn_s


def _come_while_computing(world: SlowWorld, plan: Plan) -> list[bool]:
    """For every time that a unit computes: whether what was expected by then came meanwhile.

    With two ranks each collective is one message to receive.
    """
    system = Zero3(world, plan)
    world.warm(system.peers())
    count = len(plan.units)
    # Forward, unit by unit: those gathered so far, and the next. Backward: all those, the last unit
    # again and the one before it; each further unit adds a gather and a scatter, the first none.
    expected = [min(count, unit + 2) for unit in range(count)]
    expected += [count + 2 + 2 * unit for unit in range(count - 1)] + [3 * count - 1]
    came = []

    def compute(_: float) -> None:
        with world.received:
            number = expected[len(came)] if len(came) < len(expected) else 0
            came.append(
                world.received.wait_for(lambda: world.num_received >= number, DEADLINE_S / 20)
            )

    units.compute = compute  # type: ignore[assignment]  # this process is forked for the test
    system.iterate()
    return came


def test_the_next_unit_comes_while_one_computes(plan_of: Callable[..., Any]) -> None:
    """A device that goes on computing until the next unit is there, and the gradients of the one
    before are away, gets to the end of both passes."""
    plan = zero3_plan(
        plan_of,
        (0, 1),
        units=(1,) * 4,
        live_parameters=0,
        num_micro_batches=1,
        prefetch_units=1,
    )
    came = on_processes(2, _come_while_computing, plan, world_type=SlowWorld)
    assert came == [[True] * (4 + 4 + 1)] * 2  # passes of units, and the update
