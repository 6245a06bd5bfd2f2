"""Plans as one rank, or the slowest, sees them."""

from __future__ import annotations

import dataclasses

from netbench.plan.build import build_plan
from netbench.plan.model import Execution, Plan
from netbench.plan.serial import plan_from_json, plan_hash, plan_to_json
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting


def mixed(variant: str) -> Plan:
    """V100s, A40s and T4s, in this order of types."""
    return build_plan(
        load_scenario("mixed-gpu"),
        variant,
        Setting(layers=40, batch=384, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )


def test_a_rank_sees_what_its_own_device_takes() -> None:
    """And a plan of one type."""
    plan = mixed("dtfm-random")
    for device in (0, 9, 19):
        own = plan.on_device(device)
        assert own.stages == plan.type_stages[plan.device_types[device]]
        assert not own.type_stages
        back = dataclasses.replace(
            own,
            stages=plan.stages,
            device_types=plan.device_types,
            type_stages=plan.type_stages,
            type_names=plan.type_names,
        )
        assert back == plan


def test_the_slowest_is_of_the_devices_that_have_a_rank() -> None:
    """T4s; without ranks on them, V100s."""
    plan = mixed("ddp")
    assert plan.at_slowest().stages == plan.type_stages[2]
    used = tuple(device for device in plan.placement if plan.type_on(device) != "T4")
    fewer = dataclasses.replace(
        plan, placement=used, layout=dataclasses.replace(plan.layout, dp=len(used))
    )
    assert fewer.at_slowest().stages == plan.type_stages[0]


def test_devices_of_one_type_are_as_they_are() -> None:
    """No copy is made."""
    plan = build_plan(
        load_scenario("case3"),
        "ddp",
        Setting(layers=24, batch=1024, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )
    assert plan.at_slowest() is plan
    assert plan.on_device(3) == plan


def test_types_survive_their_json() -> None:
    """Equal plans, equal hashes; another type of one device is another plan."""
    plan = mixed("megatron-p8")
    copy = plan_from_json(plan_to_json(plan))
    assert copy == plan
    assert plan_hash(copy) == plan_hash(plan)
    other = dataclasses.replace(plan, device_types=(2, *plan.device_types[1:]))
    assert plan_hash(other) != plan_hash(plan)
