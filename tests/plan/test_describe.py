"""Plans in one line."""

from __future__ import annotations

from netbench.plan.build import build_plan
from netbench.plan.describe import describe_plan
from netbench.plan.model import Execution, Plan
from netbench.plan.serial import plan_hash
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting

CASE3 = load_scenario("case3")
SMALL = load_scenario("gpt3-small")


def case3(variant: str) -> Plan:
    return build_plan(
        CASE3,
        variant,
        Setting(layers=24, batch=1024, seed=2022),
        Execution(iterations=3, warmup_iterations=1),
    )


def test_a_plan_is_described_in_one_line() -> None:
    """With its hash, and the seed only where it matters."""
    plan = case3("dtfm-random")
    text = describe_plan(plan)
    assert text.startswith(plan_hash(plan))
    assert "dtfm-random L24 B1024" in text
    assert "seed 2022" in text
    assert "gpipe 2 x 64 micro-batches" in text
    assert "1 + 2 iterations, scale 1000" in text
    assert "\n" not in text
    assert "seed" not in describe_plan(case3("zero3"))


def test_a_description_has_what_the_options_add() -> None:
    """Tensor degree, chunks, network."""
    assert ": p2t4d8, identity placement" in describe_plan(case3("megatron-p2t4"))
    assert ": p4d16 of 2 chunks, " in describe_plan(case3("megatron-p4-interleaved2"))
    plan = build_plan(
        SMALL, "dtfm-scheduled", Setting(layers=12, batch=64, network="1Gbit"), Execution()
    )
    assert "gpt3-small on 1Gbit dtfm-scheduled L12 B64" in describe_plan(plan)
