"""The deployer on this machine: real commands, real folders."""

from __future__ import annotations

import binascii
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from netbench.errors import NetworkError, TestbedError
from netbench.network.nodes import Channel
from netbench.network.remote import deployer
from netbench.network.remote.deployer import Deployer, Machine
from netbench.testing.nodes import Answer, FakeNode


class Command:
    """A persistent command: a `netbench.network.nodes.Channel`."""

    def __init__(self, node: int, argv: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except OSError as error:
            raise TestbedError("the command has ended") from error

    def receive(self) -> str | None:
        assert self.process.stdout is not None
        return self.process.stdout.readline() or None

    def close(self) -> None:
        """Close stdin, as the end of a connection does."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        self.process.wait(120.0)


def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def machine(
    answer: Answer,
    start: Callable[[int, Sequence[str]], Channel] | None = None,
    python: str = sys.executable,
    as_root: Answer = run,
) -> Machine:
    """This machine. answer: for the login user; as_root, start: for root."""
    node, root = FakeNode(0, answer), FakeNode(0, as_root, start)
    return Machine(name="here", python=python, node=node, root=root)


@pytest.fixture
def opened() -> list[Command]:
    return []


def forbidden(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
    raise AssertionError(f"{argv} was started for one request")


@pytest.fixture
def start(opened: list[Command]) -> Callable[[int, Sequence[str]], Command]:
    """Start a command that stays."""

    def start(node: int, argv: Sequence[str]) -> Command:
        opened.append(Command(node, argv))
        return opened[-1]

    return start


@pytest.fixture
def sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[int, Sequence[str]], Command]
) -> Deployer:
    monkeypatch.setattr(deployer, "FOLDERS", (str(tmp_path),))
    return Deployer([machine(run, start=start)])


def refused(sender: Deployer) -> None:
    """Ask for what no agent does."""
    with pytest.raises(deployer.AgentRefused, match=r"not root|no interface"):
        sender.ask(0, "arm", {"interface": "nowhere-at-all", "owner": {}, "lease_s": 1.0})


def await_names(folder: Path, names: list[str]) -> None:
    """Wait until this is all that a folder has: an agent is deleted when its process has ended."""
    end_s = time.monotonic() + 60.0
    while [path.name for path in folder.iterdir()] != names:
        assert time.monotonic() < end_s, [*folder.iterdir()]
        time.sleep(0.02)


def test_one_agent_answers_all_requests(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: list[Command],
    start: Callable[[int, Sequence[str]], Command],
) -> None:
    """No other process is started for them."""
    monkeypatch.setattr(deployer, "FOLDERS", (str(tmp_path),))
    sender = Deployer([machine(run, start=start, as_root=forbidden)])
    for _ in range(3):
        refused(sender)
    assert len(opened) == 1
    sender.remove(0)
    assert opened[0].process.returncode == 0


def test_an_agent_that_has_ended_is_started_again(sender: Deployer, opened: list[Command]) -> None:
    """A request meanwhile starts a process for itself."""
    refused(sender)
    opened[0].process.kill()
    opened[0].process.wait(60.0)
    for _ in range(2):
        refused(sender)
    assert len(opened) == 2
    assert opened[1].process.poll() is None
    sender.remove(0)


def test_an_agent_that_does_not_answer_keeps_nobody_waiting(
    sender: Deployer, opened: list[Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped in the middle of a request: the next one starts another."""
    monkeypatch.setattr(deployer, "BUSY_S", 0.1)
    sender.send(0)
    opened[0].process.send_signal(signal.SIGSTOP)
    stuck = threading.Thread(target=partial(refused, sender), daemon=True)
    stuck.start()
    time.sleep(0.5)
    refused(sender)
    assert stuck.is_alive()
    opened[0].process.send_signal(signal.SIGCONT)
    stuck.join(60.0)
    sender.remove(0)


def test_the_agent_is_deleted_when_the_connection_ends(
    sender: Deployer, opened: list[Command], tmp_path: Path
) -> None:
    """It does so however the controller ended."""
    sent = Path(sender.send(0).path)
    assert sent.is_file()
    assert sent.parent.parent == tmp_path
    assert (sent.parent.stat().st_mode & 0o777, sent.stat().st_mode & 0o777) == (0o700, 0o600)
    opened[0].close()
    await_names(tmp_path, [])
    # The next request finds it missing, and it is sent again.
    refused(sender)
    assert len(list(tmp_path.iterdir())) == 1
    sender.remove(0)
    await_names(tmp_path, [])


def test_an_agent_whose_file_has_gone_is_sent_again(
    sender: Deployer, opened: list[Command], tmp_path: Path
) -> None:
    """The host has cleaned its temporary folder. The former process ends, and its folder goes."""
    refused(sender)
    former, sent = opened[0].process, Path(sender.send(0).path)
    sent.unlink()
    refused(sender)
    assert former.wait(60.0) == 0
    await_names(tmp_path, [Path(sender.send(0).path).parent.name])
    assert opened[1].process.poll() is None
    sender.remove(0)


def test_the_first_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent arrives damaged, and the connection is lost when it is deleted."""
    monkeypatch.setattr(deployer, "FOLDERS", (str(tmp_path),))

    def damaging(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        if "rm" in argv:
            raise TestbedError("lost")
        return run(node, argv, binascii.b2a_base64(b"other").decode())

    with pytest.raises(NetworkError, match="has a wrong checksum and was not run"):
        Deployer([machine(damaging)]).send(0)


def test_the_first_folder_that_can_be_written_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders that cannot be written are passed over, and nothing is left in them."""
    places = (str(tmp_path / "missing"), "/dev/full", str(tmp_path))
    monkeypatch.setattr(deployer, "FOLDERS", places)
    some = Deployer([machine(run)])
    assert Path(some.send(0).path).parent.parent == tmp_path
    some.remove(0)
    monkeypatch.setattr(deployer, "FOLDERS", places[:2])
    monkeypatch.setattr(deployer, "STATE_FOLDER", str(tmp_path))
    with pytest.raises(NetworkError, match=r"no room .*missing: No such .*; /dev/full: Not a d"):
        some.send(0)
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_is_cut_off_leaves_nothing(tmp_path: Path) -> None:
    """The connection ends while it is sent."""
    argv = [sys.executable, "-c", deployer._RECEIVE, "netbench.", str(tmp_path)]
    status, stdout, stderr = run(0, argv, "aaaa")
    assert (status, stdout, stderr.strip()) == (1, "", "the connection ended")
    assert list(tmp_path.iterdir()) == []


def test_without_room_the_agent_that_the_host_keeps_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disks are full, and the host is shaped. Its copy stays there."""
    monkeypatch.setattr(deployer, "STATE_FOLDER", str(tmp_path))
    monkeypatch.setattr(deployer, "FOLDERS", ("/dev/full",))
    armed = tmp_path / "2@0.zip"
    some = Deployer([machine(run)])
    with pytest.raises(NetworkError, match="no room for the agent"):
        some.send(0)
    armed.write_bytes(deployer.agent_zip())
    assert some.send(0).path == str(armed)
    refused(some)
    some.remove(0)
    assert armed.exists()


def test_a_python_that_is_none_is_named(tmp_path: Path) -> None:
    """It ends well, but does not answer."""
    some = Deployer([machine(run, python="/bin/echo")])
    with pytest.raises(NetworkError) as caught:
        some.send(0)
    assert str(caught.value).startswith("`/bin/echo` is not a Python: asked for its version it ")
    assert "name one in the inventory (`python:`)" in str(caught.value)


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
