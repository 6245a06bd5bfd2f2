"""Throughput and scalability of runs and simulations beside published figures."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from pathlib import Path

import pytest

from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Execution
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.records import Record, Run, RunStore, read_run
from netbench.report.page.published import load
from netbench.report.tables.run import caption, comparison_grid, run_csv
from netbench.report.tables.throughput import PRINTED_MODELS, TESTBEDS, published_throughput
from netbench.scenario import load_scenario
from netbench.workload.models import MODELS
from tests.runs import ENVIRONMENT


def run_of(tmp_path: Path, scenario: str, iteration_s: float, variant: str = "ddp") -> Run:
    """A run of Bert on all devices: a warm-up and two iterations of the given durations."""
    (plan,) = build_plans(
        load_scenario(scenario),
        Choices(variants=[variant], seeds=[1], models=["bert-base"]),
        Execution(iterations=3, warmup_iterations=1),
    )
    with RunStore.create(
        tmp_path, scenario=scenario, created=datetime(2026, 1, 2), command=[],
        environment=ENVIRONMENT,
    ) as store:  # fmt: skip
        store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
        for iteration in range(3):
            store.append_iteration(
                Record(
                    run_id=store.run_id,
                    plan_hash=plan_hash(plan),
                    scenario=scenario,
                    variant=variant,
                    system="ddp",
                    layers=12,
                    batch=plan.workload.batch,
                    seed=1,
                    iteration=iteration,
                    warmup=not iteration,
                    iteration_s=iteration_s,
                    source="emulated",
                )
            )
        store.append_verdict()
    return read_run(store.path)


def test_a_run_of_models_shows_throughput_beside_the_published_one(tmp_path: Path) -> None:
    """16 x 8 sequences of 128 words in 0.5 s are 32768 words/s, 22.3% more than published; and
    16 x 0.4512 / 0.5 times that of one replica, which takes 8 x 128 / 2269.57 s."""
    grid = comparison_grid(run_of(tmp_path, "dp-scaling", 0.5))
    assert grid.head == (
        "Model", "Replicas", "System", "published", "emulated", "n", "error", "scalability",
    )  # fmt: skip
    assert grid.rows == (
        ("bert-base, words/s", "16", "ddp", "26798.02", "32768.0", "2", "+22.3%", "14.44x"),
    )


def test_the_published_figure_is_of_one_system(tmp_path: Path) -> None:
    """Summation is not documented, so all-reduce alone is compared."""
    run = run_of(tmp_path, "dp-scaling", 0.5, "ddp-central-ps")
    assert comparison_grid(run).head == (
        "Model", "Replicas", "System", "emulated", "n", "scalability",
    )  # fmt: skip
    assert "published" not in " ".join(caption(run))


def test_an_unpublished_number_of_replicas_has_no_published_column(tmp_path: Path) -> None:
    """12 x 8 x 128 words in 6 s are 2048 words/s; one replica has 1798.73."""
    run = run_of(tmp_path, "dp-scaling-1gbit", 6.0)
    grid = comparison_grid(run)
    assert grid.rows == (("bert-base, words/s", "12", "ddp", "2048.00", "2", "1.14x"),)
    assert "published" not in " ".join(caption(run))


def test_the_caption_explains_the_comparison(tmp_path: Path) -> None:
    """It defines scalability."""
    text = " ".join(caption(run_of(tmp_path, "dp-scaling", 0.5)))
    assert "scalability: over the throughput of one replica in its device profile" in text
    assert "how gradients were summed is not documented" in text


def test_csv_names_model_and_replicas(tmp_path: Path) -> None:
    """It has seconds, from which throughput follows."""
    (row,) = csv.DictReader(io.StringIO(run_csv(run_of(tmp_path, "dp-scaling", 0.5))))
    assert (row["model"], row["replicas"], row["mean_s"]) == ("bert-base", "16", "0.5")
    assert float(row["alone_s"]) == pytest.approx(8 * 128 / 2269.57)


def test_every_published_row_of_a_testbed_is_found() -> None:
    """Figures are as printed; the speed of one replica is that of the scenario's device."""
    rows = load("dp_scaling")
    names = {printed: model for model, printed in PRINTED_MODELS.items()}
    for scenario, testbed in TESTBEDS.items():
        (device,) = load_scenario(scenario).devices.values()
        found = rows[rows["testbed"] == testbed]
        assert len(found) >= 3
        for row in found.itertuples():
            model = names[row.model]
            assert published_throughput(scenario, model, row.replicas) == row.throughput
            assert MODELS[model].unit == row.unit.removesuffix("/s")
            if row.replicas == 1:
                assert device.throughput[model] == row.throughput
                batch = {w.model: w.batch for w in load_scenario(scenario).sweep.models}[model]
                assert batch == row.batch_per_replica
    assert published_throughput("dp-scaling", "resnet18", 8) is None
    assert published_throughput("case3", "resnet18", 1) is None
