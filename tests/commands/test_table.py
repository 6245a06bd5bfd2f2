"""`netbench table`, as a person types it."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from netbench.cli import run
from tests.report import runs

CaptureFixture = pytest.CaptureFixture[str]


def test_the_newest_run_is_printed(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Of several runs of the scenario, the last one, with where its records are."""
    runs.write(tmp_path, {("zero3", 24, 1024, 2022): [1.0, 111.0]}, created=datetime(2026, 1, 1))
    newest = runs.write(tmp_path, runs.CASE3, created=datetime(2026, 1, 2))
    runs.write(tmp_path, runs.CASE3, scenario="case4", created=datetime(2026, 1, 3))
    assert run(["table", "case3", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "16.05 ±0.05" in printed
    assert "111" not in printed
    assert f"records: {newest}" in printed


def test_a_run_can_be_chosen(tmp_path: Path, capsys: CaptureFixture) -> None:
    """--run takes a folder; it must be of the scenario named."""
    path = runs.write(tmp_path, runs.CASE3, scenario="mine")
    assert run(["table", "mine", "--run", str(path.parent), "--format", "markdown"]) == 0
    assert "| L24 B1024 | dtfm-scheduled |" in capsys.readouterr().out
    assert run(["table", "case4", "--run", str(path.parent)]) == 2
    assert "a run of mine, not of case4" in capsys.readouterr().err


def test_a_folder_of_a_run_will_do(tmp_path: Path, capsys: CaptureFixture) -> None:
    """As `netbench trace diff` takes it."""
    path = runs.write(tmp_path, runs.CASE3, scenario="mine")
    assert run(["table", str(path.parent), "--format", "markdown"]) == 0
    assert "| L24 B1024 | dtfm-scheduled |" in capsys.readouterr().out


def test_recorded_runs_are_used_where_there_are_no_others(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """A fresh clone shows the runs that came with it."""
    runs.write(tmp_path / "recorded", runs.CASE3)
    assert run(["table", "case3", "--results", str(tmp_path), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[0]["variant"] == "dtfm-scheduled"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("rich", "case4: Regional Distributed"),
        ("markdown", "| L24 B1024 |       38.77 |"),
        ("csv", "L24 B1024,38.77,59.44 ±3.08,21.97 ±0.21"),
    ],
)
def test_without_a_run_the_published_times_are_printed(
    tmp_path: Path, capsys: CaptureFixture, form: str, expected: str
) -> None:
    """And how to make a run; not among the figures where they go into a file."""
    assert run(["table", "case4", "--results", str(tmp_path), "--format", form]) == 0
    printed = capsys.readouterr()
    assert expected in printed.out
    assert "netbench run case4" in (printed.out if form == "rich" else printed.err)


def test_a_scenario_without_run_or_publication_says_how_to_run_it(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Known but never run: exit code 2 and the command."""
    assert run(["table", "example-two-labs", "--results", str(tmp_path)]) == 2
    said = f"no run of example-two-labs in {tmp_path}; make one with: netbench run example-two-labs"
    assert said in capsys.readouterr().err


def test_an_unknown_scenario_suggests_the_nearest(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A typo is answered with names."""
    assert run(["table", "csae3", "--results", str(tmp_path)]) == 2
    assert "case3" in capsys.readouterr().err


def test_a_damaged_run_is_one_message(tmp_path: Path, capsys: CaptureFixture) -> None:
    """File, line and what to do; exit code 1."""
    path = runs.write(tmp_path, runs.CASE3)
    path.write_text("{}\n" + path.read_text())
    assert run(["table", "case3", "--results", str(tmp_path)]) == 1
    assert f"error: {path}:1: this line" in capsys.readouterr().err


def test_a_run_without_iterations_is_one_message(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Killed before its first iteration: there is no table to print."""
    runs.write(tmp_path, {})
    assert run(["table", "case3", "--results", str(tmp_path)]) == 1
    assert "no iteration is recorded; continue with --resume" in capsys.readouterr().err


def test_a_picture_is_written_on_request(tmp_path: Path, capsys: CaptureFixture) -> None:
    """--plot draws the run; without a run there is nothing to draw."""
    picture = tmp_path / "case3.png"
    arguments = ["table", "case3", "--results", str(tmp_path), "--plot", str(picture)]
    assert run(arguments) == 2
    assert not picture.exists()
    runs.write(tmp_path, runs.CASE3)
    assert run(arguments) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: {picture}" in capsys.readouterr().err


def test_table_imports_neither_torch_nor_paramiko_nor_matplotlib(tmp_path: Path) -> None:
    """In a fresh interpreter, with a run beside the published figures."""
    runs.write(tmp_path, runs.CASE3)
    script = (
        "import sys\nfrom netbench.cli import run\n"
        f"assert run(['table', 'case3', '--results', {str(tmp_path)!r}]) == 0\n"
        "print('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "16.05 ±0.05" in done.stdout
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "netbench.report.run" in loaded
    assert not loaded & {"torch", "paramiko", "matplotlib", "pydantic", "pyroute2"}
