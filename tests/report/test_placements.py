"""What netbench's scheduler makes of the published cases: recorded, timed, beside the others."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from netbench.report.published import CASES, published_settings
from netbench.report.simulated import (
    PLACED,
    PLACED_NAME,
    beside_published,
    placed_seconds,
    placements_folder,
    simulated_settings,
    table_path,
)
from netbench.scenario import load_scenario
from netbench.simulator import simulate
from netbench.simulator.placement_file import read_placed

RESULTS = Path("results")


def test_every_published_setting_is_timed_with_its_case_placed() -> None:
    """All 45, each once."""
    settings = [(case, *setting) for case in CASES for setting in published_settings(case)]
    with table_path(RESULTS, PLACED).open(newline="", encoding="utf-8") as lines:
        rows = [(r["case"], int(r["layers"]), int(r["batch"])) for r in csv.DictReader(lines)]
    assert rows == settings
    assert len(settings) == 45


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_placement_takes_what_it_says(case: str) -> None:
    """The table's time is the simulator's for it, which is not above what the published order of
    nodes gives, nor below its bound; and near what it was when the file was written."""
    placed = read_placed(placements_folder() / f"{case}.json", load_scenario(case))
    request = placed.request
    seconds = simulate(placed.plan()).iteration_s
    assert placed.simulated_s == pytest.approx(seconds, rel=0.05)
    key = (case, request.layers, request.batch)
    assert placed_seconds(RESULTS)[key] == pytest.approx(seconds, rel=1e-3)
    listed_s = simulate(request.listed()).iteration_s
    assert placed.bound_s is not None
    assert placed.bound_s <= seconds <= listed_s


def test_the_column_is_beside_the_simulated_one_of_the_same_system() -> None:
    """Half the time is -50%; a setting without a placement has a dash."""
    settings = simulated_settings(RESULTS)
    assert settings is not None
    of_case = settings[(settings["case"] == "case5") & (settings["system"] == "dtfm-scheduled")]
    first = of_case.iloc[0]
    key = ("case5", int(first["layers"]), int(first["batch"]))
    grid = beside_published(settings, "case5", {key: float(first["simulated_s"]) / 2})
    assert grid.head[-1] == PLACED_NAME
    assert grid.rows[0][-1].endswith("(-50.0%)")
    assert {row[-1] for row in grid.rows[1:]} == {"-"}
    assert PLACED_NAME not in beside_published(settings, "case5").head
