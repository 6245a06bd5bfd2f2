"""The largest losses: they sum to the iteration with the bound, and name the slow link."""

from __future__ import annotations

import dataclasses
import math

import pytest

from netbench.explain.breakdown import bound_s
from netbench.explain.losses import losses
from netbench.explain.usage import links
from netbench.plan.build import build_plan
from netbench.plan.model import Execution
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import simulate
from tests.plans import BACKWARD_S as B
from tests.plans import FORWARD_S as F
from tests.plans import NO_LIMITS, pipeline_plan, simulate_published


def test_losses_of_the_busiest_stage_are_what_is_above_the_bound() -> None:
    """The second stage takes twice as long: it waits for one pass of the first each way."""
    plan = pipeline_plan("dtfm-scheduled", stages=2, micro_batches=6, speeds=(2.0, 1.0))
    simulation = simulate(plan, NO_LIMITS)
    assert bound_s(plan) == pytest.approx(6 * (F + B))
    (loss,) = losses(simulation)
    assert loss.group == "bubble"
    assert loss.seconds == pytest.approx((F + B) / 2)
    assert loss.share == pytest.approx(loss.seconds / simulation.iteration_s)
    assert "2 stages, 6 micro-batches" in loss.text


@pytest.mark.parametrize(
    ("case", "variant"),
    [("case3", "megatron-p8"), ("case3", "zero3"), ("case3", "ddp"), ("case1", "megatron-p2t4")],
)
def test_losses_and_bound_are_the_iteration(case: str, variant: str) -> None:
    """Holds where at most three kinds cost anything. The last stages are as busy as the first."""
    simulation = simulate_published(case, variant)
    found = losses(simulation)
    assert [loss.seconds for loss in found] == sorted((x.seconds for x in found), reverse=True)
    total_s = bound_s(simulation.plan) + sum(loss.seconds for loss in found)
    assert total_s == pytest.approx(simulation.iteration_s, rel=1e-9)


def test_a_loss_names_the_link() -> None:
    """Case 5: gradients cross the slowest link, at 342 Mbit/s."""
    first = losses(simulate_published("case5", "dtfm-scheduled"))[0]
    assert first.group == "collective"
    assert "from Seoul to London at 342Mbit" in first.text


@pytest.mark.parametrize("variant", ["ddp", "ddp-tree", "ddp-central-ps", "zero3"])
def test_one_rank_pays_its_host_for_collectives_and_no_link(variant: str) -> None:
    """A ring or tree of one rank has no hop."""
    scenario = load_scenario("case3")
    alone = dataclasses.replace(scenario.network, node_regions=(0,), nic_bps=(math.inf,))
    scenario = dataclasses.replace(scenario, nodes=scenario.nodes[:1], network=alone)
    plan = build_plan(
        scenario,
        variant,
        Setting(layers=24, batch=64, seed=1),
        Execution(iterations=2, warmup_iterations=1),
    )
    simulation = simulate(dataclasses.replace(plan, collective_s=0.01))
    assert links(simulation) == ()
    (loss,) = (loss for loss in losses(simulation) if loss.group == "collective")
    assert loss.seconds > 0
    assert "a single rank sends nothing" in loss.text


def test_one_pipeline_has_a_barrier_and_no_gradients_to_exchange() -> None:
    """Its collective time is named after the barrier."""
    simulation = simulate(
        pipeline_plan("dtfm-scheduled", stages=4, micro_batches=4, delay_s=0.01), NO_LIMITS
    )
    (loss,) = (loss for loss in losses(simulation) if loss.group == "collective")
    assert "barrier" in loss.text
    assert "gradients" not in loss.text
