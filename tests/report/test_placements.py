"""Recorded placements of netbench's scheduler for the published cases."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from netbench.placement.file import read_placed
from netbench.report.page.case import beside_published
from netbench.report.page.published import CASES, published_settings
from netbench.report.page.simulated import (
    BESIDE_PLACED,
    PLACED,
    PLACED_NAME,
    placed_seconds,
    placement_path,
    read_table,
    simulated_settings,
    table_path,
)
from netbench.scenario import load_scenario
from netbench.simulator import simulate

RESULTS = Path("results")


def test_every_published_setting_was_placed() -> None:
    """All 45, each once; a file names the setting that it was searched for."""
    settings = [(case, *setting) for case in CASES for setting in published_settings(case)]
    with table_path(RESULTS, PLACED).open(newline="", encoding="utf-8") as lines:
        rows = [(r["case"], int(r["layers"]), int(r["batch"])) for r in csv.DictReader(lines)]
    assert rows == settings
    assert len(settings) == 45
    for case, layers, batch in settings:
        request = read_placed(placement_path(case, layers, batch), load_scenario(case)).request
        assert (request.setting.layers, request.setting.batch) == (layers, batch)


def test_no_placement_is_slower_than_the_published_order_of_nodes_or_below_its_bound() -> None:
    """In the tables, to the last digit written."""
    placed = read_table(RESULTS, PLACED)
    settings = simulated_settings(RESULTS)
    assert placed is not None
    assert settings is not None
    listed = settings[settings["system"] == BESIDE_PLACED]
    both = placed.merge(listed, on=["case", "layers", "batch"], suffixes=("", "_listed"))
    assert len(both) == 45
    assert (both["simulated_s"] <= both["simulated_s_listed"] * (1 + 1e-5)).all()
    assert (both["bound_s"] <= both["simulated_s"] * (1 + 1e-5)).all()


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_placement_has_its_recorded_time(case: str) -> None:
    """The table's time is the simulator's for the file, and near what it was when the file was
    written."""
    layers, batch = published_settings(case)[0]
    placed = read_placed(placement_path(case, layers, batch), load_scenario(case))
    seconds = simulate(placed.plan()).iteration_s
    assert placed.simulated_s == pytest.approx(seconds, rel=0.05)
    assert placed_seconds(RESULTS)[case, layers, batch] == pytest.approx(seconds, rel=1e-3)


def test_a_placed_time_is_compared_with_the_simulated_listed_one() -> None:
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
