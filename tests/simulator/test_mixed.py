"""Plans on devices of several types, against closed forms on free networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from netbench.explain.breakdown import bound_s, breakdown
from netbench.explain.causes import Cause
from netbench.explain.losses import losses
from netbench.plan.model import Plan
from netbench.simulator import simulate
from tests.plans import NO_COSTS, uniform_plan

F, B = 0.01, 0.03


def mixed(plan: Plan, kinds: Sequence[int], factors: Sequence[float]) -> Plan:
    """`plan`, device d taking `factors[kinds[d]]` times as long for everything."""
    types = tuple(
        tuple(
            dataclasses.replace(
                stage,
                forward_s=stage.forward_s * factor,
                backward_s=stage.backward_s * factor,
                optimizer_s=stage.optimizer_s * factor,
            )
            for stage in plan.stages
        )
        for factor in factors
    )
    names = tuple(f"x{factor:g}" for factor in factors)
    return dataclasses.replace(
        plan, stages=types[0], device_types=tuple(kinds), type_stages=types, type_names=names
    )


def iteration_s(plan: Plan) -> float:
    simulation = simulate(plan, NO_COSTS)
    assert simulation.plan is plan
    assert simulation.iteration_s == pytest.approx(sum(simulation.phases.values()))
    return simulation.iteration_s


@pytest.mark.parametrize("variant", ["dtfm-random", "megatron-p4", "zero3", "ddp", "hivemind"])
def test_types_that_are_alike_change_nothing(variant: str) -> None:
    """To the bit, on a network that costs something."""
    plan = uniform_plan(variant, one_way_delay_s=0.01, bandwidth_bps=1e9, optimizer_s=0.2)
    both = mixed(plan, [0, 1] * 4, [1.0, 1.0])
    assert simulate(both).iteration_s == simulate(plan).iteration_s


def test_each_pipeline_goes_at_the_pace_of_its_slowest_stage() -> None:
    """GPipe: every stage once, the slowest for each further micro-batch; then all wait for the
    slowest pipeline at the barrier. Wherever the placement puts the devices."""
    plan = uniform_plan("dtfm-random", num_nodes=8, layers=4, batch=20)
    assert (plan.layout.pp, plan.layout.dp, plan.num_micro_batches) == (4, 2, 10)
    kinds, factors = [0, 1, 0, 2, 1, 0, 0, 0], [1.0, 1.5, 4.0]
    of_device = np.array(factors)[kinds]
    pipelines = of_device[np.asarray(plan.placement)].reshape(2, 4)
    paces = [row.sum() + 9 * row.max() for row in pipelines]
    assert paces[0] != paces[1]
    assert iteration_s(mixed(plan, kinds, factors)) == pytest.approx(max(paces) * (F + B))


def test_1f1b_goes_at_the_pace_of_the_slowest_device() -> None:
    """A further micro-batch of a full pipeline: a forward and a backward pass of the last stage."""
    plan = uniform_plan("dtfm-scheduled-1f1b", num_nodes=4, layers=4)
    slow = mixed(plan, [0, 0, 0, 1], [1.0, 2.5])
    few, many = (
        iteration_s(dataclasses.replace(slow, num_micro_batches=count)) for count in (24, 32)
    )
    assert many - few == pytest.approx(8 * 2.5 * (F + B))


def test_tensor_parallel_ranks_go_at_the_pace_of_the_slowest() -> None:
    """One of two that share the only stage."""
    plan = uniform_plan("megatron-p1t2", num_nodes=2, layers=2, batch=8)
    assert (plan.layout.tp, plan.layout.pp, plan.num_micro_batches) == (2, 1, 8)
    slow = mixed(plan, [0, 1], [1.0, 3.0])
    assert iteration_s(slow) == pytest.approx(8 * 3.0 * (F + B))
    seconds = breakdown(simulate(slow, NO_COSTS)).seconds
    assert seconds[:, Cause.FORWARD] == pytest.approx([8 * F, 8 * 3 * F])
    assert seconds[:, Cause.TENSOR_PARALLEL] == pytest.approx([8 * 2 * (F + B), 0])


@pytest.mark.parametrize(("variant", "update_s"), [("", 2.0), ("-allreduce", 5.0)])
def test_ranks_update_on_their_own_hosts(variant: str, update_s: float) -> None:
    """The first pipeline's, where it serves all; or every rank, and the slowest is last."""
    plan = uniform_plan(f"dtfm-scheduled{variant}", num_nodes=4, layers=1, optimizer_s=1.0)
    assert (plan.layout.pp, plan.layout.dp) == (1, 4)
    slow = mixed(plan, [1, 0, 0, 2], [1.0, 2.0, 5.0])
    computed_s = plan.num_micro_batches * 5.0 * (F + B)
    assert iteration_s(slow) == pytest.approx(computed_s + update_s)


@pytest.mark.parametrize("variant", ["zero3", "zero3-hybrid2", "ddp", "hivemind", "diloco-h4"])
def test_ranks_that_do_the_same_wait_for_the_slowest(variant: str) -> None:
    """The time is that of all ranks being slow; faster ones compute less, and wait instead."""
    plan = uniform_plan(variant, num_nodes=4, bandwidth_bps=10e9, optimizer_s=0.1)
    slow = mixed(plan, [0, 2, 1, 0], [1.0, 2.0, 3.0])
    all_slow = mixed(plan, [0] * 4, [3.0])
    assert iteration_s(slow) == iteration_s(all_slow)
    found = breakdown(simulate(slow, NO_COSTS))
    of_all = breakdown(simulate(all_slow, NO_COSTS)).seconds
    rank = np.array([1, 3, 2, 1]) / 3
    for cause in (Cause.FORWARD, Cause.BACKWARD, Cause.OPTIMIZER):
        assert found.seconds[:, cause] == pytest.approx(of_all[:, cause] * rank)
    computed = found.of("forward") + found.of("backward") + found.of("optimizer")
    assert computed[1] - computed == pytest.approx(found.of("bubble") - found.of("bubble")[1])
    assert found.seconds.sum(axis=1) == pytest.approx(of_all.sum(axis=1))


def test_a_slow_device_that_no_rank_is_on_does_not_count() -> None:
    """Some devices may stay idle."""
    plan = uniform_plan("ddp", num_nodes=4)
    slow = mixed(plan, [0, 0, 0, 0, 1], [1.0, 9.0])
    idle = dataclasses.replace(slow, device_nodes=(0, 1, 2, 3, 3))
    assert iteration_s(idle) == iteration_s(plan)


@pytest.mark.parametrize("variant", ["dtfm-random", "megatron-p4"])
def test_every_rank_is_accounted_for_with_its_own_compute(variant: str) -> None:
    """Its device's time for every micro-batch; all causes together are the iteration."""
    plan = uniform_plan(variant, layers=4, one_way_delay_s=0.01, bandwidth_bps=1e9)
    kinds, factors = [0, 1, 0, 0, 1, 1, 0, 2], [1.0, 1.5, 2.0]
    slow = mixed(plan, kinds, factors)
    simulation = simulate(slow, NO_COSTS)
    passes = plan.num_rounds * plan.num_micro_batches
    own = np.array(factors)[kinds][np.asarray(plan.placement)]
    found = breakdown(simulation)
    assert found.of("forward") == pytest.approx(passes * F * own)
    assert found.of("backward") == pytest.approx(passes * B * own)
    assert found.seconds.sum(axis=1) == pytest.approx(simulation.iteration_s)
    assert bound_s(slow) == pytest.approx(passes * 2.0 * (F + B))
    lost_s = sum(loss.seconds for loss in losses(simulation))
    assert lost_s == pytest.approx(simulation.iteration_s - bound_s(slow))
