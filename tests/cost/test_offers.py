"""Sets of machines, and the Pareto front."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cost.bill import ON_DEMAND, SPOT, Bill
from netbench.cost.offers import Offer, front, machine_sets, offers
from netbench.errors import PlanError
from netbench.scenario import load_scenario

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "three-clouds.yaml"


def offer(rate: float, hourly: float) -> Offer:
    """Return an offer whose cost per million samples is `hourly` over `rate`, times a constant."""
    priced = Bill(
        machines_usd={SPOT: hourly, ON_DEMAND: 2 * hourly}, egress_usd={}, egress_gb={},
        loading_usd=0.0, samples_per_s=rate, num_machines=1,
    )  # fmt: skip
    return Offer(machines=(("Iowa", 1),), bill=priced)


def test_every_number_of_machines_of_each_region_is_a_set() -> None:
    """All but the empty one, up to the most in all."""
    scenario = load_scenario(str(EXAMPLE))
    assert len(machine_sets(scenario, at_most=14)) == 7 * 5 * 5 - 1
    assert sorted(machine_sets(scenario, at_most=1)) == [
        (("Belgium", 1),),
        (("Iowa", 1),),
        (("Texas", 1),),
    ]


def test_too_many_sets_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of a region are powers of two and all; if that is too many too, an error says so."""
    scenario = load_scenario(str(EXAMPLE))
    monkeypatch.setattr("netbench.cost.offers.MAX_OFFERS", 150)
    counts = {dict(machines).get("Iowa", 0) for machines in machine_sets(scenario, at_most=14)}
    assert counts == {0, 1, 2, 4, 6}
    monkeypatch.setattr("netbench.cost.offers.MAX_OFFERS", 10)
    with pytest.raises(PlanError, match="list fewer regions"):
        machine_sets(scenario, at_most=14)


def test_the_front_has_what_nothing_beats() -> None:
    """Against the definition, over all pairs."""
    found = [offer(rate, hourly) for rate in (10, 20, 30, 40) for hourly in (1, 2, 5, 9)]
    found += [offer(35, 3.0), offer(40, 9.0)]
    best = front(found, SPOT)

    def beaten(one: Offer) -> bool:
        usd, rate = one.bill.million_usd(SPOT), one.bill.samples_per_s
        return any(
            other.bill.million_usd(SPOT) <= usd
            and other.bill.samples_per_s >= rate
            and (other.bill.million_usd(SPOT), other.bill.samples_per_s) != (usd, rate)
            for other in found
        )

    expected = {(one.bill.samples_per_s, one.bill.machines_usd[SPOT]) for one in found
                if not beaten(one)}  # fmt: skip
    assert {(one.bill.samples_per_s, one.bill.machines_usd[SPOT]) for one in best} == expected


def test_an_offer_is_priced_with_its_machines_only() -> None:
    """One machine sends nothing; two of a region pay for what they exchange."""
    found = {offer.name: offer.bill for offer in offers(load_scenario(str(EXAMPLE)),
                                                        "hivemind-swarm", 2)}  # fmt: skip
    assert found["1 Belgium"].hourly_usd(SPOT) == pytest.approx(
        0.22 + 160 * 20e3 * 3600 / 1e9 / 100
    )
    assert found["2 Belgium"].egress_gb["zone"] > 0
    assert found["1 Iowa + 1 Belgium"].egress_gb["continent"] > 0
