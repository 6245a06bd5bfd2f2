"""Buckets of gradients: how large, and when they are full."""

from __future__ import annotations

import dataclasses
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.plan.build import Choices, build_plan, build_plans
from netbench.plan.model import Execution, Plan
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.systems.ddp import gradient_buckets
from netbench.workload.models import MODELS


def gpt_plan(embedding_parameters: int = 0) -> Plan:
    scenario = load_scenario("case3")
    workload = dataclasses.replace(
        scenario.workload, embedding_parameters=embedding_parameters, hidden=256, heads=4
    )
    return build_plan(
        dataclasses.replace(scenario, workload=workload),
        "ddp",
        Setting(layers=8, batch=64, seed=1),
        Execution(iterations=2, warmup_iterations=1, scale=1.0),
    )


def test_layers_that_are_alike_fill_buckets_evenly() -> None:
    """Every bucket takes as long as its share of the bytes."""
    plan = gpt_plan()
    (stage,) = plan.stages
    plan = dataclasses.replace(plan, bucket_bytes=stage.gradient_bytes // 4)
    buckets = gradient_buckets(plan)
    assert [bucket.size_bytes for bucket in buckets] == [stage.gradient_bytes / 4] * 4
    assert [bucket.ready_s / stage.backward_s for bucket in buckets] == pytest.approx(
        [0.25, 0.5, 0.75, 1.0]
    )


def test_embeddings_come_when_the_pass_is_over() -> None:
    """They take no time, and are last: a half of the bytes, all at once."""
    layers = sum(stage.parameters for stage in gpt_plan().stages)
    plan = gpt_plan(embedding_parameters=layers)
    (stage,) = plan.stages
    plan = dataclasses.replace(plan, bucket_bytes=stage.gradient_bytes // 4)
    assert [bucket.ready_s / stage.backward_s for bucket in gradient_buckets(plan)] == (
        pytest.approx([0.5, 1.0, 1.0, 1.0])
    )


def test_the_last_layers_of_a_resnet_fill_buckets_first() -> None:
    """Most parameters of a ResNet are where little work is left: the first of two buckets is full
    when, by hand, the head and three blocks and a half are done."""
    (plan,) = build_plans(
        load_scenario("dp-scaling"),
        Choices(variants=["ddp"], seeds=[1], models=["resnet18"], replicas=[16]),
        Execution(iterations=2, warmup_iterations=1),
    )
    first, second = gradient_buckets(plan)
    assert (first.size_bytes, second.size_bytes) == (25 * 2**20, 4 * 11_689_512 - 25 * 2**20)
    model, (stage,) = MODELS["resnet18"], plan.stages
    head, last = model.blocks[-1], model.blocks[-2]
    left = 25 * 2**20 / 4 - head.parameters - last.parameters
    before = model.blocks[-3]
    assert 0 < left < before.parameters
    work = head.forward_flops + last.forward_flops
    work += before.forward_flops * left / before.parameters
    assert first.ready_s == pytest.approx(stage.backward_s * work / model.forward_flops)
    assert second.ready_s == stage.backward_s


@pytest.mark.parametrize("kind", ["central-ps", "sharded-ps"])
def test_a_parameter_server_gets_one_when_the_pass_is_over(kind: str) -> None:
    """The bucket has all gradients."""
    plan = dataclasses.replace(gpt_plan(), data_parallel=kind)
    (stage,) = plan.stages
    (bucket,) = gradient_buckets(plan)
    assert (bucket.size_bytes, bucket.ready_s) == (stage.gradient_bytes, stage.backward_s)


@settings(deadline=None)
@given(st.integers(1, 60_000_000), st.sampled_from(sorted(MODELS)))
def test_buckets_hold_all_gradients_in_order(bucket_bytes: int, model: str) -> None:
    """All buckets but the last have the size asked for; the last is full at the end."""
    (plan,) = build_plans(
        load_scenario("dp-scaling"),
        Choices(variants=["ddp"], seeds=[1], models=[model], replicas=[2]),
        Execution(iterations=2, warmup_iterations=1),
    )
    bucket_bytes = max(bucket_bytes, plan.stages[0].gradient_bytes // 1000)
    buckets = gradient_buckets(dataclasses.replace(plan, bucket_bytes=bucket_bytes))
    sizes = [bucket.size_bytes for bucket in buckets]
    assert sum(sizes) == pytest.approx(plan.stages[0].gradient_bytes)
    assert sizes[:-1] == [bucket_bytes] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= bucket_bytes
    ready_s = [bucket.ready_s for bucket in buckets]
    assert ready_s == list(accumulate(ready_s, max))
    assert ready_s[-1] == pytest.approx(plan.stages[0].backward_s)
