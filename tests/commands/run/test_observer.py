"""Lines that a run prints while it runs."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from netbench.commands.run.observer import RunObserver
from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Execution, Plan
from netbench.progress import open_progress
from netbench.scenario import load_scenario


def make_plan(variant: str, parts: tuple[int, int], warmup_iterations: int = 0) -> Plan:
    choices = Choices(variants=[variant], layers=[24], batch=[1024], seeds=[2022])
    execution = Execution(iterations=2, warmup_iterations=warmup_iterations, scale=1000.0)
    (plan,) = build_plans(load_scenario("case3"), choices, execution)
    return dataclasses.replace(plan, parts=parts)


@pytest.mark.parametrize(
    ("plan", "periods", "expected"),
    [
        (make_plan("megatron-p8", (32, 64)), 32, "iteration 0, 32 micro-batches: 1.500 s"),
        (make_plan("dtfm-scheduled", (1, 2)), 1, "iteration 0, 1 round: 1.500 s"),
        (make_plan("zero3", (1, 2), 1), 2, "warm-up 0, 2 micro-steps: 1.500 s"),
    ],
)
def test_the_end_of_a_part_is_told(plan: Plan, periods: int, expected: str) -> None:
    printed = io.StringIO()
    with open_progress(Console(file=printed, width=200), interval_s=0) as progress:
        RunObserver(progress, 2, on_terminal=False).part(plan, 0, periods, 1.5)
    (line,) = printed.getvalue().splitlines()
    assert line.endswith(expected)
    assert plan.variant in line
