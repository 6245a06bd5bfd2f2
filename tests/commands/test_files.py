"""Output files are checked before any work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.commands.output import check_writable
from netbench.errors import UsageError

COMMANDS: Sequence[Sequence[str]] = (
    ("run", "gpt3-small", "--testbed", "sim"),
    ("explain", "gpt3-small"),
    ("sweep", "gpt3-small", "--vary", "delay=1ms,2ms"),
    ("trace", "diff", "gpt3-small"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("picture.txt", 'unknown format ".txt"; write e.g. picture.png, .svg or .pdf'),
        ("no/picture.png", "does not exist; create it first"),
        (".", "is a folder; name a file in it"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_any_work(
    command: Sequence[str],
    name: str,
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The exit code is 2; nothing is printed or created."""
    monkeypatch.chdir(tmp_path)
    assert run([*command, "--plot", name]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert why in printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_write_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An existing file is checked itself, a new one by its folder."""
    there = tmp_path / "there.png"
    there.touch()
    asked: list[object] = []
    monkeypatch.setattr("os.access", lambda path, mode: asked.append(path))
    for path in (there, tmp_path / "new.png"):
        with pytest.raises(UsageError, match="this user may not write it"):
            check_writable(path)
    assert asked == [there, tmp_path]
