"""`netbench schedule --layout`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from netbench.cli import run
from netbench.placement import layouts
from netbench.placement.file import read_placed
from netbench.placement.problem import Answer, Budget, Problem
from netbench.placement.schedulers import SCHEDULERS
from netbench.scenario import load_scenario
from netbench.simulator import simulate

CaptureFixture = pytest.CaptureFixture[str]
SEARCH = ("schedule", "example-two-labs", "--evaluations", "64", "--layout")
"""Search among eight layouts of four devices, with few evaluations to be fast."""


def test_the_best_plan_is_saved_with_its_time(tmp_path: Path, capsys: CaptureFixture) -> None:
    """It is faster than every system of the scenario, and first in the table."""
    file = tmp_path / "placement.json"
    assert run([*SEARCH, "auto", "-o", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    times = [one["simulated_s"] for one in found["found"]]
    assert times == sorted(times)
    assert times[0] < found["listed_system_s"]
    scenario = load_scenario("example-two-labs")
    placed = read_placed(file, scenario)
    plan = dataclasses.replace(placed.plan(), scale=1.0)
    assert simulate(plan).iteration_s == placed.simulated_s == times[0]
    assert plan.variant == found["found"][0]["plan"]
    assert (placed.num_layouts, placed.num_evaluated) == (
        found["num_simulated"],
        found["num_evaluated"],
    )
    assert (
        found["num_evaluated"] > 8
    )  # each of the eight plans, and more candidates of the better ones


def test_degrees_restrict_the_layouts(capsys: CaptureFixture) -> None:
    """With two stages, twice, the table has no other layout, except that of the listed system."""
    assert run([*SEARCH, "p2d2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = next(index for index, line in enumerate(lines) if line.startswith("Plan "))
    shown = [line.split(": ")[1:] for line in lines[:table] if ": best " in line]
    rows = [line.split() for line in lines[table:] if line.startswith(("dtfm", "mega", "zero"))]
    assert len(rows) > 3
    assert shown[-1] == [rows[0][0], f"best {rows[0][4]} s"]
    assert {row[1] for row in rows if row[1] != "(listed)"} == {"p2d2"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("p5",), "no layout trains 8 layers with batch 16 on the 4 devices of scenario"),
        (("square",), 'layout "square" is invalid; expected auto, or degrees, e.g. p8, p4t2, p8d8'),
        (("auto", "--system", "megatron"), "--layout chooses the system; leave out --system"),
        (("auto", "--batch", "3", "--layers", "7"), ""),
        (
            ("auto", "--scheduler", "netbenhc"),
            'unknown scheduler "netbenhc"; did you mean netbench',
        ),
    ],
)
def test_an_impossible_layout_is_one_message(
    arguments: tuple[str, ...], message: str, capsys: CaptureFixture
) -> None:
    """The exit code is 2. Odd sizes that some plan can train are accepted."""
    code = run([*SEARCH, *arguments])
    printed = capsys.readouterr()
    assert code == (2 if message else 0)
    assert message in " ".join(printed.err.split())
    assert bool(printed.out) != bool(message)


def test_compilation_does_not_count_against_the_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """A scheduler that takes 100 s at its first call, by a clock that only it moves, still places
    the eight, four, two and one plans of a search of 20 s."""
    now_s = [0.0]
    calls: list[float] = []

    def compiled_at_first(problem: Problem, seed: int, budget: Budget) -> Answer:
        if not calls:
            now_s[0] += 100.0
        calls.append(budget.seconds)
        return Answer(grid=problem.ranks, stage_layers=problem.stage_layers)

    monkeypatch.setitem(SCHEDULERS, "identity", compiled_at_first)
    monkeypatch.setattr(layouts, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    search = ("schedule", "example-two-labs", "--layout", "p2d2", "--budget", "20s")
    assert run([*search, "--scheduler", "identity"]) == 0
    assert len(calls) == 1 + 8 + 4 + 2 + 1
    assert all(0 < seconds <= 20 for seconds in calls[1:])


def test_a_layout_without_t_is_not_tensor_parallel(capsys: CaptureFixture) -> None:
    """p2d1 is two devices, as the table writes it, and none of its plans has t."""
    assert run([*SEARCH, "p2d1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["found"]
    assert {one["layout"] for one in found} == {"p2d1"}


PRICES = """
prices:
  regions:
    Campus: {provider: A, continent: NA, machines: {RTX4090: {spot: 3, on_demand: 4}}}
    Garage: {provider: A, continent: NA, machines: {RTX4090: {on_demand: 0.5}}}
  egress: {A: {zone: 0.01, region: 0.02, continent: 0.08}}
"""


def test_the_cheapest_plan_is_where_machines_are_cheap(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The table has a column of costs, and the placement is in the garage."""
    prices, file = tmp_path / "prices.yaml", tmp_path / "placement.json"
    prices.write_text(PRICES, encoding="utf-8")
    options = ["--objective", "cost", "--prices", str(prices), "-o", str(file)]
    assert run([*SEARCH, "auto", *options]) == 0
    assert "spot" in capsys.readouterr().out
    scenario = load_scenario("example-two-labs")
    plan = read_placed(file, scenario).plan()
    nodes = {plan.device_nodes[device] for device in plan.placement}
    assert {scenario.nodes[node].region for node in nodes} == {"Garage"}


def test_costs_need_a_layout_and_prices(capsys: CaptureFixture) -> None:
    """A placement alone does not change the machines."""
    assert run(["schedule", "example-two-labs", "--objective", "cost"]) == 2
    assert "add --layout auto" in capsys.readouterr().err
    assert run([*SEARCH, "auto", "--objective", "cost"]) == 2
    assert "give --prices FILE" in capsys.readouterr().err
