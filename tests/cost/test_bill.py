"""Bills: what is paid for, and at which price."""

from __future__ import annotations

import pytest

from netbench.cost.bill import ON_DEMAND, SPOT, Bill, bill, egress_class, per_million_usd
from netbench.cost.traffic import node_bytes
from netbench.errors import PlanError
from netbench.plan.build import Choices, build_plan, build_plans, settings
from netbench.plan.model import Plan
from netbench.scenario import load_scenario
from netbench.scenario.model import Scenario
from netbench.systems import system_of
from netbench.systems.rounds import time_round


def planned(name: str, peers: str, model: str = "CONV") -> tuple[Scenario, Plan]:
    """Return one run of a multi-cloud scenario, with its machines."""
    scenario = load_scenario(f"multicloud-{name}")
    chosen = Choices.of(scenario.sweep, peers=[peers], models=[model])
    ((part, variant, setting),) = settings(scenario, chosen)
    return part, build_plan(part, variant, setting)


def billed(name: str, peers: str, model: str = "CONV") -> Bill:
    return bill(*planned(name, peers, model))


def test_two_clouds_pay_a_third_inside_and_two_thirds_outside() -> None:
    """The paper bills D so: a machine has one partner in its cloud, and two in the other."""
    found = billed("d-2", "D-2")
    total = sum(found.egress_gb.values())
    assert found.egress_gb["zone"] == pytest.approx(total / 3)
    assert found.egress_gb["region"] == pytest.approx(2 * total / 3)
    assert found.egress_usd["region"] == pytest.approx(0.01 * found.egress_gb["region"])


def test_four_regions_pay_by_class() -> None:
    """Two machines in each: 1/7 inside. From Oceania 6/7 are Oceania's, from elsewhere 2/7."""
    found = billed("bc", "C-8")
    total = sum(found.egress_gb.values())
    assert found.egress_gb["zone"] == pytest.approx(total / 7)
    assert found.egress_gb["oceania"] == pytest.approx(total * (6 / 7 + 3 * 2 / 7) / 4)
    assert found.egress_gb["continent"] == pytest.approx(total * (3 * 4 / 7) / 4)


def test_a_bill_adds_up() -> None:
    """Machines, egress and training data, per hour and per million samples."""
    found, (_, plan) = billed("a", "A-8"), planned("a", "A-8")
    swarm = time_round(plan)
    assert found.machines_usd[SPOT] == pytest.approx(8 * 0.18)
    assert found.machines_usd[ON_DEMAND] == pytest.approx(8 * 0.572)
    sent_gb = 8 * 4 * 197_767_336 * 7 / 8 / swarm.round_s * 3600 / 1e9
    assert sum(found.egress_gb.values()) == pytest.approx(sent_gb)
    assert found.loading_usd == pytest.approx(swarm.throughput * 3600 * 125e3 / 1e9 * 0.01)
    hourly = 8 * 0.18 + sent_gb * 0.01 + found.loading_usd
    assert found.hourly_usd(SPOT) == pytest.approx(hourly)
    assert found.million_usd(SPOT) == pytest.approx(hourly / 3600 / swarm.throughput * 1e6)


def test_printed_points_follow_from_printed_prices() -> None:
    """Table 1's price of four T4, and the published rate of PyTorch on them: 0.97 $ per million."""
    assert per_million_usd(4 * 0.18, 207) == pytest.approx(0.966, abs=5e-4)


def test_a_provider_without_charge_costs_only_its_machines() -> None:
    """Lambda has no price for egress."""
    found = billed("a10", "A10-8")
    assert sum(found.egress_usd.values()) == 0
    assert sum(found.egress_gb.values()) > 0
    assert found.machines_usd[SPOT] == found.machines_usd[ON_DEMAND] == pytest.approx(4.8)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("US", "US", "zone"),
        ("US", "EU", "continent"),
        ("US", "AUS", "oceania"),
        ("AUS", "EU", "oceania"),
    ],
)
def test_traffic_has_a_class(source: str, target: str, expected: str) -> None:
    prices = load_scenario("multicloud-bc").prices
    assert prices
    assert egress_class(prices, source, target) == expected


def test_bytes_of_any_system_are_counted_by_pair() -> None:
    """Between machines they are those that a system says it sends."""
    scenario = load_scenario("example-two-labs")
    for plan in build_plans(scenario, Choices.of(scenario.sweep, variants=["ddp"])):
        sent = node_bytes(plan)
        assert sent.diagonal().sum() == 0
        assert 0 < sent.sum() <= system_of(plan).iteration_bytes(plan) * 1.001


def test_a_scenario_without_prices_says_what_to_do() -> None:
    scenario = load_scenario("case3")
    (plan, *_) = build_plans(scenario, Choices.of(scenario.sweep, variants=["hivemind-swarm"]))
    with pytest.raises(PlanError, match="has no prices; add a section `prices`"):
        bill(scenario, plan)
