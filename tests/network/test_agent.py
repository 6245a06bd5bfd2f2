"""The agent alone: what it may import, what it refuses, what it puts back (a double for `tc`)."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from netbench.network import agent
from netbench.network.tc import HANDLE
from tests.network.fake_machines import DEFAULT, FORMER, FakeMachines

SOURCE = Path(agent.__file__)
OWNER = {"name": "alice@laptop", "pid": 7, "session": "one"}
HTB = "qdisc add dev eth0 root handle 6e62: htb default 0\n"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachines:
    machines = FakeMachines(monkeypatch, tmp_path, 1)
    monkeypatch.setattr(agent, "SYSCTL", machines.kernels[0].sysctl)
    return machines


def arm(**fields: Any) -> Any:
    return agent.arm({"owner": OWNER, "interface": "eth0", "lease_s": 30.0, **fields})


def apply(**fields: Any) -> Any:
    request = {"text": HTB, "sysctls": {}, "max_segments": 65535, "replace": False, "lease_s": 30.0}
    return agent.apply({"owner": OWNER, "interface": "eth0", **request, **fields})


def beat(**fields: Any) -> Any:
    return agent.beat({"owner": OWNER, "interface": "eth0", "lease_s": 30.0, **fields})


def clear(scope: str = "owner") -> Any:
    return agent.clear({"owner": OWNER, "interface": "eth0", "scope": scope})


def test_it_is_python_3_9() -> None:
    """What a node has may be older than what netbench needs."""
    ast.parse(SOURCE.read_text(), feature_version=(3, 9))


def test_it_imports_only_the_standard_library() -> None:
    """It is sent alone."""
    imported = {
        name.split(".")[0]
        for found in ast.walk(ast.parse(SOURCE.read_text()))
        for name in (
            [alias.name for alias in found.names]
            if isinstance(found, ast.Import)
            else [str(found.module)]
            if isinstance(found, ast.ImportFrom)
            else []
        )
    }
    assert "json" in imported
    assert imported <= set(sys.stdlib_module_names)


def test_it_runs_alone_and_answers_in_one_line() -> None:
    """Without netbench, in a Python that looks nowhere else."""
    argv = [sys.executable, "-I", "-S", str(SOURCE), "dance"]
    done = subprocess.run(argv, input="{}", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error == f"expected one operation of: {', '.join(agent.OPERATIONS)}"


def test_nothing_is_applied_that_was_not_armed(node: FakeMachines) -> None:
    """The timer first; also when it has run out meanwhile."""
    with pytest.raises(agent.AgentError, match="eth0 is not armed"):
        apply()
    arm()
    node.boottime_s += 31
    with pytest.raises(agent.AgentError, match="the lease has ended and the node has cleared"):
        apply()
    assert node.kernels[0].root == DEFAULT


def test_a_lease_without_end_needs_a_program(node: FakeMachines) -> None:
    """Before, a vanished controller would leave the interface taken for ever."""
    arm()
    with pytest.raises(agent.AgentError, match="only after a program was applied"):
        beat(lease_s=None)
    apply()
    assert beat(lease_s=None)["lease"]["left_s"] is None


@pytest.mark.parametrize("lease_s", [0, -1, "60", None, 1e9])
def test_a_lease_is_a_time(node: FakeMachines, lease_s: object) -> None:
    """Up to 30 days."""
    with pytest.raises(agent.AgentError, match="expected more than 0"):
        arm(lease_s=lease_s)


def test_changes_are_recorded_before_they_are_made(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent killed at any write leaves a record from which all can be put back."""
    kernel = node.kernels[0]
    recorded: list[tuple[bool, bool]] = []
    real = agent.write_sysctl

    def write(name: str, value: str) -> None:
        state = agent.load_state("eth0")
        assert state is not None
        recorded.append((name in state["sysctls"], kernel.root == DEFAULT))
        real(name, value)

    arm()
    monkeypatch.setattr(agent, "write_sysctl", write)
    wanted = dict.fromkeys(FORMER, "4096 131072 99999999")
    apply(sysctls=wanted)
    assert recorded == [(True, True), (True, True)]
    monkeypatch.setattr(agent, "write_sysctl", real)
    clear()
    assert {name: kernel.setting(name) for name in FORMER} == FORMER


def test_buffers_are_raised_never_lowered(node: FakeMachines) -> None:
    """The machine may be tuned for more than the scenario needs."""
    arm()
    apply(sysctls={"net.ipv4.tcp_rmem": "4096 131072 4096"})
    assert node.kernels[0].setting("net.ipv4.tcp_rmem").split()[2] == "6291456"


def test_what_a_later_program_does_not_need_goes_back(node: FakeMachines) -> None:
    """A setting, and the limit on large packets."""
    kernel = node.kernels[0]
    arm()
    apply(sysctls={"net.ipv4.tcp_wmem": "4096 16384 99999999"}, max_segments=4)
    assert kernel.segments == 4
    apply(text="", max_segments=65535)
    assert kernel.segments == 65535
    assert kernel.setting("net.ipv4.tcp_wmem") == FORMER["net.ipv4.tcp_wmem"]


@pytest.mark.parametrize("first_to_go", [0, 1])
@pytest.mark.parametrize("largest", [(50_000_000, 60_000_000), (60_000_000, 50_000_000)])
def test_settings_are_shared_by_interfaces(
    node: FakeMachines, largest: tuple[int, int], first_to_go: int
) -> None:
    """They are of the network namespace: they go back with the last interface that needs them, and
    until then they are as large as any of those there needs."""
    kernel, name = node.kernels[0], "net.ipv4.tcp_rmem"
    agent.STATE.mkdir()
    states: list[Any] = [
        {"interface": interface, "boot_id": agent.boot_id(), "sysctls": {}, "segments": None}
        for interface in ("eth0", "eth1.7")
    ]
    for state, size in zip(states, largest, strict=True):
        agent._set_sysctls(state, {name: f"4096 131072 {size}"})
        agent.save_state(state)
    assert kernel.setting(name).split()[2] == "60000000"
    assert [agent._changed(state) for state in states] == [[], []]
    notes: list[str] = []
    for number in (first_to_go, 1 - first_to_go):
        state = states[number]
        assert int(kernel.setting(name).split()[2]) >= largest[number]
        agent._restore_sysctls(state, notes)
        agent.state_path(state["interface"]).unlink()
    assert kernel.setting(name) == FORMER[name]
    assert notes == []


def test_two_interfaces_may_be_put_back_at_once(node: FakeMachines) -> None:
    """Neither leaves the settings to the other, which is leaving too."""
    kernel, name = node.kernels[0], "net.ipv4.tcp_rmem"
    agent.STATE.mkdir()
    for interface, size in (("eth0", 50_000_000), ("eth1", 60_000_000)):
        state = {"interface": interface, "boot_id": agent.boot_id(), "sysctls": {}}
        agent._set_sysctls(state, {name: f"4096 131072 {size}"})
        agent.save_state({**state, "leaving": True})
    notes: list[str] = []
    for interface in ("eth0", "eth1"):
        found = agent.load_state(interface)
        assert found is not None
        agent._restore_sysctls(found, notes)
    assert kernel.setting(name) == FORMER[name]
    assert notes == []


def test_who_is_put_back_says_so_first(node: FakeMachines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the settings of others are looked at."""
    said: list[bool] = []

    def look(state: Any, notes: list[str]) -> None:
        found = agent.load_state("eth0")
        said.append(found is not None and "leaving" in found)

    arm()
    apply()
    monkeypatch.setattr(agent, "_restore_sysctls", look)
    clear()
    assert said == [True]


@pytest.mark.parametrize("name", ["kernel.core_pattern", "net.ipv4/../../kernel", "net.ipv4.a-b"])
def test_only_settings_of_the_network_are_touched(node: FakeMachines, name: str) -> None:
    """Whatever a request says."""
    arm()
    with pytest.raises(agent.AgentError, match="not a setting of the network"):
        apply(sysctls={name: "|/bin/sh"})


@pytest.mark.parametrize("name", ["", "-a", "a/b", "..", "a b", "x" * 16])
def test_only_names_of_interfaces_become_files(node: FakeMachines, name: str) -> None:
    """They are part of a path."""
    with pytest.raises(agent.AgentError, match="not the name of an interface"):
        arm(interface=name)


def test_a_program_without_a_record_is_cleared_too(node: FakeMachines) -> None:
    """Its record was lost; what is under another handle is not touched."""
    kernel = node.kernels[0]
    kernel.root = {"kind": "htb", "handle": HANDLE, "root": True, "options": {}}
    assert clear("session") == {"cleared": False, "notes": [], "lease": None}
    assert clear()["cleared"]
    assert kernel.root == DEFAULT
    kernel.root = foreign = {"kind": "htb", "handle": "1:", "root": True, "options": {}}
    assert not clear("any")["cleared"]
    assert kernel.root == foreign


def test_a_record_of_another_boot_is_dropped(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing it says is so any more."""
    arm()
    monkeypatch.setattr(agent, "boot_id", lambda: "another")
    assert agent.load_state("eth0") is None
    assert agent.sweep() == ["eth0"]
    assert list(agent.STATE.iterdir()) == []


def test_what_a_dead_deadman_left_is_swept(node: FakeMachines) -> None:
    """The next to look at the node puts it back."""
    arm()
    apply()
    assert agent.sweep() == []
    node.boottime_s += 31
    assert agent.sweep() == ["eth0"]
    assert node.kernels[0].root == DEFAULT


def test_a_new_owner_finds_the_node_as_it_was(node: FakeMachines) -> None:
    """Arming after a lease has ended does not take our leftovers for what was there before."""
    arm()
    apply(sysctls={"net.ipv4.tcp_rmem": "4096 131072 99999999"})
    node.boottime_s += 31
    arm(owner={"name": "bob@tower", "pid": 8, "session": "two"})
    state = agent.load_state("eth0")
    assert state is not None
    assert state["former"]["qdiscs"] == [DEFAULT]
    assert state["sysctls"] == {}


def test_a_state_that_cannot_be_written_stops_everything(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/run is full: nothing was changed, and the message says what is wrong."""

    def full(self: Path, text: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(agent.AgentError, match=r"cannot write .*eth0@0\.json: No space left"):
        arm()
    assert not agent.STATE.exists()


def test_everything_is_put_back_that_can_be(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that fails is named and tried again; the others do not wait for it."""
    kernel = node.kernels[0]
    arm()
    apply(sysctls={"net.ipv4.tcp_rmem": "4096 131072 99999999"}, max_segments=4)

    def no_tc(argv: list[str], stdin: str = "") -> tuple[int, str, str]:
        return (
            (1, "", "tc is on holiday") if argv[:3] == ["tc", "qdisc", "del"] else kernel.run(argv)
        )

    with monkeypatch.context() as patch:
        patch.setattr(agent, "run_tool", no_tc)
        with pytest.raises(agent.AgentError, match="tc is on holiday"):
            clear()
    assert kernel.segments == 65535
    assert kernel.setting("net.ipv4.tcp_rmem") == FORMER["net.ipv4.tcp_rmem"]
    assert kernel.root["handle"] == HANDLE
    assert clear()["cleared"]
    assert kernel.root == DEFAULT


def test_looking_leaves_nothing_behind(node: FakeMachines) -> None:
    """Not even the empty folder of states; with one in it, it stays."""
    agent.show({"interface": "eth0"})
    assert not agent.STATE.exists()
    arm()
    agent.show({"interface": "eth0"})
    assert agent.STATE.is_dir()
    clear()
    assert not agent.STATE.exists()


def test_a_folder_removed_meanwhile_is_made_again(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another operation, which has just ended, between the making and the opening."""
    opened: list[bool] = []
    real = os.open

    def open_(path: Any, *arguments: Any) -> int:
        if not opened:
            agent.STATE.rmdir()
        opened.append(True)
        return real(path, *arguments)

    monkeypatch.setattr(agent.os, "open", open_)
    arm()
    assert agent.load_state("eth0") is not None


def test_a_renewed_lease_keeps_the_agent(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A dead-man that was about to end the lease finds it renewed: who renewed it may go on."""
    file = tmp_path / "netbench.abc" / "agent.py"
    file.parent.mkdir()
    file.touch()
    monkeypatch.setattr(agent.sys, "argv", [str(file)])
    arm()
    agent._end_lease("eth0", at_once=False)
    assert file.exists()
    node.boottime_s += 31
    agent._end_lease("eth0", at_once=False)
    assert not file.parent.exists()


def test_a_host_without_a_known_address_is_told_what_to_write(node: FakeMachines) -> None:
    """It is not reached by SSH, and the inventory says nothing."""
    with pytest.raises(agent.AgentError, match=r"into the inventory \(`data_address:`\)"):
        agent.interface_with([])


def test_a_root_that_came_back_by_half_is_tried_again(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not taken for somebody else's, which would be left as it is."""
    kernel = node.kernels[0]
    kernel.root = former = {"kind": "pfifo", "handle": "7:", "root": True, "options": {"limit": 9}}
    arm()
    apply(replace=True)

    def half(argv: list[str], stdin: str = "") -> tuple[int, str, str]:
        answer = kernel.run(argv, stdin)
        if argv == ["tc", "-batch", "-"]:
            kernel.root = {**former, "options": {"limit": 1}}
            return 1, "", "Error: out of memory.\nCommand failed -:2\n"
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(agent, "run_tool", half)
        with pytest.raises(agent.AgentError, match="out of memory"):
            clear()
    assert kernel.root == DEFAULT
    assert clear()["notes"] == []
    assert kernel.root == former


def test_another_operation_is_waited_for(node: FakeMachines, monkeypatch: Any) -> None:
    """But not for ever."""
    monkeypatch.setattr(agent, "LOCK_S", 0.1)
    with agent.locked("eth0"), pytest.raises(agent.AgentError, match="another operation has held"):
        arm()
    arm()


def test_the_deadman_is_a_process_of_its_own(monkeypatch: Any, tmp_path: Path) -> None:
    """In a process group and session of its own, with nothing of ours open, and gone in time.

    A real process and a real clock; `tc` is a double that is carried over by fork.
    """
    script = f"""
import sys; sys.path[:0] = {[str(Path.cwd()), *sys.path]!r}
from pathlib import Path
import pytest
from netbench.network import agent
from tests.network.fake_machines import FakeMachines
start = agent.start_deadman
patch = pytest.MonkeyPatch()
machines = FakeMachines(patch, Path({str(tmp_path)!r}), 1)
patch.setattr(agent, "SYSCTL", machines.kernels[0].sysctl)
patch.setattr(agent, "now_s", __import__("time").monotonic)
patch.setattr(agent, "start_deadman", start)
from tests.network.test_agent import arm, apply
arm(lease_s=1.5)
apply(lease_s=1.5, sysctls={{"net.ipv4.tcp_rmem": "4096 131072 99999999"}})
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 0
    (state,) = (tmp_path / "state").glob("*.json")
    pid = json.loads(state.read_text())["deadman"]["pid"]
    setting = tmp_path / "0/net/ipv4/tcp_rmem"
    assert setting.read_text() == "4096 131072 99999999\n"
    assert os.getsid(pid) != os.getsid(0)
    files = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    assert files == {os.devnull}
    end = time.monotonic() + 30
    while state.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not state.exists()
    assert setting.read_text() == FORMER["net.ipv4.tcp_rmem"] + "\n"


def test_a_process_that_has_ended_does_not_live_though_nobody_has_buried_it() -> None:
    """In many a container nobody does."""
    assert agent.start_time(os.getpid()) != ""
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert agent.start_time(child.pid) == ""
    assert agent.start_time(child.pid) == ""
