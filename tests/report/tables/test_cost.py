"""The column of costs in tables of times."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest

from netbench.api.sweeps import sweep
from netbench.cli import run
from netbench.cost.bill import SPOT, bill, machines_of
from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Plan
from netbench.records import Run, read_run
from netbench.report.tables.cost import MILLION, run_usd
from netbench.report.tables.run import comparison_grid, run_csv
from netbench.scenario import Scenario, load_scenario
from netbench.systems.rounds import time_round

CaptureFixture = pytest.CaptureFixture[str]
SETS = ("A-2", "A-4")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two sets of machines, with prices."""
    folder = tmp_path_factory.mktemp("costs")
    options = ["--peers", ",".join(SETS), "--models", "CONV", "--testbed", "sim"]
    assert run(["run", "multicloud-a", *options, "--results", str(folder)]) == 0
    (path,) = folder.iterdir()
    return read_run(path)


def planned(scenario: Scenario) -> tuple[Plan, ...]:
    return build_plans(scenario, Choices.of(scenario.sweep, models=["CONV"], peers=SETS))


def test_a_simulated_run_costs_what_netbench_cost_says(simulated: Run) -> None:
    """The bill of the same plans, from their simulation."""
    scenario = load_scenario("multicloud-a")
    expected = []
    for plan in planned(scenario):
        machines = machines_of(scenario, plan)
        assert machines is not None
        expected.append(bill(machines, plan).million_usd(SPOT))
    found = run_usd(simulated, scenario)
    assert list(found.values()) == pytest.approx(expected)
    grid = comparison_grid(simulated, (), found)
    assert grid.head[-1] == MILLION
    assert [float(row[-1]) for row in grid.rows] == pytest.approx(expected, rel=0.005)
    rows = list(csv.DictReader(io.StringIO(run_csv(simulated, found))))
    assert [float(row["spot_usd_per_million"]) for row in rows] == pytest.approx(expected)


def test_a_run_that_took_longer_pays_longer_for_machines_only() -> None:
    """Traffic per sample does not depend on time."""
    scenario = load_scenario("multicloud-a")
    (plan, _) = planned(scenario)
    machines = machines_of(scenario, plan)
    assert machines is not None
    simulated_s = time_round(plan).round_s
    one, two = (bill(machines, plan, iteration_s=n * simulated_s) for n in (1, 2))
    rent = one.machines_usd[SPOT] / 3600 / one.samples_per_s * 1e6
    assert two.million_usd(SPOT) - one.million_usd(SPOT) == pytest.approx(rent)


def test_nothing_is_priced_without_prices_or_for_other_machines(simulated: Run) -> None:
    assert run_usd(simulated, load_scenario("case3")) == {}
    assert run_usd(simulated, load_scenario("multicloud-bc")) == {}
    assert MILLION not in comparison_grid(simulated).head


def test_the_table_of_a_run_finds_the_prices_of_its_scenario(
    simulated: Run, capsys: CaptureFixture
) -> None:
    """By its name, in its records; `--prices` replaces them."""
    assert run(["table", str(simulated.path.parent), "--format", "csv"]) == 0
    (row, *_) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(row["spot_usd_per_million"]) > 0


def test_a_sweep_has_a_column_of_costs_where_prices_are_known() -> None:
    """A slower network lowers the speed, so machines cost more."""
    found = sweep("multicloud-d-2", {"bandwidth": "0.05x,1x"})
    slow, fast = (point.million_usd for point in found.points)
    assert slow > fast > 0
    assert "million_usd" in found.table
    (point,) = sweep("example-two-labs", {"bandwidth": "1x"}, systems="ddp").points
    assert math.isnan(point.million_usd)


def test_explain_prints_costs(tmp_path: Path, capsys: CaptureFixture) -> None:
    assert run(["explain", "multicloud-d-2"]) == 0
    assert "$ per million samples (spot)" in capsys.readouterr().out
    assert run(["explain", "example-two-labs"]) == 0
    assert "$" not in capsys.readouterr().out
