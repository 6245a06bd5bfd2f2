"""MegatronRank on loopback ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from netbench.plan.model import Transport
from netbench.scenario.model import Link
from tests.trainers.rank_processes import Answers, phases_add_up


@pytest.mark.parametrize("placement", [(0, 1, 2, 3), (2, 0, 3, 1)])
def test_an_iteration_lasts_at_least_its_critical_path_of_compute(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Any], placement: tuple[int, ...]
) -> None:
    """1F1B over two stages: (m + pp - 1) x (F + B), and the optimizer."""
    ranks = start_ranks(4)
    ranks.connect()
    plan = plan_of(system="megatron", placement=placement, num_micro_batches=5, forward_s=0.005)
    plan_hash = ranks.prepare(plan)
    for iteration in range(2):
        ended = ranks.run_undisturbed(plan_hash, iteration, phases_add_up)
        seconds = [answer["end_s"] - answer["start_s"] for answer in ended]
        floor_s = (5 + 2 - 1) * (0.005 + 0.015) + 0.002
        assert max(seconds) >= floor_s


@pytest.mark.parametrize(
    ("limits", "each_s"),
    [
        ({"transport": Transport(host_bps=16e6)}, 0.02),
        ({"link": Link(one_way_delay_s=0.03, bandwidth_bps=40e6)}, 0.008 + 0.03),
    ],
)
def test_an_exchange_lasts_as_long_as_its_copies_and_its_message_on_the_network(
    start_ranks: Callable[[int], Any],
    plan_of: Callable[..., Any],
    limits: dict[str, Any],
    each_s: float,
) -> None:
    """The last of two stages exchanges between any two of its micro-batches: (m + 1) x (F + B),
    (m - 1) exchanges of 40 kB, and the optimizer. Loopback has neither limit nor delay: copies at
    16 Mbit/s take 20 ms, the message 8 ms at 40 Mbit/s and a delay of 30 ms."""
    ranks = start_ranks(2)
    ranks.connect()
    plan = plan_of(
        system="megatron",
        dp=1,
        num_micro_batches=5,
        forward_s=0.005,
        activation_bytes=40_000,
        **limits,
    )
    plan_hash = ranks.prepare(plan)
    for iteration in range(2):
        ended = ranks.run(plan_hash, iteration)
        slowest_s = max(answer["end_s"] - answer["start_s"] for answer in ended)
        assert slowest_s >= (5 + 1) * (0.005 + 0.015) + (5 - 1) * each_s + 0.002


@pytest.mark.parametrize(
    ("schedule", "num_chunks", "bubble"), [("interleaved", 2, 1 / 2), ("zero-bubble", 1, 3 / 4)]
)
def test_other_schedules_last_at_least_what_is_left_of_the_bubble(
    start_ranks: Callable[[int], Any],
    plan_of: Callable[..., Any],
    schedule: str,
    num_chunks: int,
    bubble: float,
) -> None:
    """Over two stages a bubble of F + B becomes (F + B) / v with v chunks a stage, and F + B - W
    with gradients of weights (W = F) computed last. B is 3 F. That they last no longer is seen in
    virtual time, where the machine has no say (tests/testbed/test_guest_pipelines.py)."""
    ranks = start_ranks(2)
    ranks.connect()
    plan = plan_of(system="megatron", dp=1, num_micro_batches=6, forward_s=0.02)
    plan = replace(plan, schedule=schedule, num_chunks=num_chunks)
    plan_hash = ranks.prepare(plan)
    for iteration in range(2):
        ended = ranks.run_undisturbed(plan_hash, iteration, phases_add_up)
        slowest_s = max(answer["end_s"] - answer["start_s"] for answer in ended)
        floor_s = (6 + bubble) * (0.02 + 0.06) + 0.002
        assert slowest_s >= floor_s


def test_a_rank_computes_for_what_its_own_device_takes(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Any]
) -> None:
    """Three replicas; rank 0 is on device 2, the slow one. The others wait for it."""
    ranks = start_ranks(3)
    ranks.connect()
    plan = plan_of(system="megatron", pp=1, dp=3, placement=(2, 0, 1), num_micro_batches=2)
    (stage,) = plan.stages
    slow = replace(stage, forward_s=0.1, backward_s=0.2)
    types = {"device_types": (0, 0, 1), "type_stages": ((stage,), (slow,))}
    plan_hash = ranks.prepare(replace(plan, **types, type_names=("fast", "slow")))

    def fast_ranks_are_fast(answers: Answers) -> bool:
        passes = [answer["phases"] for answer in answers[:2]]
        return all(each["forward_s"] < 0.2 and each["backward_s"] < 0.4 for each in passes)

    ended = ranks.run_undisturbed(plan_hash, 0, fast_ranks_are_fast)
    assert ended[2]["phases"]["forward_s"] >= 2 * 0.1
    assert ended[2]["phases"]["backward_s"] >= 2 * 0.2
    for answer in ended:
        assert answer["end_s"] - answer["start_s"] >= 2 * (0.1 + 0.2)


def test_replicas_wait_for_the_sum_of_their_losses(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Any]
) -> None:
    """After every forward pass, in a network with a delay of 1 ms: as long as the slowest one."""
    ranks = start_ranks(3)
    ranks.connect()
    link = Link(one_way_delay_s=1e-3, bandwidth_bps=1e9)
    plan = plan_of(
        system="megatron", pp=1, dp=3, placement=(2, 0, 1), num_micro_batches=2, link=link
    )
    (stage,) = plan.stages
    types = {"device_types": (0, 0, 1), "type_stages": ((stage,), (replace(stage, forward_s=0.1),))}
    plan_hash = ranks.prepare(replace(plan, **types, type_names=("fast", "slow")))
    for iteration in range(2):
        ended = ranks.run(plan_hash, iteration)
        for answer in ended:
            # Gradients are reduced after the passes. A rank may start late.
            passes_s = answer["phases"]["forward_s"] + answer["phases"]["backward_s"]
            assert answer["start_s"] + passes_s >= ended[2]["start_s"] + 2 * 0.1


def test_one_world_serves_plans_of_different_systems_and_placements(
    start_ranks: Callable[[int], Any], plan_of: Callable[..., Any]
) -> None:
    """Plans are prepared first and run in any order afterwards."""
    ranks = start_ranks(4)
    ranks.connect()
    plans = [
        plan_of(system=system, placement=placement)
        for system in ("dtfm", "megatron")
        for placement in ((0, 1, 2, 3), (3, 1, 0, 2))
    ]
    hashes = [ranks.prepare(plan) for plan in plans]
    assert len(set(hashes)) == 4
    for plan_hash in reversed(hashes):
        for answer in ranks.run(plan_hash, 0):
            assert answer["plan_hash"] == plan_hash
            assert answer["end_s"] > answer["start_s"]
