"""The deployer on this machine: real commands, real folders."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from netbench.errors import NetworkError, TestbedError
from netbench.network.nodes import Channel
from netbench.network.remote import deployer
from netbench.network.remote.deployer import Deployer, Machine
from netbench.testing.nodes import Answer, FakeNode


class Cleanup:
    """A persistent command: a `network.traces.replay.Channel` as far as a deployer needs it."""

    def __init__(self, node: int, argv: Sequence[str]) -> None:
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE)

    def send(self, line: str) -> None:
        raise NotImplementedError

    def receive(self) -> str | None:
        raise NotImplementedError

    def close(self) -> None:
        """Close stdin, as the end of a connection does."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(120.0) == 0


def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def machine(
    answer: Answer,
    start: Callable[[int, Sequence[str]], Channel] | None = None,
    write: Callable[[int, bytes, str], None] | None = None,
    python: str = sys.executable,
) -> Machine:
    """This machine. answer, write: for the login user; start: for root."""
    node, root = FakeNode(0, answer, write=write), FakeNode(0, run, start)
    return Machine(name="here", python=python, node=node, root=root)


@pytest.fixture
def opened() -> list[Cleanup]:
    return []


@pytest.fixture
def sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Cleanup]) -> Deployer:
    monkeypatch.setattr(deployer, "FOLDERS", (str(tmp_path),))

    def start(node: int, argv: Sequence[str]) -> Cleanup:
        opened.append(Cleanup(node, argv))
        return opened[-1]

    return Deployer([machine(run, start=start)])


def test_the_agent_is_deleted_when_the_connection_ends(
    sender: Deployer, opened: list[Cleanup], tmp_path: Path
) -> None:
    """It does so however the controller ended."""
    sent = Path(sender.send(0).path)
    assert sent.is_file()
    assert sent.parent.parent == tmp_path
    opened[0].close()
    assert list(tmp_path.iterdir()) == []
    # The next call finds it missing and sends it again.
    with pytest.raises(deployer.AgentRefused, match=r"not root|Errno|interface"):
        sender.ask(0, "show", {"interface": "nowhere-at-all-0"})
    assert len(list(tmp_path.iterdir())) == 1
    sender.remove(0)
    assert list(tmp_path.iterdir()) == []
    assert opened[1].process.returncode == 0


def test_the_first_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is lost while the agent is written, and again while it is cleaned up."""
    monkeypatch.setattr(deployer, "FOLDERS", (str(tmp_path),))

    def run_until_lost(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        if "rm" in argv:
            raise TestbedError("lost again")
        return run(node, argv, stdin)

    def lose(node: int, data: bytes, path: str) -> None:
        raise TestbedError("lost while writing")

    some = Deployer([machine(run_until_lost, write=lose)])
    with pytest.raises(TestbedError, match="lost while writing"):
        some.send(0)


def test_one_cleanup_process_at_a_time(
    sender: Deployer, opened: list[Cleanup], tmp_path: Path
) -> None:
    """Sending the agent again ends the cleanup process of the former folder."""
    sent = Path(sender.send(0).path)
    sent.unlink()
    with pytest.raises(deployer.AgentRefused):
        sender.ask(0, "show", {"interface": "nowhere-at-all-0"})
    assert opened[0].process.returncode == 0
    assert not sent.parent.exists()
    assert opened[1].process.poll() is None
    sender.remove(0)


def test_a_full_folder_is_recognised_in_any_language(tmp_path: Path) -> None:
    """`mktemp` is told to print English, whatever the language of the login."""
    languages: list[str] = []

    def spoken(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        found = run(node, [argv[0], argv[1], "printenv", "LC_ALL"], "")[1].strip()
        languages.append(found)
        return 1, "", "No space left on device" if found == "C" else "Kein Speicherplatz"

    some = Deployer([machine(spoken)])
    with pytest.raises(NetworkError, match="no room for the agent"):
        some.send(0)
    assert languages == ["C"] * len(deployer.FOLDERS)


def test_without_room_the_agent_that_the_host_keeps_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disks are full, and the host is shaped. Its copy stays there."""
    monkeypatch.setattr(deployer, "STATE_FOLDER", str(tmp_path))
    armed = tmp_path / "2@0.zip"

    def full(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        return (1, "", "No space left on device") if "mktemp" in argv else run(node, argv, stdin)

    some = Deployer([machine(full)])
    with pytest.raises(NetworkError, match="no room for the agent"):
        some.send(0)
    armed.write_bytes(deployer.agent_zip())
    assert some.send(0).path == str(armed)
    with pytest.raises(deployer.AgentRefused, match=r"not root|Errno|interface"):
        some.ask(0, "show", {"interface": "nowhere-at-all-0"})
    some.remove(0)
    assert armed.exists()


def test_a_python_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends well, but does not answer."""
    monkeypatch.setattr(deployer, "FOLDERS", (str(tmp_path),))

    def write(node: int, data: bytes, path: str) -> None:
        Path(path).write_bytes(data)

    some = Deployer([machine(run, write=write, python="/bin/echo")])
    with pytest.raises(NetworkError) as caught:
        some.send(0)
    assert str(caught.value).startswith("`/bin/echo` is not a Python: asked for its version it ")
    assert "name one in the inventory (`python:`)" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An agent as root installs it."""
    if os.geteuid() != 0:
        pytest.skip("only root can install an agent")
    path = tmp_path / "agent.zip"
    path.write_bytes(deployer.agent_zip())
    path.chmod(0o644)
    return path


def installed_at(path: Path, calls: list[Sequence[str]]) -> Deployer:
    """A deployer whose host refuses whatever is not a call of the agent as root."""

    def call(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        calls.append(argv)
        return run(node, argv, stdin)

    here = dataclasses.replace(machine(run), root=FakeNode(0, call), agent_path=str(path))
    return Deployer([here])


def test_an_installed_agent_is_all_that_root_runs(installed: Path) -> None:
    """It is neither sent nor removed."""
    calls: list[Sequence[str]] = []
    sender = installed_at(installed, calls)
    with pytest.raises(deployer.AgentRefused, match="interface"):
        sender.ask(0, "show", {"interface": "no/name"})
    assert calls == [(sys.executable, "-I", "-S", str(installed), "show")]
    sender.remove(0)
    assert [path.name for path in installed.parent.iterdir()] == ["agent.zip"]


def test_an_installed_agent_must_be_roots_and_of_this_version(installed: Path) -> None:
    """Nothing runs as root otherwise."""
    calls: list[Sequence[str]] = []
    sender = installed_at(installed, calls)
    installed.chmod(0o666)
    with pytest.raises(NetworkError, match=r"others than root may write .*netbench net agent"):
        sender.ask(0, "show", {"interface": "eth0"})
    installed.chmod(0o644)
    installed.write_bytes(deployer.agent_zip() + b" ")
    with pytest.raises(NetworkError, match=r"wrong checksum .*netbench net agent"):
        sender.ask(0, "show", {"interface": "eth0"})
    installed.unlink()
    with pytest.raises(NetworkError, match=r"there is no .*agent\.zip; write it with"):
        sender.ask(0, "show", {"interface": "eth0"})
    assert calls == []
