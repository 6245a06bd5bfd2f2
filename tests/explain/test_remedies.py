"""Remedies: what was simulated, and which change helps which loss."""

from __future__ import annotations

import dataclasses

import pytest

from netbench.explain.remedies import ADVICE, percent_change, remedies
from netbench.plan.what_if import Amount, with_bandwidth
from netbench.simulator import simulate
from tests.plans import pipeline_plan, simulate_published


def test_a_remedy_is_the_simulation_of_the_changed_plan() -> None:
    """Gradients cross from Ohio to Virginia, where bandwidth is what lacks."""
    simulation = simulate_published("case3", "dtfm-scheduled")
    found = remedies(simulation)["collective"]
    plan = simulation.plan
    faster = with_bandwidth(plan.network, Amount(value=2.0, relative=True), "between")
    expected_s = simulate(dataclasses.replace(plan, network=faster)).iteration_s
    assert found.iteration_s == pytest.approx(expected_s)
    assert found.text.startswith(f"Twice the bandwidth between regions: {expected_s:.1f} s (-")


def test_delay_is_blamed_where_delay_takes_the_time() -> None:
    """On links of 10 Tbit/s and 50 ms, only less delay shortens a pipeline."""
    plan = pipeline_plan(
        "dtfm-scheduled", stages=2, micro_batches=6, delay_s=0.05, bandwidth_bps=1e13
    )
    simulation = simulate(plan)
    found = remedies(simulation)["point_to_point"]
    assert found.text.startswith("Half the delay between regions")
    assert found.iteration_s is not None
    assert found.iteration_s < simulation.iteration_s - 0.04


def test_advice_is_not_presented_as_simulated() -> None:
    """The optimizer takes as long on any network."""
    found = remedies(simulate_published("case3", "dtfm-scheduled"))["optimizer"]
    assert found.text == ADVICE["optimizer"]
    assert found.iteration_s is None


def test_no_change_has_no_sign() -> None:
    """A change that rounds to nothing is neither up nor down."""
    assert percent_change(-0.0004) == "0.0%"
    assert percent_change(-0.05) == "-5.0%"
