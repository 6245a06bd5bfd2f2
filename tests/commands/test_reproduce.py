"""`netbench reproduce`, as a person types it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from netbench.cli import run

CaptureFixture = pytest.CaptureFixture[str]


def test_reproduce_writes_the_committed_file(tmp_path: Path, capsys: CaptureFixture) -> None:
    """From the same recorded runs and simulated times, byte for byte; a second time it has nothing
    to change."""
    for name in ("recorded", "simulated"):
        if (Path("results") / name).is_dir():
            shutil.copytree(Path("results") / name, tmp_path / name)
    arguments = ["reproduce", "--results", str(tmp_path)]
    assert run(arguments) == 0
    written = (tmp_path / "README.md").read_bytes()
    assert written == Path("results/README.md").read_bytes()
    assert run(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/README.md written",
        f"{tmp_path}/README.md is up to date",
    ]


def test_reproduce_check_shows_what_is_out_of_date(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Exit code 1 and a short difference; nothing is written."""
    arguments = ["reproduce", "--check", "--results", str(tmp_path)]
    assert run(arguments) == 1
    assert run(arguments[:1] + arguments[2:]) == 0
    assert run(arguments) == 0
    path = tmp_path / "README.md"
    path.write_text(path.read_text().replace("|       0.971 |", "|       0.999 |", 1))
    capsys.readouterr()
    assert run(arguments) == 1
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line[:13] for line in lines if line.startswith(("-| L24", "+| L24"))] == [
        "-| L24 B1024 ",
        "+| L24 B1024 ",
    ]
    assert len(lines) <= 20
    assert "make reproduce-table" in printed.err
    assert "0.999" in path.read_text()


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [("nowhere", "is not a folder", 2), ("blocked", "cannot be written", 1)],
)
def test_reproduce_where_it_cannot_write_is_one_message(
    tmp_path: Path, capsys: CaptureFixture, name: str, message: str, code: int
) -> None:
    """A missing folder, and a README.md that cannot be opened."""
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "README.md").symlink_to(tmp_path / "no" / "such" / "folder")
    assert run(["reproduce", "--results", str(tmp_path / name)]) == code
    assert message in capsys.readouterr().err
