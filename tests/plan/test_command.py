"""Plans of scripts."""

from __future__ import annotations

import dataclasses

import pytest

from netbench.errors import PlanError
from netbench.plan.build import Choices, build_command_plan, build_command_plans
from netbench.plan.describe import describe_plan
from netbench.plan.memory import memory_warnings
from netbench.plan.model import Execution, Plan
from netbench.plan.serial import plan_from_json, plan_hash, plan_to_json
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator.iteration import simulate

SCRIPT = ("python", "train.py", "--name", "two words")


def build(variant: str = "command", seed: int = 1, network: str = "") -> Plan:
    scenario = load_scenario("case1")
    return build_command_plan(
        scenario,
        variant,
        SCRIPT,
        Setting(layers=24, batch=1000, network=network, seed=seed),
        Execution(iterations=3, warmup_iterations=1),
    )


def test_every_device_of_the_scenario_gets_a_rank_at_scale_1() -> None:
    """Whatever the batch: nothing here is divided among ranks."""
    plan = build()
    assert plan.placement == tuple(range(64))
    assert plan.layout.num_ranks == 64
    assert plan.scale == 1.0
    assert plan.workload.batch == 1000


def test_the_words_are_in_the_hash_and_in_the_line_that_describes_it() -> None:
    """Words are quoted so that a shell reads them back."""
    plan = build()
    assert plan_from_json(plan_to_json(plan)) == plan
    assert plan_hash(dataclasses.replace(plan, script=("python", "train.py"))) != plan_hash(plan)
    assert describe_plan(plan).endswith(
        "64 ranks, identity placement, 1 + 2 iterations of: python train.py --name 'two words'"
    )


def test_a_random_placement_differs_by_seed_and_the_identity_is_planned_once() -> None:
    """In the same order as for other systems."""
    plans = build_command_plans(
        load_scenario("case1"),
        SCRIPT,
        Choices(variants=["command", "command-random"], layers=[24], batch=[64], seeds=[1, 2]),
        Execution(iterations=3, warmup_iterations=1),
    )
    assert [(plan.variant, plan.seed) for plan in plans] == [
        ("command", 1),
        ("command-random", 1),
        ("command-random", 2),
    ]
    assert len({plan.placement for plan in plans}) == 3


@pytest.mark.parametrize(
    ("variant", "script", "found"),
    [("comand", SCRIPT, "did you mean command"), ("command", (), "the script is empty")],
)
def test_what_cannot_be_planned_says_why(variant: str, script: tuple[str, ...], found: str) -> None:
    """Unknown names, and nothing to run."""
    with pytest.raises(PlanError, match=found):
        build_command_plan(
            load_scenario("case1"),
            variant,
            script,
            Setting(layers=24, batch=64, seed=1),
            Execution(iterations=3, warmup_iterations=1),
        )


def test_nothing_is_claimed_about_what_only_the_script_knows() -> None:
    """Neither its memory nor its time: no estimate, no simulation."""
    assert memory_warnings(build(), load_scenario("case1")) == ()
    with pytest.raises(PlanError, match="no simulation"):
        simulate(build())
