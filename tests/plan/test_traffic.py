"""Bytes that plans send, and the scale at which an emulation can carry them."""

from __future__ import annotations

import pytest

from netbench.plan.build import Choices, build_plan, build_plans
from netbench.plan.checks import FULL_SIZE_RANK_BYTES
from netbench.plan.model import Execution
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.systems import system_of
from netbench.systems.zero3 import LIVE_PARAMETERS

EXAMPLE = load_scenario("example-two-labs")


def test_traffic_is_what_the_messages_add_up_to() -> None:
    """Counted message by message for 2 pipelines of 2 stages."""
    plan = build_plan(EXAMPLE, "dtfm-scheduled", Setting(layers=8, batch=16), Execution())
    total = 0
    for _pipeline in range(2):
        for _micro_batch in range(8):
            total += 2 * plan.activation_bytes  # forward and backward over the one boundary
    for stage in plan.stages:
        total += 2 * stage.gradient_bytes  # to the other pipeline and back
    assert system_of(plan).iteration_bytes(plan) == total


def test_tensor_parallel_traffic_is_counted_per_layer() -> None:
    """2 tensor-parallel ranks, one stage, 2 replicas; recomputation makes three passes."""
    plan = build_plan(EXAMPLE, "megatron-t2", Setting(layers=8, batch=16), Execution())
    total = 0
    for _replica in range(2):
        for _micro_batch in range(8):
            for _layer in range(8):
                for _pass in ("forward", "again", "backward"):
                    for _all_reduce in ("attention", "feed-forward"):
                        total += 2 * plan.activation_bytes  # each rank sends half of it twice
    for _tensor in range(2):
        total += 2 * plan.stages[0].gradient_bytes
    assert system_of(plan).iteration_bytes(plan) == total


def test_interleaving_crosses_more_boundaries() -> None:
    """2 stages of 2 chunks have 3 boundaries where 2 stages have 1."""
    plain = build_plan(EXAMPLE, "megatron-p2", Setting(layers=8, batch=16), Execution())
    interleaved = build_plan(
        EXAMPLE, "megatron-p2-interleaved2", Setting(layers=8, batch=16), Execution()
    )
    crossings = 2 * 8 * 2 * plain.activation_bytes  # replicas, micro-batches, directions
    assert (
        system_of(interleaved).iteration_bytes(interleaved)
        - system_of(plain).iteration_bytes(plain)
        == 2 * crossings
    )


def test_zero3_gathers_again_what_exceeds_the_live_limit() -> None:
    """Gather, gather again, scatter: 2 passes of the parameters, up to 3."""
    small = build_plan(EXAMPLE, "zero3", Setting(layers=8, batch=16), Execution())
    large = build_plan(load_scenario("case3"), "zero3", Setting(layers=40, batch=1024), Execution())
    parameters = large.stages[0].parameters
    passes = 2 + (parameters - LIVE_PARAMETERS) / parameters
    assert system_of(small).iteration_bytes(small) == pytest.approx(
        2 * 3 * small.stages[0].gradient_bytes
    )
    assert system_of(large).iteration_bytes(large) == pytest.approx(
        4 * 63 * passes * 2 * parameters
    )


def test_local_steps_send_rarely_but_all_at_once() -> None:
    """4 replicas: a ring moves 2 x 3 times 4 bytes per parameter, every 8th iteration; hivemind 2
    bytes in every one. The scale is that of the iteration that sends."""
    local, always = (
        build_plan(EXAMPLE, name, Setting(layers=8, batch=16), Execution())
        for name in ("diloco-h8", "diloco-h1")
    )
    parameters = local.stages[0].parameters
    assert system_of(always).iteration_bytes(always) == 2 * 3 * 4 * parameters
    assert system_of(local).iteration_bytes(local) == system_of(always).iteration_bytes(always) / 8
    assert local.scale == always.scale > 1
    hivemind = build_plan(EXAMPLE, "hivemind", Setting(layers=8, batch=16), Execution())
    assert system_of(hivemind).iteration_bytes(hivemind) == 2 * 3 * 2 * parameters


def test_a_model_that_a_guest_cannot_hold_is_scaled() -> None:
    """82 MB gathered in every rank: too many mappings for one User-Mode Linux process."""
    plan = build_plan(EXAMPLE, "zero3", Setting(layers=8, batch=16), Execution())
    assert plan.stages[0].gradient_bytes > FULL_SIZE_RANK_BYTES
    assert plan.scale == 10.0


@pytest.mark.parametrize("name", ["case1", "case2", "case3", "case4", "case5"])
def test_64_gpus_run_at_scale_1000(name: str) -> None:
    """Nearly all of a scenario's plans at one scale: the network is shaped once. zero3 of 24 layers
    gathers matrix by matrix, and in case 2 two systems all-reduce between nodes, at scales of their
    own."""
    scenario = load_scenario(name)
    sweep = scenario.sweep
    plans = build_plans(
        scenario,
        Choices(variants=sweep.variants, layers=sweep.layers, batch=sweep.batch, seeds=sweep.seeds),
        Execution(iterations=2, warmup_iterations=1),
    )
    own = {"megatron-t8": 200.0, "megatron-p2t4": 500.0} if name == "case2" else {}
    expected = {(variant, own.get(variant, 1000.0)) for variant in sweep.variants}
    assert {(plan.variant, plan.scale) for plan in plans} == expected | {("zero3", 200.0)}
    matrices = {plan.workload.layers for plan in plans if plan.units and plan.scale == 200.0}
    assert matrices == {24}
