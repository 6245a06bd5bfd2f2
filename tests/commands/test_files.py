"""Files that cannot be written are refused before anything is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.commands.files import check_writable
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
        ("picture.txt", 'there is no format ".txt"; write e.g. picture.png, .svg or .pdf'),
        ("no/picture.png", "there is no folder"),
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
    """Nothing on stdout, no run, exit code 2."""
    monkeypatch.chdir(tmp_path)
    assert run([*command, "--plot", name]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert why in printed.err
    assert list(tmp_path.iterdir()) == []


def test_what_this_user_may_not_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is there by its own mode, a new one by its folder's."""
    there = tmp_path / "there.png"
    there.touch()
    asked: list[object] = []
    monkeypatch.setattr("os.access", lambda path, mode: asked.append(path))
    for path in (there, tmp_path / "new.png"):
        with pytest.raises(UsageError, match="may not be written by this user"):
            check_writable(path)
    assert asked == [there, tmp_path]
