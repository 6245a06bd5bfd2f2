"""`netbench table` on the command line."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from netbench.cli import run
from tests import runs

CaptureFixture = pytest.CaptureFixture[str]


def test_the_newest_run_is_printed(tmp_path: Path, capsys: CaptureFixture) -> None:
    """It is the last run of the scenario; the path of its records is printed."""
    runs.write_run(
        tmp_path, {("zero3", 24, 1024, 2022): [1.0, 111.0]}, created=datetime(2026, 1, 1)
    )
    newest = runs.write_run(tmp_path, runs.CASE3_TIMES, created=datetime(2026, 1, 2))
    runs.write_run(tmp_path, runs.CASE3_TIMES, scenario="case4", created=datetime(2026, 1, 3))
    assert run(["table", "case3", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "16.05 ±0.05" in printed
    assert "111" not in printed
    assert f"records: {newest}" in printed


def test_a_run_can_be_chosen(tmp_path: Path, capsys: CaptureFixture) -> None:
    """--run takes a folder; it must be of the scenario named."""
    path = runs.write_run(tmp_path, runs.CASE3_TIMES, scenario="mine")
    assert run(["table", "mine", "--run", str(path.parent), "--format", "markdown"]) == 0
    assert "| L24 B1024 | dtfm-scheduled |" in capsys.readouterr().out
    assert run(["table", "case4", "--run", str(path.parent)]) == 2
    assert "a run of mine, not of case4" in capsys.readouterr().err


def test_the_folder_of_a_run_replaces_the_scenario(tmp_path: Path, capsys: CaptureFixture) -> None:
    """`netbench trace diff` accepts the same."""
    path = runs.write_run(tmp_path, runs.CASE3_TIMES, scenario="mine")
    assert run(["table", str(path.parent), "--format", "markdown"]) == 0
    assert "| L24 B1024 | dtfm-scheduled |" in capsys.readouterr().out


def test_recorded_runs_are_used_if_there_are_no_others(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """A fresh clone shows the runs that came with it."""
    runs.write_run(tmp_path / "recorded", runs.CASE3_TIMES)
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
    """A hint says how to make a run; it goes to standard error unless the format is rich."""
    assert run(["table", "case4", "--results", str(tmp_path), "--format", form]) == 0
    printed = capsys.readouterr()
    assert expected in printed.out
    assert "netbench run case4" in (printed.out if form == "rich" else printed.err)


def test_a_scenario_without_run_or_publication_says_how_to_run_it(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The exit code is 2, and the message has the command."""
    assert run(["table", "example-two-labs", "--results", str(tmp_path)]) == 2
    message = (
        f"no run of example-two-labs in {tmp_path}; make one with: netbench run example-two-labs"
    )
    assert message in capsys.readouterr().err


def test_an_unknown_scenario_suggests_the_nearest(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A typing error is answered with names."""
    assert run(["table", "csae3", "--results", str(tmp_path)]) == 2
    assert "case3" in capsys.readouterr().err


def test_a_damaged_run_is_one_message(tmp_path: Path, capsys: CaptureFixture) -> None:
    """It has file and line; the exit code is 1."""
    path = runs.write_run(tmp_path, runs.CASE3_TIMES)
    path.write_text("{}\n" + path.read_text())
    assert run(["table", "case3", "--results", str(tmp_path)]) == 1
    assert f"error: {path}:1: this line" in capsys.readouterr().err


def test_a_run_without_iterations_is_one_message(tmp_path: Path, capsys: CaptureFixture) -> None:
    """A run that was killed before its first iteration has no table."""
    runs.write_run(tmp_path, {})
    assert run(["table", "case3", "--results", str(tmp_path)]) == 1
    assert (
        "no iteration is recorded; continue with netbench run --resume" in capsys.readouterr().err
    )


def test_a_picture_is_written_on_request(tmp_path: Path, capsys: CaptureFixture) -> None:
    """--plot draws the run; without a run it is an error."""
    picture = tmp_path / "case3.png"
    arguments = ["table", "case3", "--results", str(tmp_path), "--plot", str(picture)]
    assert run(arguments) == 2
    assert not picture.exists()
    runs.write_run(tmp_path, runs.CASE3_TIMES)
    assert run(arguments) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: {picture}" in capsys.readouterr().err


def test_table_imports_neither_torch_nor_paramiko_nor_matplotlib(tmp_path: Path) -> None:
    """A fresh interpreter prints a run beside the published figures without them."""
    runs.write_run(tmp_path, runs.CASE3_TIMES)
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
    assert "netbench.report.tables.run" in loaded
    assert not loaded & {"torch", "paramiko", "matplotlib", "pyroute2"}
