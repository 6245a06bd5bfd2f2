"""The courier on this machine: real commands, real folders."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from netbench.errors import NetworkError, TestbedError
from netbench.network import courier
from netbench.network.courier import Courier, Machine


class Warden:
    """A command that stays: `netbench.network.replay.Channel`, as far as a courier needs it."""

    def __init__(self, node: int, argv: Sequence[str]) -> None:
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE)

    def send(self, line: str) -> None:
        raise NotImplementedError

    def receive(self) -> str | None:
        raise NotImplementedError

    def close(self) -> None:
        """As when the connection ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30.0) == 0


def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def put(node: int, data: bytes, path: str) -> None:
    with Path(path).open("xb") as file:
        file.write(data)


@pytest.fixture
def opened() -> list[Warden]:
    return []


@pytest.fixture
def sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Warden]) -> Courier:
    monkeypatch.setattr(courier, "FOLDERS", (str(tmp_path),))

    def start(node: int, argv: Sequence[str]) -> Warden:
        opened.append(Warden(node, argv))
        return opened[-1]

    return Courier([Machine(name="here", python=sys.executable)], run, run, put, start)


def test_what_was_sent_goes_when_the_connection_ends(
    sender: Courier, opened: list[Warden], tmp_path: Path
) -> None:
    """However the controller has ended."""
    sent = Path(sender.send(0).path)
    assert sent.is_file()
    assert sent.parent.parent == tmp_path
    opened[0].close()
    assert list(tmp_path.iterdir()) == []
    # It is missed, and sent again.
    with pytest.raises(courier.Refused, match=r"not root|Errno|interface"):
        sender.ask(0, "show", {"interface": "nowhere-at-all-0"})
    assert len(list(tmp_path.iterdir())) == 1
    sender.remove(0)
    assert list(tmp_path.iterdir()) == []
    assert opened[1].process.returncode == 0


def test_what_came_first_is_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is lost while the agent is written, and so is what would tidy up."""
    monkeypatch.setattr(courier, "FOLDERS", (str(tmp_path),))

    def run_until_lost(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        if "rm" in argv:
            raise TestbedError("lost again")
        return run(node, argv, stdin)

    def lose(node: int, data: bytes, path: str) -> None:
        raise TestbedError("lost while writing")

    some = Courier([Machine(name="here", python=sys.executable)], run_until_lost, run, lose)
    with pytest.raises(TestbedError, match="lost while writing"):
        some.send(0)


def test_one_warden_at_a_time(sender: Courier, opened: list[Warden], tmp_path: Path) -> None:
    """An agent that is sent again: what watched the former folder ends."""
    sent = Path(sender.send(0).path)
    sent.unlink()
    with pytest.raises(courier.Refused):
        sender.ask(0, "show", {"interface": "nowhere-at-all-0"})
    assert opened[0].process.returncode == 0
    assert not sent.parent.exists()
    assert opened[1].process.poll() is None
    sender.remove(0)


def test_a_full_folder_is_known_in_any_language(tmp_path: Path) -> None:
    """`mktemp` speaks the language of the login, unless it is told not to."""
    languages: list[str] = []

    def spoken(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        found = run(node, [argv[0], argv[1], "printenv", "LC_ALL"], "")[1].strip()
        languages.append(found)
        return 1, "", "No space left on device" if found == "C" else "Kein Speicherplatz"

    some = Courier([Machine(name="here")], spoken, run, put)
    with pytest.raises(NetworkError, match="no room for the agent"):
        some.send(0)
    assert languages == ["C"] * len(courier.FOLDERS)
