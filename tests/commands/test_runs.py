"""`netbench runs`: the runs of a folder."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from netbench.cli import run
from tests import runs


def test_runs_are_listed_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With testbed, plans, iterations and state; a damaged record is one of the states."""
    results = tmp_path / "results"
    runs.write_run(results, runs.CASE3_TIMES, created=datetime(2026, 1, 3))
    runs.write_run(results / "recorded", runs.CASE3_TIMES, created=datetime(2026, 1, 2))
    doubtful = runs.write_run(
        results, {("zero3", 24, 1024, 2022): [1.0, 2.0]}, scenario="mine", reasons=["late"]
    )
    runs.write_run(results, runs.CASE3_TIMES, verdict=False, created=datetime(2026, 1, 5))
    broken = results / "broken-20260106-000000-0000" / "records.jsonl"
    broken.parent.mkdir()
    broken.write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    assert run(["runs"]) == 0
    text = capsys.readouterr().out
    assert run(["runs", "list", "--results", "results"]) == 0
    assert capsys.readouterr().out == text
    rows = [line.split() for line in text.splitlines() if line.startswith("results/")]
    assert [row[0].split("-")[1] for row in rows] == [
        *("20260102", "20260102", "20260103", "20260105", "20260106")
    ]
    states = {row[0]: " ".join(row[1:]) for row in rows}
    assert states[f"results/{doubtful.parent.name}"] == "guest-virtual 1 2 of 2 not trustworthy"
    assert states["results/broken-20260106-000000-0000"] == "- - - damaged"
    assert sorted(states.values())[1:4] == [
        "guest-virtual 1 2 of 2 not trustworthy",
        *["guest-virtual 5 15 of 15 finished"] * 2,
    ]
    assert "guest-virtual 5 15 of 15 no verdict" in states.values()


def test_an_empty_folder_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Instead of an empty table."""
    assert run(["runs", "list", "--results", str(tmp_path)]) == 0
    assert "make one with: netbench run SCENARIO" in capsys.readouterr().out
