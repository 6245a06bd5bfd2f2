"""Plans of named models on more and more devices."""

from __future__ import annotations

import dataclasses

import pytest

from netbench.errors import PlanError
from netbench.plan.build import Choices, build_plan, build_plans
from netbench.plan.describe import describe_plan
from netbench.plan.memory import memory_warnings
from netbench.plan.model import Execution, Plan
from netbench.plan.replicas import replicated
from netbench.plan.serial import plan_from_json, plan_to_json
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.model import Setting

LAB = load_scenario("dp-scaling-1gbit")


def plans(models: list[str], replicas: list[int], variant: str = "ddp") -> tuple[Plan, ...]:
    return build_plans(
        LAB,
        Choices(variants=[variant], seeds=[1], models=models, replicas=replicas),
        Execution(iterations=2, warmup_iterations=1),
    )


def test_replicas_fill_the_nodes_in_order() -> None:
    """Nodes that have none left out, with their links and NICs."""
    nodes = {plan.layout.dp: plan.device_nodes for plan in plans(["resnet18"], [2, 4, 5, 12])}
    assert nodes == {
        2: (0, 0),
        4: (0, 0, 0, 0),
        5: (0, 0, 0, 0, 1),
        12: (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2),
    }
    for plan in plans(["resnet18"], [4, 5, 12]):
        num_nodes = max(plan.device_nodes) + 1
        assert plan.network.num_nodes == len(plan.node_names) == num_nodes
        assert plan.network.nic_bps == (1e9,) * num_nodes


def test_the_batch_grows_with_the_replicas() -> None:
    """Each has its own, in one micro-batch."""
    found = {
        (plan.workload.model, plan.layout.dp): (plan.workload.batch, plan.num_micro_batches)
        for plan in plans(["resnet18", "bert-base"], [1, 8])
    }
    assert found == {
        ("resnet18", 1): (128, 1),
        ("resnet18", 8): (1024, 1),
        ("bert-base", 1): (8, 1),
        ("bert-base", 8): (64, 1),
    }


def test_a_replica_alone_is_as_fast_as_its_profile_says() -> None:
    """Backward takes twice as long as forward; 8 sequences of 128 words at 1798.73 words/s."""
    (stage,) = plans(["bert-base"], [1])[0].stages
    assert stage.forward_s + stage.backward_s == pytest.approx(8 * 128 / 1798.73)
    assert stage.backward_s == pytest.approx(2 * stage.forward_s)
    assert stage.gradient_bytes == 4 * 109_483_778


def test_without_a_choice_it_is_the_workloads_model_on_all_devices() -> None:
    """Like a scenario without a sweep."""
    (own,) = replicated(LAB)
    assert (own.workload, own.num_devices) == (LAB.workload, 12)
    assert replicated(load_scenario("case3")) == (load_scenario("case3"),)


def test_a_plan_of_a_model_is_named_by_it_and_survives_json() -> None:
    """In the line that describes it, and in its file; a GPT's file does not name any."""
    (plan,) = plans(["resnet101"], [4])
    assert "ddp resnet101 B512: p1d4" in describe_plan(plan)
    assert plan_from_json(plan_to_json(plan)) == plan
    gpt = build_plan(
        load_scenario("case3"),
        "ddp",
        Setting(layers=24, batch=1024, seed=1),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert '"model"' not in plan_to_json(gpt)


def test_memory_is_estimated_without_activations() -> None:
    """Activations of named models are not estimated: 20 bytes per parameter fit 11 GB."""
    (plan,) = plans(["bert-base"], [4])
    assert memory_warnings(plan, LAB) == ()


@pytest.mark.parametrize(
    ("models", "replicas", "variant", "message"),
    [
        (["resnet50"], [1], "ddp", "no model 'resnet50'; did you mean"),
        (["resnet18"], [13], "ddp", "13 replicas; expected 1 to 12, the devices of scenario"),
        (["resnet18"], [0], "ddp", "0 replicas; expected 1 to 12"),
        (["resnet18"], [4], "zero3", "zero3 cuts a GPT into layers, and scenario dp-scaling-1gbit"),
    ],
)
def test_what_cannot_be_planned_is_said(
    models: list[str], replicas: list[int], variant: str, message: str
) -> None:
    """With what there is."""
    with pytest.raises(PlanError, match=message):
        plans(models, replicas, variant)


def test_a_named_model_has_its_own_layers() -> None:
    """Other numbers are for a GPT."""
    with pytest.raises(PlanError, match="layers is 24, and resnet18 of scenario dp-scaling-1gbit"):
        build_plan(
            LAB,
            "ddp",
            Setting(layers=24, batch=LAB.workload.batch, seed=1),
            Execution(iterations=2, warmup_iterations=1),
        )


def test_a_gpt_is_not_replicated() -> None:
    """It has layers and batches instead."""
    with pytest.raises(PlanError, match="case3 trains a GPT on all its devices"):
        build_plans(
            load_scenario("case3"),
            Choices(variants=["ddp"], layers=[24], batch=[1024], seeds=[1], replicas=[4]),
            Execution(iterations=2, warmup_iterations=1),
        )


def test_a_device_without_the_models_speed_is_refused() -> None:
    """Naming what it has, and what to add."""
    with pytest.raises(PlanError, match="device V100 has no throughput for resnet18; it has"):
        build_plans(
            _on_v100s(),
            Choices(variants=["ddp"], seeds=[1]),
            Execution(iterations=2, warmup_iterations=1),
        )


def _on_v100s() -> Scenario:
    devices = load_scenario("case3").devices
    nodes = tuple(dataclasses.replace(node, device="V100") for node in LAB.nodes)
    return dataclasses.replace(LAB, devices=devices, nodes=nodes)
