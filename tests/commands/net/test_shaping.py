"""`netbench net plan`, `show`, `watch`, `clear` on doubles; with real hosts: see the guest's tests.

The doubles hold, once shaped, what the real tc printed of node 0 of the network `pair`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.commands.net import machines as commands
from netbench.commands.net import watch
from netbench.commands.net.machines import changes, some
from netbench.commands.net.target import Target
from netbench.errors import NetworkError, TestbedError
from netbench.network import agent
from netbench.network.program import compile_program
from netbench.network.readback import parse
from netbench.network.tc import HANDLE
from netbench.network.update import update_text
from netbench.network.usage import Look
from netbench.scenario import load_scenario
from netbench.testbed.inventory import Host, Inventory, load_inventory
from tests.network.fake_machines import DEFAULT, FakeMachines
from tests.network.shaping_cases import ADDRESSES, CASES

SCENARIO = """
name: pair
title: Two regions
regions: [ohio, virginia]
nodes:
  - {region: ohio, count: 2, device: V100}
  - {region: virginia, count: 2, device: V100}
network:
  sharing: pair
  inside: {one_way_delay: 1ms, bandwidth: 5Gbit}
  links:
    - {between: [ohio, virginia], one_way_delay: 11ms, bandwidth: 1.12Gbit}
devices: {V100: builtin}
workload:
  {layers: 4, hidden: 64, heads: 4, sequence: 64, batch: 8, micro_batch: 1, dtype: fp16}
sweep:
  layers: [4]
  batch: [8]
  variants: [zero3]
  seeds: [1]
"""
INVENTORY = """
hosts:
  - {name: one, address: 10.77.0.1, user: u, data_address: ["10.77.0.1", "fd00::1"]}
  - {name: two, address: 10.77.0.2, user: u, data_address: ["10.77.0.2", "fd00::2"]}
  - {name: three, address: 10.77.0.3, user: u, data_address: ["10.77.0.3", "fd00::3"]}
  - {name: four, address: 10.77.0.4, user: u, data_address: 10.77.0.4, interface: ens6}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    """Scenario and inventory, as the end of a command line."""
    (tmp_path / "pair.yaml").write_text(SCENARIO)
    (tmp_path / "hosts.yaml").write_text(INVENTORY)
    return str(tmp_path / "pair.yaml"), "--inventory", str(tmp_path / "hosts.yaml")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachines:
    """Four machines in place of those of any inventory; interface eth0 each."""
    fakes = FakeMachines(monkeypatch, tmp_path / "machines", 4)
    hosts = tuple(
        Host(name=name, address="-", user="u", data_addresses=ADDRESSES[i], interface="eth0")
        for i, name in enumerate(("one", "two", "three", "four"))
    )

    @contextmanager
    def open_target(scenario: str, inventory: Path) -> Iterator[Target]:
        yield Target(
            scenario=load_scenario(scenario),
            inventory=Inventory(path=inventory, hosts=hosts, known_hosts=()),
            nodes=hosts,
            hosts=fakes,  # type: ignore[arg-type]
            exempt_ports=(),
        )

    monkeypatch.setattr(commands, "open_target", open_target)
    return fakes


def shape(fakes: FakeMachines) -> None:
    """As somebody did who has left; the boot ids are those of one machine, hosts must differ."""
    for kernel in fakes.kernels:
        kernel.root = {"kind": "htb", "handle": HANDLE, "root": True, "options": {}}


@pytest.fixture(autouse=True)
def _one_kernel_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "boot_id", lambda: f"boot of {agent.namespace()}")


def test_the_offline_plan_is_the_compiled_program(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """To the character, for every host, with SSH's port left alone."""
    assert run(["net", "plan", *files, "--offline", "--program"]) == 0
    printed = capsys.readouterr().out
    program = compile_program(CASES["pair"][0], 3, ADDRESSES, "ens6")
    ours = printed.split("# four\n")[1].strip().splitlines()
    left_alone = [line for line in ours if "port 22 0xffff flowid 6e62:0" in line]
    assert [line for line in ours if line not in left_alone] == program.text.splitlines()
    assert len(left_alone) == 4
    assert "dev INTERFACE parent" in printed.split("# four\n")[0]


def test_an_offline_plan_needs_addresses(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks no one, so the inventory has to say."""
    path = Path(files[2])
    path.write_text(path.read_text().replace(", data_address: 10.77.0.4", ""))
    assert [host.data_addresses for host in load_inventory(path).hosts][3] == ()
    assert run(["net", "plan", *files, "--offline"]) == 2
    assert "four: no `data_address:`" in capsys.readouterr().err


def test_the_plan_of_a_local_network_starts_nothing(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of nodes and routers, with the addresses they are given here; no name is held after it."""
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
    """Frames are handed over one by one where single ones are lost."""
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
    """One host has it already, the others have nothing."""
    nodes.kernels[0].root = {"kind": "htb", "handle": HANDLE, "root": True, "options": {}}
    assert run(["net", "plan", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("one")).split()[-1] == "nothing"
    three = next(line for line in lines if line.startswith("three"))
    assert "add 1 root, 3 classes, 3 leaves, 5 filters" in three
    assert {operation for _, operation in nodes.asked} == {"facts", "show"}
    assert [kernel.root for kernel in nodes.kernels[1:]] == [DEFAULT] * 3


def test_a_plan_names_hosts_that_cannot(
    files: tuple[str, ...], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1: not reached, and a root qdisc of somebody else."""
    nodes.kernels[1].root = {"kind": "tbf", "handle": "7:", "root": True, "options": {"mtu": 1}}
    assert run(["net", "plan", *files]) == 1
    assert (
        "error   two: eth0 has a root qdisc that could not be put back" in capsys.readouterr().out
    )
    nodes.kernels[1].root = DEFAULT
    nodes.lost = {2}
    nodes._reach = lost(nodes, "three")  # type: ignore[method-assign]
    assert run(["net", "plan", *files]) == 1
    printed = capsys.readouterr().out
    assert "error   three: the SSH connection was lost" in printed
    assert "not known: the addresses of all hosts are needed" in printed


def lost(fakes: FakeMachines, name: str) -> object:
    def reach(node: int) -> None:
        if node in fakes.lost:
            raise TestbedError(f"{name}: the SSH connection was lost")

    return reach


def test_apply_changes_nothing_where_one_host_cannot(
    files: tuple[str, ...], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told before anything is armed."""
    nodes.kernels[3].root = {"kind": "pfifo", "handle": "7:", "root": True, "options": {"limit": 5}}
    assert run(["net", "apply", *files]) == 1
    captured = capsys.readouterr()
    assert "error   four: eth0 has a root qdisc that is not netbench's: pfifo 7:" in captured.out
    assert "nothing was changed: see the errors above (--anyway tries it)" in captured.err
    assert {operation for _, operation in nodes.asked} == {"facts"}


def test_show_tells_what_differs(
    files: tuple[str, ...], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """All hold node 0's program: that is right for the first only. Exit code 3."""
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
    """Three queues on the host whose program the double prints."""
    nodes.kernels[0].root = {"kind": "htb", "handle": HANDLE, "root": True, "options": {}}
    ticks = iter(range(100))
    agent_clock = pytest.MonkeyPatch()
    agent_clock.setattr(agent, "now_s", lambda: float(next(ticks)))
    try:
        assert run(["net", "watch", *files, "--once", "--interval", "1ms"]) == 0
    finally:
        agent_clock.undo()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows if row[0] == "one"] == [
        ["one", "two"], ["one", "three"], ["one", "four"],
    ]  # fmt: skip
    assert [row[3] for row in rows if row[0] == "one"] == ["5Gbit", "1.12Gbit", "1.12Gbit"]


def test_watch_shows_a_held_network(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its routers, whose trunk is to both nodes beyond; a node that cannot be read is named,
    which exit code 1 says too."""
    scenario = Path(files[0])
    scenario.write_text(scenario.read_text().replace("sharing: pair", "sharing: trunk"))
    idle = {"bytes": 0, "drops": 0, "backlog": 0, "qlen": 0}
    sent = {"bytes": 1_000_000, "drops": 2, "backlog": 3028, "qlen": 2}
    looks: list[dict[int, Look | Exception]] = [
        {0: Look(at_s=0.0, leaves={"6e62:2": idle}), 4: Look(at_s=5.0, leaves={"6e62:3": idle})},
        {0: Look(at_s=1.0, leaves={"6e62:2": idle}), 4: Look(at_s=7.0, leaves={"6e62:3": sent})},
    ]
    for look, words in zip(looks, ("gone", "no interface eth0"), strict=True):
        look[1] = NetworkError(words)
    monkeypatch.setattr(watch, "held_scenario", lambda scenario: None)
    monkeypatch.setattr(watch, "open_counters", lambda *_: nullcontext(lambda: looks.pop(0)))
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
    """Cleared, nothing there, not reached: exit code 1 for the last."""
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


def test_changes_are_counted_by_what_they_are_made_of() -> None:
    """Of a whole program, of a difference, of none."""
    network, scale = CASES["pair"]
    program = compile_program(network, 0, ADDRESSES, "eth0", scale)
    assert changes(program.text) == "add 1 root, 3 classes, 3 leaves, 5 filters"
    golden = Path(__file__).parents[2] / "golden" / "network"
    tables = (golden / "pair.tables.json").read_text()
    found = parse(tables, (golden / "pair.classes.txt").read_text())
    assert changes(update_text(program, found)) == "nothing"
    faster = CASES["pair-scaled"]
    other = compile_program(faster[0], 0, ADDRESSES, "eth0", faster[1])
    assert changes(update_text(other, found)) == "change 3 leaves"


def test_long_lists_of_hosts_are_cut() -> None:
    """64 hosts with one problem are one line."""
    assert some(["a", "b"]) == "a, b"
    assert some([str(i) for i in range(64)]) == "0, 1, 2, 3 and 60 more"


@pytest.mark.parametrize("command", ["plan", "apply", "show", "watch", "clear"])
def test_where_has_to_be_said(
    files: tuple[str, ...], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An inventory or a local network."""
    assert run(["net", command, files[0]]) == 2
    assert "say where: --inventory FILE" in capsys.readouterr().err


@pytest.mark.parametrize("lease", ["0s", "40d", "1000h", "never"])
def test_a_lease_is_a_time_or_none(
    files: tuple[str, ...], lease: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to 30 days."""
    assert run(["net", "apply", *files, "--lease", lease]) == 2
    assert "--lease" in capsys.readouterr().err


def test_a_lease_that_would_be_ignored_is_refused(
    files: tuple[str, ...], nodes: FakeMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --hold and --testbed; before any host is asked."""
    for options in ([*files, "--hold"], [files[0], "--testbed", "local"]):
        assert run(["net", "apply", *options, "--lease", "1h"]) == 2
        assert "leave --lease out" in capsys.readouterr().err
    assert nodes.asked == []
