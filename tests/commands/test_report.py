"""`netbench report` on the command line."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.report.html import page
from tests import runs

CaptureFixture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the charts' library out of the pages: bundling it takes seconds."""
    monkeypatch.setattr(page, "vega_script", lambda: "")


def write(results: Path, scenario: str, day: int, **more: object) -> Path:
    created = datetime(2026, 1, day)
    times: runs.Times = {("zero3", 24, 1024, 2022): [1.0, 100.0 + day]}
    return runs.write_run(results, times, scenario=scenario, created=created, **more)  # type: ignore[arg-type]


def test_the_newest_run_of_all_is_reported(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Without an argument; the page is report.html unless -o says otherwise."""
    write(tmp_path, "case3", 1)
    newest = write(tmp_path, "case4", 2)
    output = tmp_path / "page.html"
    assert run(["report", "--results", str(tmp_path), "-o", str(output)]) == 0
    assert f"wrote {output}" in capsys.readouterr().out
    text = output.read_text(encoding="utf-8")
    assert newest.parent.name in text
    assert "102.0" in text


def test_runs_are_found_by_folder_scenario_and_id(tmp_path: Path) -> None:
    """All are compared with the first."""
    first, second = write(tmp_path, "case3", 1), write(tmp_path, "case3", 2)
    output = str(tmp_path / "page.html")
    arguments = ["--results", str(tmp_path), "-o", output]
    assert run(["report", str(first.parent), second.parent.name, *arguments]) == 0
    assert "Comparison of the two runs" in Path(output).read_text(encoding="utf-8")
    assert run(["report", "case3", *arguments]) == 0
    assert second.parent.name in Path(output).read_text(encoding="utf-8")


def test_a_run_that_is_not_trustworthy_is_written_with_exit_code_3(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Whoever forwards it is told too."""
    write(tmp_path, "case3", 1, reasons=["the clock jumped"])
    output = tmp_path / "page.html"
    assert run(["report", "case3", "--results", str(tmp_path), "-o", str(output)]) == 3
    assert output.exists()
    assert "not trustworthy: the clock jumped" in capsys.readouterr().out


def test_mistakes_are_named(tmp_path: Path, capsys: CaptureFixture) -> None:
    """An unknown run, the same run twice, no run at all, and a folder as output."""
    output = ["--results", str(tmp_path), "-o", str(tmp_path / "page.html")]
    assert run(["report", *output]) == 2
    assert "has no run; make one, e.g. with: netbench run case3" in capsys.readouterr().err
    path = write(tmp_path, "case3", 1)
    assert run(["report", "case9", *output]) == 2
    assert "make one with: netbench run case9" in capsys.readouterr().err
    assert run(["report", "case3", str(path.parent), *output]) == 2
    assert "is given twice" in capsys.readouterr().err
    assert run(["report", "case3", "--results", str(tmp_path), "-o", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_a_record_file_is_not_overwritten(tmp_path: Path, capsys: CaptureFixture) -> None:
    """The output may not be an input."""
    path = write(tmp_path, "case3", 1)
    before = path.read_bytes()
    assert run(["report", str(path.parent), "-o", str(path)]) == 2
    assert path.read_bytes() == before
    assert "is an input of this command" in capsys.readouterr().err
