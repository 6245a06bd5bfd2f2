"""Records in two places, guards that need neither of them, and interfaces with a new name.

The agent runs on a kernel that is a double; `test_agent_in_namespace` has the real one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netbench.network.remote.agent import host, operations, state, timer
from netbench.network.shaping.batch import HANDLE
from tests.fake_machines import DEFAULT, FORMER, FakeKernel, FakeMachines

ALICE = {"name": "root@lab", "pid": 7, "session": "one", "runs": ()}
PFIFO = {"kind": "pfifo", "handle": "7:", "root": True, "options": {"limit": 77}}
RAISED = {"net.ipv4.tcp_rmem": "4096 131072 99999999"}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachines:
    machines = FakeMachines(monkeypatch, tmp_path, 1)
    monkeypatch.setattr(host, "SYSCTL", machines.kernels[0].sysctl)
    return machines


@pytest.fixture
def kernel(node: FakeMachines) -> FakeKernel:
    """Shaped by Alice for 30 s, in place of a `pfifo` of 77 packets."""
    kernel = node.kernels[0]
    kernel.root = PFIFO
    ask("arm", lease_s=30.0)
    ask("apply", lease_s=30.0, text=HTB, sysctls=RAISED, max_segments=4, replace=True)
    assert kernel.root["handle"] == HANDLE
    return kernel


HTB = "qdisc add dev eth0 root handle 6e62: htb default 0\n"


def ask(operation: str, **fields: Any) -> Any:
    request = {"owner": ALICE, "interface": "eth0", **fields}
    request["interface"] = operations.interface_of(request)
    return operations.OPERATIONS[operation](request)


def recorded() -> state.State:
    record = state.find(FakeKernel.INDEX)
    assert record is not None
    return record


def lose_both() -> state.State:
    """Remove both copies of the record; return what the timer remembers."""
    record = recorded()
    for path in state.paths("*.json"):
        path.unlink()
    assert state.records() == []
    return record


def is_as_before(kernel: FakeKernel) -> bool:
    settings = {name: kernel.setting(name) for name in FORMER}
    return kernel.root == PFIFO and kernel.segments == 65535 and settings == FORMER


@pytest.mark.parametrize("folder", [0, 1])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 99)])
def test_either_copy_of_a_record_is_enough(
    kernel: FakeKernel, folder: int, damage: Callable[[Path], None]
) -> None:
    """The other one is missing or truncated."""
    copies = state.paths("*.json")
    assert [copy.parent for copy in copies] == [state.STATE, state.MIRROR]
    damage(copies[folder])
    cleared = ask("clear", scope="owner")
    assert (cleared["cleared"], cleared["notes"]) == (True, [])
    assert is_as_before(kernel)
    assert not state.STATE.exists()
    assert not state.MIRROR.exists()


def test_a_record_that_was_edited_does_not_count(kernel: FakeKernel) -> None:
    """Its checksum is that of other content."""
    copy = state.paths("*.json")[0]
    copy.write_text(copy.read_text().replace('"limit": 77', '"limit": 78'))
    assert state.read(copy) is None
    assert recorded()["former"]["qdiscs"] == [PFIFO]


@pytest.mark.usefixtures("kernel")
def test_the_timer_writes_lost_copies_again() -> None:
    """One copy, or both."""
    remembered = recorded()
    state.paths("*.json")[0].unlink()
    assert not state.is_whole(remembered)
    assert not timer.end_lease(remembered)
    assert state.is_whole(remembered)
    lose_both()
    assert not timer.end_lease(remembered)
    assert recorded() == remembered


def test_the_timer_restores_what_it_remembers(node: FakeMachines, kernel: FakeKernel) -> None:
    """The lease ends when no copy is left."""
    remembered = lose_both()
    node.boottime_s += 31
    timer.wait_for_end_of_lease(remembered)
    assert is_as_before(kernel)


def test_a_clear_that_was_killed_at_its_end_is_finished(kernel: FakeKernel) -> None:
    """It dropped the record but left the timer, which must not bring the record back."""
    remembered = recorded()
    ask("clear", scope="owner")
    timer.wait_for_end_of_lease(remembered)
    assert is_as_before(kernel)
    assert state.records() == []


def test_an_operation_waits_for_a_lost_record(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timer looks once a second. Without a timer the wait ends."""
    remembered = lose_both()
    monkeypatch.setattr(time, "sleep", lambda _: timer.end_lease(remembered))
    assert state.recorded("eth0") == remembered
    monkeypatch.setattr(state, "WRITTEN_AGAIN_S", 0.0)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    lose_both()
    assert state.recorded("eth0") is None


def test_a_folder_of_somebody_else_is_neither_read_nor_written(
    node: FakeMachines, tmp_path: Path
) -> None:
    """Anyone may make it in /dev/shm: what a record says is run as root."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    state.MIRROR.symlink_to(theirs)
    ask("arm", lease_s=30.0)
    assert list(theirs.iterdir()) == []
    copy = state.paths("*.json")[0]
    copy.rename(theirs / copy.name)
    assert state.records() == []


def test_restored_means_read_back(kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """tc says that it deleted the root qdisc, but the kernel still has it: an error, and the
    record stays for the guards."""

    def idle(argv: list[str], stdin: str = "") -> tuple[int, str, str]:
        return (0, "", "") if argv[:3] == ["tc", "qdisc", "del"] else kernel.run(argv, stdin)

    with monkeypatch.context() as patch:
        patch.setattr(host, "run_tool", idle)
        with pytest.raises(host.AgentError, match="eth0 still has its root qdisc 6e62: after tc"):
            ask("clear", scope="owner")
    assert ask("clear", scope="owner")["notes"] == []
    assert is_as_before(kernel)


@pytest.mark.parametrize("asked_for", ["eth0", "lan0"])
def test_a_renamed_interface_is_found_by_its_index(kernel: FakeKernel, asked_for: str) -> None:
    """By its new name, and by the old one, which an inventory may have."""
    kernel.name = "lan0"
    assert ask("beat", interface=asked_for, lease_s=30.0)["lease"]["left_s"] == 30.0
    assert ask("clear", interface=asked_for, scope="owner")["notes"] == []
    assert is_as_before(kernel)


def test_the_timer_restores_a_renamed_interface(node: FakeMachines, kernel: FakeKernel) -> None:
    remembered = recorded()
    kernel.name = "lan0"
    node.boottime_s += 31
    timer.wait_for_end_of_lease(remembered)
    assert is_as_before(kernel)
    assert state.records() == []


def test_an_interface_that_was_made_anew_is_another_one(kernel: FakeKernel) -> None:
    """Its qdisc went with the old one, whose settings are restored before the new one is armed."""
    kernel.INDEX = 9
    kernel.root = DEFAULT
    ask("arm", lease_s=30.0)
    assert [record["ifindex"] for record in state.records()] == [9]
    assert {name: kernel.setting(name) for name in FORMER} == FORMER


def test_an_interface_that_is_not_there_is_not_all_clear(node: FakeMachines) -> None:
    """It may be shaped under another name."""
    node.kernels[0].name = "lan0"
    with pytest.raises(host.AgentError, match="there is no interface eth0, and no record of it"):
        ask("clear", scope="owner")


def test_systemd_starts_the_second_guard(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It runs a copy of the agent that stays on the host, and ends with the lease."""
    monkeypatch.setattr(timer, "SYSTEMD", tmp_path)
    sent = tmp_path / "agent.zip"
    sent.write_bytes(b"the agent")
    monkeypatch.setattr(sys, "argv", [str(sent)])
    assert ask("arm", lease_s=30.0)["notes"] == []
    copy = state.STATE / "2@0.zip"
    assert copy.read_bytes() == b"the agent"
    said = [line for line in node.kernels[0].commands if line.startswith("systemd-run")]
    assert len(said) == 1
    assert "--unit=netbench-guard-2 " in said[0]
    assert said[0].endswith(f"{sys.executable} -I -S {copy} guard")
    ask("clear", scope="owner")
    assert node.kernels[0].commands[-1] == "systemctl stop netbench-guard-2.timer"
    assert not copy.exists()


@pytest.mark.parametrize(
    ("stderr", "notes"),
    [
        ("Unit netbench-guard-2.timer was already loaded or has a fragment file.", []),
        ("No bus.", ["there is only one guard, the timer process: systemd-run: No bus."]),
    ],
)
def test_a_systemd_that_refuses_is_reported(
    node: FakeMachines,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stderr: str,
    notes: list[str],
) -> None:
    """A guard that runs already is enough."""
    kernel = node.kernels[0]
    monkeypatch.setattr(timer, "SYSTEMD", tmp_path)

    def refuse(argv: list[str], stdin: str = "") -> tuple[int, str, str]:
        return (1, "", stderr) if argv[0] == "systemd-run" else kernel.run(argv, stdin)

    monkeypatch.setattr(host, "run_tool", refuse)
    assert ask("arm", lease_s=30.0)["notes"] == notes


def test_the_second_guard_restores_without_the_timer(
    node: FakeMachines, kernel: FakeKernel
) -> None:
    """Timer and controller are gone. While the lease is in force nothing happens."""
    assert operations.guard({}) == {"restored": []}
    node.boottime_s += 31
    assert operations.guard({}) == {"restored": ["eth0"]}
    assert is_as_before(kernel)


def test_a_run_belongs_to_who_has_its_session(kernel: FakeKernel) -> None:
    """Another run of the same person on the same machine does not clear it without --force, and
    is told who has it. While its process runs, it alone does."""
    other = {**ALICE, "pid": 8, "session": "two"}
    heir = {**other, "runs": ["one"]}
    for owner in (other, heir):
        with pytest.raises(host.AgentError, match=r"by root@lab \(pid 7\) since .*--force clears"):
            ask("clear", owner=owner, scope="owner")
    ask("beat", lease_s=30.0, release=True)
    with pytest.raises(host.AgentError, match=r"until .* \(in 30 s\); --force clears"):
        ask("clear", owner=other, scope="owner")
    with pytest.raises(host.AgentError, match="is shaped by root@lab"):
        ask("arm", owner=other, lease_s=30.0)
    said = ask("clear", owner=other, scope="session")
    assert not said["cleared"]
    assert "eth0 is shaped by root@lab (pid 7)" in said["notes"][0]
    assert kernel.root["handle"] == HANDLE
    assert ask("clear", owner=heir, scope="owner")["cleared"]
    assert is_as_before(kernel)


def test_the_guard_of_another_namespace_stays(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its interface may have the same index. A container may not even look."""
    monkeypatch.setattr(timer, "SYSTEMD", tmp_path)

    def namespace(process: str = "self") -> int:
        if process != "self" and node.boottime_s > 1000:
            raise PermissionError
        return len(process)

    monkeypatch.setattr(host, "namespace", namespace)
    for _ in range(2):
        assert ask("arm", lease_s=30.0)["notes"] == []
        assert ask("clear", scope="owner")["cleared"]
        node.boottime_s += 1
    assert [line for line in node.kernels[0].commands if line.startswith("systemd")] == []
    assert [line for line in node.kernels[0].commands if line.startswith("systemctl")] == []
