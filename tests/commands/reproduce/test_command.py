"""`netbench reproduce` on the command line."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.report.page.pages import results_pages

CaptureFixture = pytest.CaptureFixture[str]


def test_reproduce_writes_the_committed_pages_and_pictures(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """From the same recorded runs and simulated times, byte for byte; a second time there is
    nothing to change."""
    for name in ("recorded", "simulated", "ledger"):
        shutil.copytree(Path("results") / name, tmp_path / name)
    pictures = sorted((tmp_path / "simulated").glob("*.svg"))
    assert len(pictures) == 4
    for picture in pictures:
        picture.unlink()
    arguments = ["reproduce", "--results", str(tmp_path)]
    names = list(results_pages(tmp_path))
    for state in ("written", "is up to date"):
        assert run(arguments) == 0
        printed = capsys.readouterr().out.splitlines()
        *written, order = printed
        assert written == [f"{tmp_path / name} {state}" for name in names]
        assert re.fullmatch(r"in the right order: \d+ of \d+ pairs \(.*%\) of published .*", order)
    for path in (*(tmp_path / name for name in names), *pictures):
        assert path.read_bytes() == (Path("results") / path.relative_to(tmp_path)).read_bytes()


@pytest.mark.parametrize("name", ["README.md", "case1.md", "predictions.md", "anomalies.md"])
def test_check_shows_which_page_is_out_of_date(
    tmp_path: Path, capsys: CaptureFixture, name: str
) -> None:
    """Exit code 1 and a short difference; nothing is written."""
    arguments = ["reproduce", "--check", "--results", str(tmp_path)]
    assert run(arguments) == 1
    assert run(arguments[:1] + arguments[2:]) == 0
    assert run(arguments) == 0
    path = tmp_path / name
    text = path.read_text()
    path.write_text(text.replace("# ", "# Changed: ", 1))
    capsys.readouterr()
    assert run(arguments) == 1
    printed = capsys.readouterr()
    lines = [line for line in printed.out.splitlines() if line.startswith(("-#", "+#"))]
    title = next(line for line in text.splitlines() if line.startswith("# "))
    assert lines == [f"-# Changed: {title[2:]}", f"+{title}"]
    assert printed.err == f"{path} is out of date; write it with: make reproduce-table\n"
    assert "# Changed: " in path.read_text()


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [("nowhere", "is not a folder", 2), ("blocked", "cannot be written", 1)],
)
def test_reproduce_without_a_place_to_write_is_one_message(
    tmp_path: Path, capsys: CaptureFixture, name: str, message: str, code: int
) -> None:
    """A missing folder, and a README.md that cannot be opened."""
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "README.md").symlink_to(tmp_path / "no" / "such" / "folder")
    assert run(["reproduce", "--results", str(tmp_path / name)]) == code
    assert message in capsys.readouterr().err
