"""The agent without a kernel: its imports, refusals and restored settings (`tc` is a double)."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from netbench.network.remote.agent import host, operations, restore, state, timer
from netbench.network.remote.deployer import AGENT, ROOT, SHARED
from netbench.network.shaping.batch import HANDLE
from tests.fake_machines import DEFAULT, FORMER, FakeMachines

MODULES = sorted([ROOT / name for name in SHARED] + list((ROOT / AGENT).glob("*.py")))
OWNER = {"name": "alice@laptop", "pid": 7, "session": "one"}
HTB = "qdisc add dev eth0 root handle 6e62: htb default 0\n"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachines:
    machines = FakeMachines(monkeypatch, tmp_path, 1)
    monkeypatch.setattr(host, "SYSCTL", machines.kernels[0].sysctl)
    return machines


def arm(**fields: Any) -> Any:
    return operations.arm({"owner": OWNER, "interface": "eth0", "lease_s": 30.0, **fields})


def apply(**fields: Any) -> Any:
    request = {"text": HTB, "sysctls": {}, "max_segments": 65535, "replace": False, "lease_s": 30.0}
    return operations.apply({"owner": OWNER, "interface": "eth0", **request, **fields})


def beat(**fields: Any) -> Any:
    return operations.beat({"owner": OWNER, "interface": "eth0", "lease_s": 30.0, **fields})


def clear(scope: str = "owner") -> Any:
    return operations.clear({"owner": OWNER, "interface": "eth0", "scope": scope})


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_module_is_python_3_9(path: Path) -> None:
    """A host may have an older Python than netbench needs."""
    ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_modules_import_only_the_standard_library_and_each_other(path: Path) -> None:
    """Nothing else is in the zip."""
    imported = {
        name
        for found in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in found.names]
            if isinstance(found, ast.Import)
            else [str(found.module)]
            if isinstance(found, ast.ImportFrom)
            else []
        )
    }
    sent = {str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in MODULES}
    sent |= {name.removesuffix(".__init__") for name in sent}
    assert imported <= set(sys.stdlib_module_names) | sent | {"collections.abc"}


def test_nothing_is_applied_that_was_not_armed(node: FakeMachines) -> None:
    """The timer comes first. It may also have run out meanwhile."""
    with pytest.raises(host.AgentError, match="eth0 is not armed"):
        apply()
    arm()
    node.boottime_s += 31
    with pytest.raises(host.AgentError, match="the lease has ended and the node has cleared"):
        apply()
    assert node.kernels[0].root == DEFAULT


def test_a_lease_without_end_needs_a_program(node: FakeMachines) -> None:
    """Without one, a vanished controller would leave the interface taken for ever."""
    arm()
    with pytest.raises(host.AgentError, match="only after a tc configuration was"):
        beat(lease_s=None)
    apply()
    assert beat(lease_s=None)["lease"]["left_s"] is None


@pytest.mark.parametrize("lease_s", [0, -1, "60", None, 1e9])
def test_a_lease_is_a_time(node: FakeMachines, lease_s: object) -> None:
    """The longest lease is 30 days."""
    with pytest.raises(host.AgentError, match="expected more than 0"):
        arm(lease_s=lease_s)


def test_changes_are_recorded_before_they_are_made(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent killed at any write leaves a record from which everything can be restored."""
    kernel = node.kernels[0]
    recorded: list[tuple[bool, bool]] = []
    real = host.write_sysctl

    def write(name: str, value: str) -> None:
        record = state.load("eth0")
        assert record is not None
        recorded.append((name in record["sysctls"], kernel.root == DEFAULT))
        real(name, value)

    arm()
    monkeypatch.setattr(host, "write_sysctl", write)
    wanted = dict.fromkeys(FORMER, "4096 131072 99999999")
    apply(sysctls=wanted)
    assert recorded == [(True, True), (True, True)]
    monkeypatch.setattr(host, "write_sysctl", real)
    clear()
    assert {name: kernel.setting(name) for name in FORMER} == FORMER


def test_buffers_are_raised_never_lowered(node: FakeMachines) -> None:
    """The machine may be tuned for more than the scenario needs."""
    arm()
    apply(sysctls={"net.ipv4.tcp_rmem": "4096 131072 4096"})
    assert node.kernels[0].setting("net.ipv4.tcp_rmem").split()[2] == "6291456"


def test_settings_that_a_later_configuration_does_not_need_are_restored(node: FakeMachines) -> None:
    """A sysctl, and the limit on large packets."""
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
    """Sysctls belong to the network namespace. The last interface that needs one restores it; until
    then it has the largest value that any of them needs."""
    kernel, name = node.kernels[0], "net.ipv4.tcp_rmem"
    state.STATE.mkdir()
    records: list[Any] = [
        {
            "ifindex": index,
            "boot_id": host.boot_id(),
            "interface": "",
            "sysctls": {},
            "segments": None,
        }
        for index in (3, 4)
    ]
    for record, size in zip(records, largest, strict=True):
        restore.set_sysctls(record, {name: f"4096 131072 {size}"})
        state.save(record)
    assert kernel.setting(name).split()[2] == "60000000"
    assert [restore.changed_settings(record) for record in records] == [[], []]
    notes: list[str] = []
    for number in (first_to_go, 1 - first_to_go):
        record = records[number]
        assert int(kernel.setting(name).split()[2]) >= largest[number]
        restore.restore_sysctls(record, notes)
        state.drop(record["ifindex"])
    assert kernel.setting(name) == FORMER[name]
    assert notes == []


@pytest.mark.parametrize("name", ["kernel.core_pattern", "net.ipv4/../../kernel", "net.ipv4.a-b"])
def test_only_settings_of_the_network_are_touched(node: FakeMachines, name: str) -> None:
    """A request cannot name another file."""
    arm()
    with pytest.raises(host.AgentError, match="not a setting of the network"):
        apply(sysctls={name: "|/bin/sh"})


@pytest.mark.parametrize("name", ["", "-a", "a/b", "..", "a b", "x" * 16])
def test_only_names_of_interfaces_become_files(node: FakeMachines, name: str) -> None:
    """The name is part of a path."""
    with pytest.raises(host.AgentError, match="not the name of an interface"):
        arm(interface=name)


def test_a_program_without_a_record_is_cleared_too(node: FakeMachines) -> None:
    """By its handle, and it says what it could not know. A root with another handle stays."""
    kernel = node.kernels[0]
    for scope in ("session", "owner"):
        kernel.root = {"kind": "htb", "handle": HANDLE, "root": True, "options": {}}
        cleared = clear(scope)
        assert cleared["cleared"]
        assert "there was no record: the former root qdisc" in cleared["notes"][0]
        assert kernel.root == DEFAULT
    kernel.root = foreign = {"kind": "htb", "handle": "1:", "root": True, "options": {}}
    assert not clear("any")["cleared"]
    assert kernel.root == foreign


def test_a_record_of_another_boot_is_dropped(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reboot has restored everything."""
    arm()
    monkeypatch.setattr(host, "boot_id", lambda: "another")
    assert state.load("eth0") is None
    assert timer.sweep() == ["eth0"]
    assert not state.STATE.exists()
    assert not state.MIRROR.exists()


def test_the_leftovers_of_a_dead_timer_are_swept(node: FakeMachines) -> None:
    """The next `facts` restores the node."""
    arm()
    apply()
    assert timer.sweep() == []
    node.boottime_s += 31
    assert timer.sweep() == ["eth0"]
    assert node.kernels[0].root == DEFAULT


def test_a_new_owner_finds_the_node_as_it_was(node: FakeMachines) -> None:
    """Arming after a lease has ended does not record leftovers as the former state."""
    arm()
    apply(sysctls={"net.ipv4.tcp_rmem": "4096 131072 99999999"})
    node.boottime_s += 31
    arm(owner={"name": "bob@tower", "pid": 8, "session": "two"})
    record = state.load("eth0")
    assert record is not None
    assert record["former"]["qdiscs"] == [DEFAULT]
    assert record["sysctls"] == {}


def test_a_state_that_cannot_be_written_stops_everything(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/run is full: nothing was changed, and the message says what is wrong."""

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(host.AgentError, match=r"cannot write .*2@0\.json: No space left"):
        arm()
    assert not state.STATE.exists()


def test_everything_is_restored_that_can_be(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that fails is reported and retried; the others are restored anyway."""
    kernel = node.kernels[0]
    arm()
    apply(sysctls={"net.ipv4.tcp_rmem": "4096 131072 99999999"}, max_segments=4)

    def no_tc(argv: list[str], stdin: str = "") -> tuple[int, str, str]:
        return (
            (1, "", "tc is on holiday") if argv[:3] == ["tc", "qdisc", "del"] else kernel.run(argv)
        )

    with monkeypatch.context() as patch:
        patch.setattr(host, "run_tool", no_tc)
        with pytest.raises(host.AgentError, match="tc is on holiday"):
            clear()
    assert kernel.segments == 65535
    assert kernel.setting("net.ipv4.tcp_rmem") == FORMER["net.ipv4.tcp_rmem"]
    assert kernel.root["handle"] == HANDLE
    assert clear()["cleared"]
    assert kernel.root == DEFAULT


def test_reading_leaves_nothing_behind(node: FakeMachines) -> None:
    """Even the empty folder of records goes; with a record in it, it stays."""
    operations.show({"interface": "eth0"})
    assert not state.STATE.exists()
    arm()
    operations.show({"interface": "eth0"})
    assert state.STATE.is_dir()
    clear()
    assert not state.STATE.exists()


def test_a_folder_removed_meanwhile_is_made_again(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another operation may remove it between its creation and the opening of the lock."""
    opened: list[bool] = []
    real = os.open

    def open_(path: Any, *arguments: Any) -> int:
        if not opened:
            state.STATE.rmdir()
        opened.append(True)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", open_)
    arm()
    assert state.load("eth0") is not None


def test_a_renewed_lease_keeps_the_agent(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A timer about to end a lease finds it renewed, and leaves the agent there."""
    file = tmp_path / "netbench.abc" / "agent.zip"
    file.parent.mkdir()
    file.touch()
    monkeypatch.setattr(sys, "argv", [str(file)])
    arm()
    record = state.load("eth0")
    assert record is not None
    assert not timer.end_lease(record)
    assert file.exists()
    node.boottime_s += 31
    timer.wait_for_end_of_lease(record)
    assert not file.parent.exists()


def test_a_host_without_a_known_address_is_told_what_to_write(node: FakeMachines) -> None:
    """It is not reached by SSH, and the inventory has no address."""
    with pytest.raises(host.AgentError, match=r"into the inventory \(`data_address:`\)"):
        host.interface_with([])


def test_a_root_that_was_restored_by_half_is_retried(
    node: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not be taken for a foreign root, which would stay."""
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
        patch.setattr(host, "run_tool", half)
        with pytest.raises(host.AgentError, match="out of memory"):
            clear()
    assert kernel.root == DEFAULT
    assert clear()["notes"] == []
    assert kernel.root == former


def test_another_operation_is_waited_for(node: FakeMachines, monkeypatch: Any) -> None:
    """The wait is limited."""
    monkeypatch.setattr(state, "LOCK_S", 0.1)
    with state.locked(), pytest.raises(host.AgentError, match="another operation has held"):
        arm()
    arm()


def open_files(pid: int) -> set[str]:
    files = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            files.add(str(link.readlink()))
    return files


def test_the_timer_is_a_separate_process(monkeypatch: Any, tmp_path: Path) -> None:
    """It has its own process group and session, no open descriptor, and ends in time.

    Process and clock are real; `tc` is a double that fork carries over. Its lease
    becomes short only after the test has looked at it, so that a slow machine does not end it.
    """
    script = f"""
import sys; sys.path[:0] = {[str(Path.cwd()), *sys.path]!r}
from pathlib import Path
import pytest
from netbench.network.remote.agent import host, timer
from tests.fake_machines import FakeMachines
start = timer.start
patch = pytest.MonkeyPatch()
machines = FakeMachines(patch, Path({str(tmp_path)!r}), 1)
patch.setattr(host, "SYSCTL", machines.kernels[0].sysctl)
patch.setattr(host, "now_s", __import__("time").monotonic)
patch.setattr(timer, "start", start)
from tests.network.remote.test_agent import apply, arm, beat
arm(lease_s=60.0)
apply(lease_s=60.0, sysctls={{"net.ipv4.tcp_rmem": "4096 131072 99999999"}})
print("applied", flush=True)
input()
beat(lease_s=0.5)
"""
    argv = [sys.executable, "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "applied\n"
        end = time.monotonic() + 60
        (file,) = (tmp_path / "state").glob("*.json")
        pid = json.loads(file.read_text())["deadman"]["pid"]
        setting = tmp_path / "0/net/ipv4/tcp_rmem"
        assert setting.read_text() == "4096 131072 99999999\n"
        assert os.getsid(pid) != os.getsid(0)
        while (files := open_files(pid)) != {os.devnull}:  # it may just read its record
            assert time.monotonic() < end, files
        starter.communicate("end\n", timeout=60)
    assert starter.returncode == 0
    end = time.monotonic() + 120
    while file.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not file.exists()
    assert setting.read_text() == FORMER["net.ipv4.tcp_rmem"] + "\n"


def test_a_zombie_does_not_count_as_a_running_process() -> None:
    """In many containers nobody reaps it."""
    assert timer.start_time(os.getpid()) != ""
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert timer.start_time(child.pid) == ""
    assert timer.start_time(child.pid) == ""
