"""The page of the multi-cloud experiments, and what must hold of its simulations."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks import multicloud_scenarios
from netbench.errors import RecordError
from netbench.plan.experiment import experiment_record
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.records import Run, RunStore, read_run
from netbench.report.page.multicloud.data import Experiment, experiments, measured, predict
from netbench.report.page.multicloud.emulated import emulated_rounds
from netbench.report.page.multicloud.page import anomalies, check_calibration, multicloud_page
from netbench.report.page.pages import recorded_runs
from netbench.report.pictures.multicloud import cost_figure, peers_figure
from tests.runs import ENVIRONMENT

RESULTS = Path(__file__).parents[4] / "results"


@pytest.mark.parametrize(("model", "limit"), [("CONV", 0.03), ("RXLM", 0.06)])
def test_the_calibration_part_is_simulated(model: str, limit: float) -> None:
    """Throughput within 3% (CONV) and 6% (RXLM), communication within 10%, at a TBS of 32K."""
    compared = 0
    for experiment in experiments():
        found = measured().get(experiment.key)
        if experiment.key[1:] == (model, 32768) and found:
            predicted = predict(experiment)
            assert predicted["throughput"] == pytest.approx(found["throughput"], rel=limit)
            for quantity, close in (("comm_time_per_round", 0.1), ("granularity", 0.1)):
                if quantity in found:
                    name = "granularity_timers" if quantity == "granularity" else quantity
                    assert predicted[name] == pytest.approx(found[quantity], rel=close)
            compared += 1
    assert compared == 7  # two A10 in May and in April


def test_a_simulation_that_is_off_stops_the_page() -> None:
    """A link ten times slower in A-8."""
    experiment = next(each for each in experiments() if each.key == ("A-8", "CONV", 32768))
    network = experiment.plan.network
    ((link,),) = network.links
    slow = dataclasses.replace(link, bandwidth_bps=link.bandwidth_bps / 100)
    plan = dataclasses.replace(experiment.plan, network=network.with_links(slow))
    with pytest.raises(RecordError, match="A-8 CONV: simulated throughput"):
        check_calibration([dataclasses.replace(experiment, plan=plan)])


def test_scenarios_are_those_of_the_published_inputs() -> None:
    """`python -m benchmarks.multicloud_scenarios` would write the same files."""
    for path, text in multicloud_scenarios.texts().items():
        assert path.read_text(encoding="utf-8") == text, path


def test_the_page_has_all_experiments_and_anomalies() -> None:
    """Every experiment with its machines, and every finding numbered."""
    page = multicloud_page(experiments())
    for name in ("A-8", "B-8", "C-8", "D-3", "E-C-8", "F-A-1", "A10-8", "W-8"):
        assert f"| {name} " in page
    assert page.count("\n### ") == len(anomalies()) + 1


def test_pictures_are_drawn() -> None:
    """Four panels with published points, and a front of rented machines."""
    assert len(peers_figure(experiments()).axes) == 4
    (axes,) = cost_figure(experiments()).axes
    assert axes.get_xscale() == axes.get_yscale() == "log"


def emulated(results: Path, experiment: Experiment, seconds: Sequence[float]) -> Run:
    """A recorded emulation of an experiment; the first round is a warm-up."""
    plan = dataclasses.replace(
        experiment.plan, iterations=len(seconds), warmup_iterations=1, scale=4.0
    )
    with RunStore.create(
        results, scenario=plan.scenario, created=datetime(2026, 1, 2), command=[],
        environment=ENVIRONMENT,
    ) as store:  # fmt: skip
        store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
        for index, round_s in enumerate(seconds):
            store.append_iteration(
                experiment_record(
                    plan, store.run_id, round_s, "emulated", iteration=index, warmup=not index
                )
            )
        store.append_verdict()
    return read_run(store.path)


def test_emulated_rounds_are_beside_simulated_ones(tmp_path: Path) -> None:
    """Twice the simulated time is half the throughput; the computation takes as long as before."""
    experiment = next(each for each in experiments() if each.key == ("C-4", "CONV", 32768))
    found = experiment.round
    run = emulated(tmp_path, experiment, [1.0, 2 * found.round_s, 2 * found.round_s])
    (row,) = emulated_rounds(experiments(), {"multicloud-bc": [run]})
    assert (len(row.seconds), row.scale) == (2, 4.0)
    assert row.throughput == pytest.approx(found.throughput / 2)
    assert row.difference == pytest.approx(-0.5)
    assert row.communication_s == pytest.approx(found.round_s + found.communication_s)
    page = multicloud_page(experiments(), {"multicloud-bc": [run]})
    assert "Largest difference of throughput: -50.0% (C-4 CONV)." in page


@pytest.mark.parametrize("name", ["A-2", "A-8", "B-2", "B-8", "C-4", "C-8", "D-2", "D-3"])
def test_recorded_emulations_are_within_5_percent_of_the_simulation(name: str) -> None:
    """Throughput of CONV. Their networks were verified."""
    rows = emulated_rounds(experiments(), recorded_runs(RESULTS / "recorded"))
    (row,) = [row for row in rows if row.experiment.key == (name, "CONV", 32768)]
    assert row.throughput == pytest.approx(row.experiment.round.throughput, rel=0.05)
    assert row.reasons == ()
