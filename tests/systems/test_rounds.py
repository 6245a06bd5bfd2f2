"""Rounds of a swarm of peers: who computes how much, and how long averaging takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from netbench.plan.build import Choices, build_plan, build_plans, settings
from netbench.plan.model import Plan
from netbench.scenario import load_scenario
from netbench.simulator import simulate
from netbench.systems import find_variant, rounds
from netbench.systems.rounds import joined_s, lock_step_s, time_round

Swarm = Callable[..., Plan]

PARAMETERS, GBIT = 100_000_000, 0.2
GOODPUT = 1448 / 1514
"""Payload of TCP with timestamps over bytes on the wire; MTU 1500."""


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    """Make the plan of a swarm in one region, or with one peer far away."""

    def make(
        near: int = 4, far: int = 0, variant: str = "hivemind-swarm", far_gbit: float = 0.05
    ) -> Plan:
        path = tmp_path / "swarm.yaml"
        path.write_text(
            f"""
name: swarm
regions: [Near, Far]
nodes:
  - {{region: Near, count: {near}, device: T4}}
  - {{region: Far, count: {max(far, 1)}, device: Fast}}
network:
  inside: {{one_way_delay: 1ms, bandwidth: {GBIT}Gbit}}
  links: [{{between: [Near, Far], one_way_delay: 50ms, bandwidth: {far_gbit}Gbit}}]
devices:
  T4: {{throughput: {{mine: 40}}}}
  Fast: {{throughput: {{mine: 120}}, step: 8, host_factor: 0.5}}
workload: {{model: mine, parameters: {PARAMETERS}, tensors: 100, batch: 32000}}
sweep: {{peers: [{{name: all, nodes: {{Near: {near}{f", Far: {far}" if far else ""}}}}}]}}
""",
            encoding="utf-8",
        )
        scenario = load_scenario(str(path))
        chosen = Choices.of(scenario.sweep, variants=[variant])
        ((part, name, setting),) = settings(scenario, chosen)
        return build_plan(part, name, setting)

    return make


def test_peers_contribute_in_proportion_to_their_speed(swarm: Swarm) -> None:
    """All compute until together they have the batch, and each finishes its step."""
    found = time_round(swarm(near=2, far=1))
    assert found.samples == 32000 + (32 + 32 + 8 * 32) / 2
    assert found.compute_s == pytest.approx(found.samples / (40 + 40 + 120))
    assert found.local_throughput == pytest.approx(200)


def test_a_pair_carries_two_parts_in_each_direction(swarm: Swarm) -> None:
    """A butterfly in fp16 sends 4 (n - 1) / n bytes per parameter and peer."""
    sent = time_round(swarm(near=4)).pair_bytes
    assert sent[0, 1] == 4 * PARAMETERS / 4
    np.testing.assert_allclose(sent.sum(axis=1), 4 * PARAMETERS * 3 / 4)


def test_equal_links_take_as_long_as_their_bytes(swarm: Swarm) -> None:
    """Every direction of a pair carries 4 P / n bytes at the rate of its stream."""
    plan, n = swarm(near=4), 4
    expected_s = 4 * PARAMETERS / n / (GBIT * 1e9 / 8 * GOODPUT)
    assert lock_step_s(plan, 2 * PARAMETERS / n) == pytest.approx(expected_s)


def test_the_slowest_link_sets_the_pace_of_every_reducer(swarm: Swarm) -> None:
    """One far peer among near ones: all parts pass its links, as if all links were as slow."""
    mixed = lock_step_s(swarm(near=3, far=1, far_gbit=0.05), 1e6)
    slow = lock_step_s(swarm(near=1, far=1, far_gbit=0.05), 1e6)
    assert mixed == pytest.approx(slow)


def test_a_faster_reducer_uses_what_is_left(swarm: Swarm) -> None:
    """With sharing of a NIC, all streams of a peer pass it: 2 (n - 1) parts."""
    plan = swarm(near=3)
    capped = dataclasses.replace(
        plan, network=dataclasses.replace(plan.network, sharing="nic", nic_bps=(1e8,) * 3)
    )
    assert lock_step_s(capped, 1e6) == pytest.approx(2 * 2 * 1e6 / (1e8 / 8 * GOODPUT))


def test_cpu_and_network_overlap_where_one_is_much_slower() -> None:
    """They add nothing to each other far apart, and about a quarter if equal."""
    assert joined_s(1.0, 100.0) == pytest.approx(100.0, rel=1e-5)
    assert joined_s(5.0, 0.0) == 5.0
    assert 1.2 < joined_s(1.0, 1.0) < 1.3


def test_a_short_round_waits_for_matchmaking(swarm: Swarm) -> None:
    """A round begins no earlier than the matchmaking time after the last."""
    plan = swarm(near=4, variant="hivemind-swarm-m500")
    found = time_round(plan)
    assert found.compute_s + found.wait_s == pytest.approx(500)
    assert found.communication_s == pytest.approx(found.wait_s + found.average_s)


def test_delayed_averaging_hides_behind_computation(swarm: Swarm) -> None:
    """In series a round takes both, in the background the longer of them."""
    series, beside = (
        time_round(swarm(variant=f"hivemind-swarm{ending}")) for ending in ("", "-background")
    )
    assert series.round_s == pytest.approx(series.compute_s + series.average_s)
    assert beside.round_s == pytest.approx(max(beside.compute_s, beside.average_s))
    assert beside.granularity == series.granularity


def test_a_delayed_update_hides_behind_computation_and_averaging_does_not(swarm: Swarm) -> None:
    """Averaging waits for the update of the round before."""
    for update_s, before_s in ((7.0, 267.2), (300.0, 300.0)):
        found = dataclasses.replace(
            time_round(swarm(variant="hivemind-swarm-delayed")), update_s=update_s, compute_s=267.2
        )
        assert found.round_s == pytest.approx(before_s + found.average_s)


@pytest.mark.parametrize(
    "variant", ["hivemind-swarm", "hivemind-swarm-m20-delayed", "hivemind-swarm-background"]
)
def test_the_simulator_times_the_same_round(swarm: Swarm, variant: str) -> None:
    """An iteration is a round, and its phases are those of the round."""
    plan = swarm(near=2, far=1, variant=variant)
    found, simulated = time_round(plan), simulate(plan)
    assert simulated.iteration_s == pytest.approx(found.round_s)
    computed = simulated.phases["forward_s"] + simulated.phases["backward_s"]
    assert computed == pytest.approx(found.compute_s)


def test_a_peer_alone_does_not_average(swarm: Swarm) -> None:
    """It computes the batch by itself, as fast as its device."""
    found = time_round(swarm(near=1))
    assert found.throughput == pytest.approx(40)
    assert found.penalty(40) == pytest.approx(0)
    assert found.pair_bytes.sum() == 0


def test_names_say_what_a_swarm_does() -> None:
    """Matchmaking in seconds, and what runs beside the next round."""
    assert find_variant("hivemind-swarm").matchmaking_s == 5
    found = find_variant("hivemind-swarm-m20-delayed")
    assert (found.matchmaking_s, found.staleness, found.beside) == (20, 1, "update")
    assert find_variant("hivemind-swarm-background").beside == "averaging"
    assert find_variant("hivemind-swarm").beside == ""


def test_a_gpt_trains_in_a_swarm() -> None:
    """Its tensors are those of its layers."""
    scenario = load_scenario("example-two-labs")
    (plan,) = build_plans(scenario, Choices.of(scenario.sweep, variants=["hivemind-swarm"]))
    found = time_round(plan)
    assert found.pair_bytes[0, 1] == 4 * plan.stages[0].parameters / plan.layout.num_ranks
    assert found.group_s > rounds.TENSORS_PER_LAYER * plan.workload.layers * rounds.TENSOR_S
