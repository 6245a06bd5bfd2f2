"""The table of plans whose machines go and come."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from pathlib import Path

import pytest

from netbench.plan.build import Choices, build_plan, settings
from netbench.plan.experiment import experiment_record
from netbench.plan.model import Plan
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.records import Run, RunStore, read_run
from netbench.report.tables.churn import churn_grid, interrupted_plans
from netbench.report.tables.comparison import compare
from netbench.report.tables.cost import run_usd
from netbench.report.tables.run import run_markdown
from netbench.scenario import load_scenario
from netbench.scenario.churn import COME, GO, ChurnEvent
from netbench.systems.rounds import time_round
from tests import runs


def planned() -> Plan:
    """Four machines of a scenario with prices, of which one is away for a while."""
    scenario = load_scenario("multicloud-a")
    chosen = Choices.of(scenario.sweep, peers=["A-4"], models=["CONV"])
    ((part, variant, setting),) = settings(scenario, chosen)
    events = [(100.0, 3, GO), (500.0, 3, COME), (1e6, 2, GO)]
    churn = tuple(ChurnEvent(time_s=t, node=node, event=event) for t, node, event in events)
    return dataclasses.replace(
        build_plan(part, variant, setting), churn=churn, iterations=3, warmup_iterations=0
    )


def recorded(folder: Path, plan: Plan, times_s: list[float], samples: list[int]) -> Run:
    store = RunStore.create(
        folder,
        scenario=plan.scenario,
        created=datetime(2026, 1, 2),
        command=["netbench"],
        environment=runs.ENVIRONMENT,
    )
    with store:
        store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
        for index, (iteration_s, count) in enumerate(zip(times_s, samples, strict=True)):
            record = experiment_record(
                plan, store.run_id, iteration_s, "emulated", iteration=index, warmup=False,
                samples=count,
            )  # fmt: skip
            store.append_iteration(record)
        store.append_verdict()
    return read_run(store.path)


def test_goodput_is_samples_of_rounds_over_all_of_the_time(tmp_path: Path) -> None:
    """One machine of four is away for 400 of 1000 s; one goes after that."""
    plan = planned()
    run = recorded(tmp_path, plan, [400.0, 300.0, 300.0], [30_000, 0, 33_000])
    (found,) = interrupted_plans(run).values()
    assert found.num_interruptions == 1
    assert found.found.num_rounds == 2
    assert found.found.goodput == 63.0
    assert found.found.machine_s == (1000.0, 1000.0, 1000.0, 600.0)
    assert found.simulated.seconds == 1000.0
    assert found.difference == pytest.approx(63.0 / found.simulated.goodput - 1)
    text = run_markdown(run)
    assert f"| {plan.variant} | 1 | 3.60 | 2 | 63 |" in " ".join(text.replace("  ", " ").split())
    assert "goodput: samples per second that reached the model" in text


def test_machines_are_paid_for_while_they_are_there(tmp_path: Path) -> None:
    """The same samples cost less than with all machines there."""
    plan, scenario = planned(), load_scenario("multicloud-a")
    times_s, samples = [400.0, 300.0, 300.0], [30_000, 30_000, 33_000]
    (usd,) = run_usd(recorded(tmp_path, plan, times_s, samples), scenario).values()
    whole = dataclasses.replace(plan, churn=(ChurnEvent(time_s=1e6, node=2, event=GO),))
    (dearer,) = run_usd(recorded(tmp_path / "all", whole, times_s, samples), scenario).values()
    assert 0 < usd < dearer


def test_an_interrupted_row_is_compared_with_no_other(tmp_path: Path) -> None:
    """It is another experiment than the variant of its name."""
    seconds = time_round(planned()).round_s
    run = recorded(tmp_path, planned(), [seconds], [32_768])
    (row,) = compare(run)
    assert row.name == f"{row.variant}, interrupted"
    assert row.published is None


def test_runs_without_churn_have_no_such_table(tmp_path: Path) -> None:
    plan = dataclasses.replace(planned(), churn=())
    assert churn_grid(recorded(tmp_path, plan, [300.0], [32_768])) is None
