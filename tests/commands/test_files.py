"""Output files are checked before any work."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.commands.output import check_writable
from netbench.errors import UsageError
from netbench.files import MAX_TEXT_BYTES, read_input
from tests.four_nodes import write

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


@pytest.mark.parametrize(
    "words",
    [
        ("schedule", "--evaluations", "2", "-o"),
        ("schedule", "repair", "-o"),
        ("sweep", "--vary", "delay=1ms", "--csv"),
        ("run", "--testbed", "sim", "--trace"),
        ("run", "--testbed", "sim", "--plot"),
        ("explain", "--trace"),
        ("scenario", "show", "--plot"),
        ("net", "trace", "outage", "--link=A", "--up=1s", "--down=1s", "--until=9s", "-o"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_input_is_never_overwritten(
    words: Sequence[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor through a link to it."""
    monkeypatch.chdir(tmp_path)
    text = Path(write(tmp_path)).read_text()
    os.link("four-nodes.yaml", "link.svg")
    assert run([*words, "link.svg", "four-nodes.yaml"]) == 2
    assert "link.svg: is an input of this command" in capsys.readouterr().err.replace(
        "four-nodes.yaml: is", "link.svg: is"
    )
    assert Path("four-nodes.yaml").read_text() == text


def test_measurements_are_not_overwritten_by_what_is_made_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both outputs of `net import` are compared with its inputs."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(table := "rtt_ms,a,b\na,,11\nb,12,\n")
    assert run(["net", "import", "t.csv", "--csv", "t.csv"]) == 2
    assert run(["net", "import", "t.csv", "-o", "t.csv"]) == 2
    assert capsys.readouterr().err.count("t.csv: is an input of this command") == 2
    assert Path("t.csv").read_text() == table


@pytest.mark.parametrize(
    "words",
    [
        ("run", "/dev/zero"),
        ("scenario", "validate", "/dev/zero"),
        ("net", "inventory", "/dev/zero"),
        ("net", "trace", "show", "case5", "/dev/zero"),
        ("net", "import", "/dev/zero"),
        ("table", "case3", "--run", "/dev/zero"),
    ],
    ids=" ".join,
)
def test_what_is_not_a_regular_file_is_not_read(
    words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Reading it would fill the memory."""
    assert run(words) in (1, 2)
    assert "/dev/zero: " in (error := capsys.readouterr().err)
    assert "not a regular file" in error or "no such file" in error


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    """A compressed file counts as what it contains."""
    large, packed = tmp_path / "large.yaml", tmp_path / "large.json.gz"
    large.write_bytes(bytes(MAX_TEXT_BYTES + 1))
    packed.write_bytes(gzip.compress(bytes(MAX_TEXT_BYTES + 1)))
    for path in (large, packed):
        with pytest.raises(OSError, match="larger than 2MiB, the limit"):
            read_input(path)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(OSError, match="damaged"):
        read_input(packed, 2 * MAX_TEXT_BYTES)
