"""The largest losses: with the bound they are the iteration, and they name what is slow."""

from __future__ import annotations

import dataclasses
import math

import pytest

from netbench.plan import build_plan
from netbench.scenario import load_scenario
from netbench.simulator import simulate
from netbench.simulator.explain import bound_s
from netbench.simulator.losses import losses
from netbench.simulator.usage import links
from tests.simulator.pipelines import FREE, B, F, pipeline, published


def test_losses_of_the_busiest_stage_are_what_is_above_the_bound() -> None:
    """The second stage takes twice as long: it waits for one pass of the first each way."""
    plan = pipeline("dtfm-scheduled", stages=2, micro_batches=6, speeds=(2.0, 1.0))
    simulation = simulate(plan, FREE)
    assert bound_s(plan) == pytest.approx(6 * (F + B))
    (loss,) = losses(simulation)
    assert (loss.group, loss.seconds) == ("bubble", pytest.approx((F + B) / 2))
    assert loss.share == pytest.approx(loss.seconds / simulation.iteration_s)
    assert "2 stages, 6 micro-batches" in loss.text


@pytest.mark.parametrize(
    ("case", "variant"),
    [("case3", "megatron-p8"), ("case3", "zero3"), ("case3", "ddp"), ("case1", "megatron-p2t4")],
)
def test_losses_and_bound_are_the_iteration(case: str, variant: str) -> None:
    """Where no more than three kinds cost anything. The last stages are as busy as the first."""
    simulation = published(case, variant)
    found = losses(simulation)
    assert [loss.seconds for loss in found] == sorted((x.seconds for x in found), reverse=True)
    total_s = bound_s(simulation.plan) + sum(loss.seconds for loss in found)
    assert total_s == pytest.approx(simulation.iteration_s, rel=1e-9)


def test_a_loss_names_the_link() -> None:
    """Case 5: gradients cross the slowest link, at 342 Mbit/s."""
    first = losses(published("case5", "dtfm-scheduled"))[0]
    assert first.group == "collective"
    assert "from Seoul to London at 342Mbit" in first.text


@pytest.mark.parametrize("variant", ["ddp", "ddp-tree", "ddp-central-ps", "zero3"])
def test_one_rank_pays_its_host_for_collectives_and_no_link(variant: str) -> None:
    """No hop to blame: a ring or tree of one rank has none."""
    scenario = load_scenario("case3")
    alone = dataclasses.replace(scenario.network, node_regions=(0,), nic_bps=(math.inf,))
    scenario = dataclasses.replace(scenario, nodes=scenario.nodes[:1], network=alone)
    plan = build_plan(scenario, variant, 24, 64, 1, 2, 1)
    simulation = simulate(dataclasses.replace(plan, collective_s=0.01))
    assert links(simulation) == ()
    (loss,) = (loss for loss in losses(simulation) if loss.group == "collective")
    assert loss.seconds > 0
    assert "nobody to send to" in loss.text


def test_one_pipeline_has_a_barrier_and_no_gradients_to_exchange() -> None:
    """What it has of collectives is named after the barrier."""
    simulation = simulate(pipeline("dtfm-scheduled", stages=4, micro_batches=4, delay_s=0.01), FREE)
    (loss,) = (loss for loss in losses(simulation) if loss.group == "collective")
    assert "barrier" in loss.text
    assert "gradients" not in loss.text
