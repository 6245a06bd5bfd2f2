"""Networks with other links."""

from __future__ import annotations

import math

import pytest

from netbench.errors import PlanError
from netbench.plan.benchmark import uniform_network
from netbench.plan.what_if import (
    LINKS,
    Amount,
    check_links,
    default_links,
    ideal_network,
    with_bandwidth,
    with_delay,
)
from netbench.scenario import load_scenario

CASE3 = load_scenario("case3").network
CASE5 = load_scenario("case5").network
RENTED = load_scenario("fluidstack2").network
SMALL = load_scenario("gpt3-small").network


def test_links_between_regions_change_alone() -> None:
    """Links inside regions and delays stay."""
    changed = with_bandwidth(CASE3, Amount(value=5e8), "between")
    assert changed.link(0, 63).bandwidth_bps == 5e8
    assert changed.link(63, 0).one_way_delay_s == 0.011
    assert changed.link(0, 1) == CASE3.link(0, 1)


def test_links_inside_regions_change_alone() -> None:
    """And those between stay."""
    changed = with_delay(CASE3, Amount(value=0.003), "inside")
    assert changed.link(0, 1).one_way_delay_s == 0.003
    assert changed.link(0, 63) == CASE3.link(0, 63)


def test_a_factor_keeps_what_differs_different() -> None:
    """Case 5: half of every rate."""
    changed = with_bandwidth(CASE5, Amount(value=0.5, relative=True), "between")
    for dst in range(8, 64, 8):
        assert changed.link(0, dst).bandwidth_bps == CASE5.link(0, dst).bandwidth_bps / 2


def test_nics_change_with_all_links_only() -> None:
    """9.5 or 10.5 Gbit/s; the unlimited links inside regions stay so under a factor."""
    assert with_bandwidth(RENTED, Amount(value=1e9), "between").nic_bps == RENTED.nic_bps
    changed = with_bandwidth(RENTED, Amount(value=0.1, relative=True), "all")
    assert changed.nic_bps == pytest.approx((0.95e9,) * 8 + (1.05e9,) * 8)
    assert changed.link(0, 1).bandwidth_bps == math.inf
    assert changed.link(0, 15).bandwidth_bps == pytest.approx(0.303e9)


def test_the_ideal_network_has_nothing_in_the_way() -> None:
    """No delay, no limit, on links and NICs."""
    ideal = ideal_network(RENTED)
    assert not ideal.one_way_delay_s().any()
    assert (ideal.bandwidth_bps() == math.inf).all()
    assert set(ideal.nic_bps) == {math.inf}


def test_a_factor_on_nothing_is_an_error() -> None:
    """Rates that are unlimited, delays that are zero."""
    half = Amount(value=0.5, relative=True)
    with pytest.raises(PlanError, match="give rates, not factors"):
        with_bandwidth(ideal_network(CASE3), half, "between")
    with pytest.raises(PlanError, match="give times, not factors"):
        with_delay(ideal_network(CASE3), half, "between")


def test_links_that_nobody_uses_are_an_error() -> None:
    """One region has none between; the default knows."""
    assert (default_links(CASE3), default_links(SMALL)) == ("between", "all")
    check_links(CASE3, "between")
    with pytest.raises(PlanError, match="all nodes are in DataCentre"):
        check_links(SMALL, "between")


def test_a_node_alone_has_no_link() -> None:
    """Whatever is asked for."""
    alone = uniform_network(1, one_way_delay_s=0.001, bandwidth_bps=1e9)
    for which in LINKS:
        with pytest.raises(PlanError, match="the scenario has one node"):
            check_links(alone, which)
