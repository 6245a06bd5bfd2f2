"""`netbench net plan`, `show`, `watch`, `clear` on doubles; with real hosts: see the guest's tests.

The doubles hold, once shaped, what the real tc printed of node 0 of the network `pair`.
"""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.console import Console

from netbench.cli import run
from netbench.commands.net import watch
from netbench.commands.net.hosts import clear_hosts
from netbench.errors import NetworkError, TestbedError
from netbench.network.probing.usage import Counters
from netbench.network.remote.agent import host, state
from netbench.network.remote.fleet import Fleet
from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.program import compile_program
from netbench.scenario import load_scenario
from netbench.testbed.ssh.inventory import load_inventory
from netbench.units import shortened
from tests.fake_machines import DEFAULT, FakeMachines
from tests.networks import ADDRESSES, two_regions


def shape(fakes: FakeMachines) -> None:
    """Shape all hosts, as another process did that has left."""
    for kernel in fakes.kernels:
        kernel.root = {"kind": "htb", "handle": HANDLE, "root": True, "options": {}}


def test_the_offline_plan_is_the_compiled_program(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """To the character, for every host, with SSH's port left alone."""
    assert run(["net", "plan", *files, "--offline", "--program"]) == 0
    printed = capsys.readouterr().out
    program = compile_program(two_regions(), 3, ADDRESSES, "ens6")
    ours = printed.split("# four\n")[1].strip().splitlines()
    left_alone = [line for line in ours if "port 22 0xffff flowid 6e62:0" in line]
    assert [line for line in ours if line not in left_alone] == program.text.splitlines()
    assert len(left_alone) == 4
    assert "dev INTERFACE parent" in printed.split("# four\n")[0]


def test_hosts_that_are_not_used_are_reported(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(files[2])
    path.write_text(path.read_text() + "  - {name: five, address: 10.77.0.5, user: u}\n")
    assert run(["net", "plan", *files, "--offline"]) == 0
    assert "pair has 4 nodes: the first 4 of 5 hosts are used" in capsys.readouterr().err


def test_an_offline_plan_needs_addresses(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks no host, so the inventory must have them."""
    path = Path(files[2])
    path.write_text(path.read_text().replace(", data_address: 10.77.0.4", ""))
    assert [host.data_addresses for host in load_inventory(path).hosts][3] == ()
    assert run(["net", "plan", *files, "--offline"]) == 2
    assert "four: no `data_address:`" in capsys.readouterr().err


def test_the_plan_of_a_local_network_starts_nothing(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints nodes and routers with their addresses here, and starts no process."""
    scenario = Path(files[0])
    scenario.write_text(scenario.read_text().replace("sharing: pair", "sharing: trunk"))
    monkeypatch.setattr(subprocess, "Popen", None)
    assert run(["net", "plan", files[0], "--testbed", "local", "--program"]) == 0
    printed = capsys.readouterr().out
    programs = dict(part.split("\n", 1) for part in printed.split("# ")[1:])
    assert [*programs][4:] == ["router of ohio", "router of virginia"]
    addresses = [(f"10.77.0.{number}",) for number in range(1, 7)]
    network = load_scenario(files[0]).network
    for node, text in enumerate(programs.values()):
        assert text.strip() == compile_program(network, node, addresses, "eth0").text.strip()
    assert run(["net", "plan", files[0], "--testbed", "local"]) == 0
    assert "router of ohio: add 1 root, 1 class, 1 leaf, 2 filters" in capsys.readouterr().out


def test_a_plan_names_the_setting_of_the_link(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Links with loss need single frames."""
    scenario = Path(files[0])
    text = scenario.read_text()
    scenario.write_text(text.replace("bandwidth: 1.12Gbit", "bandwidth: 1.12Gbit, loss: 1%"))
    assert run(["net", "plan", files[0], "--testbed", "local", "--program"]) == 0
    assert capsys.readouterr().out.count("# ip link set dev eth0 gso_max_segs 1\n") == 4


@pytest.mark.parametrize("option", ["--offline", "--replace"])
def test_what_only_hosts_have_is_refused_for_a_local_plan(
    files: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["net", "plan", files[0], "--testbed", "local", option]) == 2
    assert "are for hosts of an inventory" in capsys.readouterr().err


def test_a_plan_says_what_would_change_and_changes_nothing(
    files: tuple[str, ...], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """One host is shaped already, the others are not."""
    nodes.kernels[0].root = {"kind": "htb", "handle": HANDLE, "root": True, "options": {}}
    assert run(["net", "plan", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("one")).split()[-1] == "nothing"
    three = next(line for line in lines if line.startswith("three"))
    assert "add 1 root, 3 classes, 3 leaves, 5 filters" in three
    assert {operation for _, operation in nodes.asked} == {"facts", "show"}
    assert [kernel.root for kernel in nodes.kernels[1:]] == [DEFAULT] * 3


def test_a_plan_names_hosts_with_errors(
    files: tuple[str, ...], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1: an unreachable host, and a foreign root qdisc."""
    nodes.kernels[1].root = {"kind": "tbf", "handle": "7:", "root": True, "options": {"mtu": 1}}
    assert run(["net", "plan", *files]) == 1
    assert (
        "error   two: eth0 has a root qdisc that could not be restored" in capsys.readouterr().out
    )
    nodes.kernels[1].root = DEFAULT
    nodes.lost = {2}
    nodes._reach = lost(nodes, "three")  # type: ignore[assignment]
    assert run(["net", "plan", *files]) == 1
    printed = capsys.readouterr().out
    assert "error   three: the SSH connection was lost" in printed
    assert "not known: the addresses of all hosts are needed" in printed


def lost(fakes: FakeMachines, name: str) -> Callable[[int], None]:
    def reach(node: int) -> None:
        if node in fakes.lost:
            raise TestbedError(f"{name}: the SSH connection was lost")

    return reach


def test_apply_changes_nothing_where_one_host_cannot(
    files: tuple[str, ...], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes before any host is armed."""
    nodes.kernels[3].root = {"kind": "pfifo", "handle": "7:", "root": True, "options": {"limit": 5}}
    assert run(["net", "apply", *files]) == 1
    captured = capsys.readouterr()
    assert "error   four: eth0 has a root qdisc that is not netbench's: pfifo 7:" in captured.out
    assert "nothing was changed: see the errors above (--anyway tries it)" in captured.err
    assert {operation for _, operation in nodes.asked} == {"facts"}


def test_show_prints_differences(
    files: tuple[str, ...], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """All hosts have the configuration of node 0, which is wrong for three. Exit code 3."""
    shape(nodes)
    assert run(["net", "show", *files]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("one ")).split() == [
        "one", "eth0", "none", "0", "0",
    ]  # fmt: skip
    assert any("two: class 6e62:1 is missing" in line for line in lines)
    assert not any(line.startswith("one:") for line in lines)


def test_watch_once_lists_every_link(
    files: tuple[str, ...], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shaped host has three queues."""
    nodes.kernels[0].root = {"kind": "htb", "handle": HANDLE, "root": True, "options": {}}
    ticks = iter(range(100))
    agent_clock = pytest.MonkeyPatch()
    agent_clock.setattr(host, "now_s", lambda: float(next(ticks)))
    try:
        assert run(["net", "watch", *files, "--once", "--interval", "1ms"]) == 0
    finally:
        agent_clock.undo()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows if row[0] == "one"] == [
        ["one", "two"], ["one", "three"], ["one", "four"],
    ]  # fmt: skip
    assert [row[3] for row in rows if row[0] == "one"] == ["5Gbit", "1.12Gbit", "1.12Gbit"]


def test_watch_shows_a_persistent_network(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It includes routers, whose trunk leads to both nodes of the other region. A node that cannot
    be read is named. Exit code 1."""
    scenario = Path(files[0])
    scenario.write_text(scenario.read_text().replace("sharing: pair", "sharing: trunk"))
    idle = {"bytes": 0, "drops": 0, "backlog": 0, "qlen": 0}
    sent = {"bytes": 1_000_000, "drops": 2, "backlog": 3028, "qlen": 2}
    readings: list[dict[int, Counters | Exception]] = [
        {
            0: Counters(at_s=0.0, leaves={"6e62:2": idle}),
            4: Counters(at_s=5.0, leaves={"6e62:3": idle}),
        },
        {
            0: Counters(at_s=1.0, leaves={"6e62:2": idle}),
            4: Counters(at_s=7.0, leaves={"6e62:3": sent}),
        },
    ]
    for reading, error in zip(readings, ("gone", "no interface eth0"), strict=True):
        reading[1] = NetworkError(error)
    monkeypatch.setattr(watch, "find_network", lambda scenario: None)
    monkeypatch.setattr(watch, "open_counters", lambda *_: nullcontext(lambda: readings.pop(0)))
    argv = ["net", "watch", files[0], "--testbed", "local", "--once", "--interval", "1ms"]
    assert run(argv) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    names = [node.name for node in load_scenario(files[0]).nodes]
    assert f"{names[0]} {names[1]} 0bit 5Gbit 0 0B in 0" in lines
    assert f"router of ohio {names[2]}, {names[3]} 4Mbit 1.12Gbit 2 3.03KB in 2" in lines
    assert f"{names[1]}: no interface eth0" in lines


def test_clear_lists_every_host(
    files: tuple[str, ...], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host is cleared, unshaped, or unreachable, which is exit code 1."""
    for node in (0, 3):
        nodes.kernels[node].root = {"kind": "htb", "handle": HANDLE, "root": True, "options": {}}
    assert run(["net", "clear", *files]) == 0
    assert capsys.readouterr().out.count("cleared") == 2
    nodes.lost = {1}
    assert run(["net", "clear", *files]) == 1
    lines = capsys.readouterr().out
    assert "not cleared" in lines
    assert "if it is shaped it clears itself when its lease ends" in " ".join(lines.split())
    assert [kernel.root for kernel in nodes.kernels] == [DEFAULT] * 4


def test_a_network_is_cleared_by_the_run_that_applied_it_or_by_force(
    files: tuple[str, ...],
    nodes: FakeMachines,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Another person with the same user and host name is told who has it, and until when."""
    monkeypatch.setattr(Fleet, "_check", lambda *_: None)  # all doubles show what node 0 holds
    mine, theirs = str(tmp_path / "mine"), str(tmp_path / "theirs")
    for options in ([], ["--force"]):
        monkeypatch.setenv("XDG_STATE_HOME", mine)
        assert run(["net", "apply", *files]) == 0
        monkeypatch.setenv("XDG_STATE_HOME", theirs)
        assert run(["net", "apply", *files]) == 1
        assert "eth0 is shaped by " in capsys.readouterr().out
        assert run(["net", "clear", *files]) == 1
        assert "--force clears it all the same" in " ".join(capsys.readouterr().out.split())
        assert {kernel.root["handle"] for kernel in nodes.kernels} == {HANDLE}
        monkeypatch.setenv("XDG_STATE_HOME", theirs if options else mine)
        assert run(["net", "clear", *files, *options]) == 0
        assert [kernel.root for kernel in nodes.kernels] == [DEFAULT] * 4


def test_hosts_are_as_they_were_only_if_nothing_else_was_found(
    nodes: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of one host went, and another is shaped by somebody else by now."""
    monkeypatch.setattr(Fleet, "_check", lambda *_: None)
    network = two_regions()
    programs = [compile_program(network, node, ADDRESSES, "eth0") for node in range(4)]
    console = Console(file=io.StringIO(), width=200)
    machines = [nodes.machine(node) for node in range(4)]
    with Fleet(machines) as fleet, Fleet(machines[:1]) as other:
        fleet.apply(programs, {}, lease_s=30.0, release=False)
        for path in state.paths("*@3.json"):
            path.unlink()
        other.clear("any")
        other.apply(programs[:1], {}, lease_s=30.0, release=False)
        assert clear_hosts(console, fleet) == 0
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "m0: eth0 is shaped by " in said
    assert "m3: there was no record: the former root qdisc" in said
    assert said.endswith("2 of 4 hosts are as they were\n")
    assert [kernel.root for kernel in nodes.kernels[1:]] == [DEFAULT] * 3


def test_long_lists_of_hosts_are_shortened() -> None:
    """64 hosts with the same deviation are one line."""
    assert shortened(["a", "b"]) == "a, b"
    assert shortened([str(i) for i in range(64)]) == "0, 1, 2, 3 and 60 more"


@pytest.mark.parametrize("command", ["plan", "apply", "show", "watch", "clear"])
def test_one_place_must_be_given(
    files: tuple[str, ...], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Either an inventory or the local testbed."""
    assert run(["net", command, files[0]]) == 2
    assert "say where: --inventory FILE" in capsys.readouterr().err


@pytest.mark.parametrize("lease", ["0s", "40d", "1000h", "never"])
def test_a_lease_is_a_time_or_none(
    files: tuple[str, ...], lease: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The longest lease is 30 days."""
    assert run(["net", "apply", *files, "--lease", lease]) == 2
    assert "--lease" in capsys.readouterr().err


def test_a_lease_that_would_be_ignored_is_refused(
    files: tuple[str, ...], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """--hold and --testbed refuse --lease before any host is asked."""
    for options in ([*files, "--hold"], [files[0], "--testbed", "local"]):
        assert run(["net", "apply", *options, "--lease", "1h"]) == 2
        assert "leave --lease out" in capsys.readouterr().err
    assert nodes.asked == []
