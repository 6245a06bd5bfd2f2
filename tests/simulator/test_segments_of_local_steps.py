"""hivemind and diloco against closed forms on uniform networks, and where an average is slow."""

from __future__ import annotations

import pytest

from netbench.explain.usage import links
from netbench.plan.build import build_plan
from netbench.plan.model import Plan
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import simulate
from netbench.systems import system_of
from tests.plans import NO_COSTS, uniform_plan

NODES, DELAY_S, RATE_BPS = 4, 0.01, 1e9
COMPUTE_S = 16 * (0.01 + 0.03)
"""64 sequences by 4 ranks, one at a time."""


def plan_of(variant: str, optimizer_s: float = 0.5, **changes: float) -> Plan:
    link = {"one_way_delay_s": DELAY_S, "bandwidth_bps": RATE_BPS} | changes
    return uniform_plan(variant, num_nodes=NODES, optimizer_s=optimizer_s, **link)  # type: ignore[arg-type]


def butterfly_s(plan: Plan) -> float:
    """A link per pair: a fourth of the vector over each, there and back, and two delays."""
    return 2 * (plan.stages[0].gradient_bytes / NODES * 8 / RATE_BPS + DELAY_S)


def test_synchronous_peers_take_turns() -> None:
    """Compute, average, update."""
    plan = plan_of("hivemind-sync")
    found = simulate(plan, NO_COSTS)
    assert found.iteration_s == pytest.approx(COMPUTE_S + butterfly_s(plan) + 0.5)
    assert found.phases["sync_s"] == pytest.approx(butterfly_s(plan))
    assert sum(found.phases.values()) == pytest.approx(found.iteration_s)


@pytest.mark.parametrize("rate_factor", [1, 100])
def test_a_late_update_hides_behind_compute_or_hides_it(rate_factor: float) -> None:
    """The longer of the two, on a slow network and on a fast one."""
    plan = plan_of("hivemind", bandwidth_bps=RATE_BPS * rate_factor)
    size = plan.stages[0].gradient_bytes
    late_s = 2 * (size / NODES * 8 / RATE_BPS / rate_factor + DELAY_S) + 0.5
    assert (late_s > COMPUTE_S) == (rate_factor == 1)
    found = simulate(plan, NO_COSTS)
    assert found.iteration_s == pytest.approx(max(COMPUTE_S, late_s))
    assert sum(found.phases.values()) == pytest.approx(found.iteration_s)


def test_local_steps_share_an_outer_step() -> None:
    """Compute and update; the ring's time, over the steps."""
    always, rarely = (simulate(plan_of(f"diloco-h{steps}"), NO_COSTS) for steps in (1, 20))
    inner_s = COMPUTE_S + 0.5
    ring_s = 2 * (NODES - 1) / NODES * always.plan.stages[0].gradient_bytes * 8 / RATE_BPS
    assert always.iteration_s - inner_s == pytest.approx(ring_s, rel=0.05)  # and some delays
    assert rarely.iteration_s - inner_s == pytest.approx((always.iteration_s - inner_s) / 20)
    assert rarely.phases["sync_s"] == pytest.approx(always.phases["sync_s"] / 20)


@pytest.mark.parametrize("variant", ["hivemind", "diloco-h20"])
def test_links_carry_what_the_plan_says(variant: str) -> None:
    """All ranks together, per iteration."""
    plan = plan_of(variant)
    used = links(simulate(plan, NO_COSTS))
    sent = sum(link.payload_bytes for link in used if link.kind == "pair")
    assert sent == pytest.approx(system_of(plan).iteration_bytes(plan))


def test_a_butterfly_in_case_5_is_as_slow_as_the_slowest_pair_of_regions() -> None:
    """8 peers of Ireland share 0.335 Gbit/s towards those of Seoul, twice; +-5%."""
    plan = build_plan(load_scenario("case5"), "hivemind", Setting(layers=24, batch=1024, seed=2022))
    size = plan.stages[0].gradient_bytes
    slowest_s = 2 * (8 * size / 64 * 8 / 0.335e9 + 0.228)
    assert simulate(plan).iteration_s == pytest.approx(slowest_s, rel=0.05)
