"""The ledger: predictions are added once, and compared when something is measured."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from netbench.errors import RecordError
from netbench.report.page.ledger import (
    COLUMNS,
    FOLDER,
    MEASURED,
    MEASURED_COLUMNS,
    PREDICTIONS,
    check_registered,
    entries,
    ledger_page,
    new_rows,
    register,
)
from netbench.report.page.multicloud.data import CALIBRATION, HELD_OUT, UNITS, experiments

RESULTS = Path(__file__).parents[3] / "results"


def test_every_held_out_experiment_is_registered() -> None:
    """In the repository's ledger, each quantity once."""
    check_registered(RESULTS, experiments())
    held_out = [each for each in experiments() if each.part == HELD_OUT]
    assert len(held_out) == 126
    assert len(entries(RESULTS)) >= len(held_out) * len(UNITS)


def test_no_result_of_a_held_out_experiment_is_published() -> None:
    """The files have the results of the calibration part only, so that predictions are blind."""
    folder = RESULTS / "published" / "multicloud"
    with (folder / "experiments.csv").open(encoding="utf-8", newline="") as file:
        parts = {
            (row["experiment"], row["model"], row["tbs"]): row["part"]
            for row in csv.DictReader(file)
        }
    with (folder / "a_series.csv").open(encoding="utf-8", newline="") as file:
        results = {(row["experiment"], row["model"], row["tbs"]) for row in csv.DictReader(file)}
    assert {parts.get(key, CALIBRATION) for key in results} == {CALIBRATION}


def test_what_is_registered_is_not_registered_again(tmp_path: Path) -> None:
    """A second registration adds nothing, and a removed row is missed."""
    some = [each for each in experiments() if each.name == "D-2"]
    rows = new_rows(tmp_path, some, "2026-01-02", "abc")
    assert len(rows) == 2 * len(UNITS)
    path = register(tmp_path, rows)
    assert new_rows(tmp_path, some, "2026-01-03", "def") == []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert lines[0].strip() == ",".join(COLUMNS)
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(RecordError, match="the ledger has no usd_per_million_on_demand of D-2"):
        check_registered(tmp_path, some)
    path.write_text("".join([*lines, lines[-1]]), encoding="utf-8")
    with pytest.raises(RecordError, match="twice"):
        check_registered(tmp_path, some)


def test_a_measured_value_shows_the_error(tmp_path: Path) -> None:
    """Predicted 10% too high."""
    (tmp_path / FOLDER).mkdir()
    shutil.copy(RESULTS / FOLDER / PREDICTIONS, tmp_path / FOLDER / PREDICTIONS)
    one = next(
        entry
        for entry in entries(tmp_path)
        if entry.subject == ("D-2", "CONV", "32768") and entry.quantity == "throughput"
    )
    value = one.predicted / 1.1
    (tmp_path / FOLDER / MEASURED).write_text(
        f"{','.join(MEASURED_COLUMNS)}\nD-2,CONV,32768,throughput,{value},log\n", encoding="utf-8"
    )
    (line,) = [
        line
        for line in ledger_page(tmp_path).splitlines()
        if line.startswith("| D-2") and "CONV" in line
    ]
    assert f"{one.predicted:.4g} ({value:.4g}, +10.0%)" in line


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / PREDICTIONS).write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(RecordError, match="its columns are not"):
        entries(tmp_path)
