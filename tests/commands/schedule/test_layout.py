"""`netbench schedule --layout`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.scenario import load_scenario
from netbench.simulator import simulate
from netbench.simulator.placement_file import read_placed

CaptureFixture = pytest.CaptureFixture[str]
SEARCH = ("schedule", "example-two-labs", "--evaluations", "64", "--layout")
"""Eight layouts of four devices; few evaluations, so that none takes long."""


def test_the_best_plan_is_kept_and_is_as_fast_as_it_says(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Faster than the best of the systems that the scenario lists, and the first of the table."""
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
    assert found["num_evaluated"] > 8  # each of eight plans, and more of the better ones


def test_degrees_can_be_asked_for(capsys: CaptureFixture) -> None:
    """Two stages: no other layout in the table, but for the listed system."""
    assert run([*SEARCH, "p2t1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = next(index for index, line in enumerate(lines) if line.startswith("Plan "))
    told = [line.split(": best ") for line in lines[:table] if ": best " in line]
    rows = [line.split() for line in lines[table:] if line.startswith(("dtfm", "mega", "zero"))]
    assert len(rows) > 3
    assert told[-1] == [rows[0][0], f"{rows[0][4]} s"]  # where there is no terminal, a line each
    assert {row[1] for row in rows if row[1] != "(listed)"} == {"p2d2"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("p3",), "no layout trains 8 layers with batch 16 on the 4 devices of scenario"),
        (("square",), 'layout "square" is none; expected auto, or degrees, e.g. p8, p4t2, p8d8'),
        (("auto", "--system", "megatron"), "--layout chooses the system; leave out --system"),
        (("auto", "--batch", "3", "--layers", "7"), ""),
        (("auto", "--scheduler", "netbenhc"), 'no scheduler "netbenhc"; did you mean netbench'),
    ],
)
def test_what_cannot_be_searched_is_one_message(
    arguments: tuple[str, ...], message: str, capsys: CaptureFixture
) -> None:
    """Exit code 2; odd sizes that some plan can train are no error."""
    code = run([*SEARCH, *arguments])
    printed = capsys.readouterr()
    assert code == (2 if message else 0)
    assert message in " ".join(printed.err.split())
    assert bool(printed.out) != bool(message)
