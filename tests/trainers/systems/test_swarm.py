"""Peers of a swarm on loopback: how much each accumulates, and what a round consists of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from netbench.plan.build import build_plan
from netbench.plan.model import Plan
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.systems.rounds import time_round
from netbench.trainers.communication.world import World
from netbench.trainers.systems.swarm import SwarmRank
from tests.trainers.processes import on_processes

BATCH, ROUNDS = 200, 2

SCENARIO = """
name: swarm
regions: [Here]
nodes: [{region: Here, count: 2, device: Slow}, {region: Here, count: 1, device: Fast}]
network: {inside: {one_way_delay: 1ms, bandwidth: 1Gbit}}
devices:
  Slow: {throughput: {mine: 250}}
  Fast: {throughput: {mine: 1000}, step: 2, host_factor: 0.5}
workload: {model: mine, parameters: 1M, tensors: 3, batch: BATCH, micro_batch: 5}
"""


@pytest.fixture
def plan_of(tmp_path: Path) -> Any:
    """Make a plan of three peers, the third four times as fast."""
    path = tmp_path / "swarm.yaml"
    path.write_text(SCENARIO.replace("BATCH", str(BATCH)), encoding="utf-8")

    def make(variant: str, **changes: Any) -> Plan:
        plan = build_plan(load_scenario(str(path)), variant, Setting(layers=1, batch=BATCH))
        return dataclasses.replace(plan, **changes)

    return make


def run(world: World, plan: Plan, rounds: int) -> list[tuple[dict[str, float], int]]:
    """Return the phases of every round, and the samples of this peer."""
    rank = SwarmRank(world, plan)
    found = []
    for _ in range(rounds):
        phases = rank.iterate()
        found.append((phases, rank.samples))
    return found


def test_peers_stop_once_all_together_have_the_batch(plan_of: Any) -> None:
    """In proportion to their speed; each finishes its step."""
    plan = plan_of("hivemind-swarm-m0")
    ranks = on_processes(3, run, plan, ROUNDS)
    for number in range(ROUNDS):
        samples = [of_rank[number][1] for of_rank in ranks]
        # A busy machine is late, and others' samples are estimated.
        assert sum(samples) == pytest.approx(BATCH + (5 + 5 + 10) / 2, rel=0.2)
        assert samples[2] / samples[0] == pytest.approx(4, rel=0.35)


def test_a_round_computes_waits_and_averages_in_turn(plan_of: Any) -> None:
    """Together at least what the simulator says, without links that slow loopback down."""
    plan = plan_of("hivemind-swarm-m1")
    expected = time_round(plan)
    for of_rank in on_processes(3, run, plan, ROUNDS):
        for phases, _ in of_rank:
            computed_s = phases["forward_s"] + phases["backward_s"]
            assert computed_s >= expected.compute_s - 0.02
            assert sum(phases.values()) >= 1 + 0.14
            assert phases["sync_s"] == pytest.approx(sum(phases.values()) - computed_s, abs=1e-3)


def test_averaging_in_the_background_is_beside_the_next_round(plan_of: Any) -> None:
    """The first round has nothing to average. Later ones take the longer of both."""
    plan = plan_of("hivemind-swarm-m0-background")
    series = plan_of("hivemind-swarm-m0")
    in_turn, beside = (on_processes(3, run, each, 3) for each in (series, plan))
    first, second = (sum(beside[0][number][0].values()) for number in (0, 1))
    assert first < sum(in_turn[0][0][0].values()) - 0.1
    assert second < sum(in_turn[0][1][0].values()) - 0.05
