"""All machines or none: the real agent on kernels that are doubles (see agent_in_guest)."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from netbench.network.remote.agent import division, state
from netbench.network.remote.agent.host import AgentError
from netbench.network.remote.agent.messages import Owner
from netbench.network.remote.fleet import Cleared, Fleet, FleetError, Shown
from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.program import Program, compile_program
from netbench.testing.nodes import FakeNode
from tests.fake_machines import DEFAULT, FORMER, FakeMachines
from tests.network.shaping_cases import CASES
from tests.networks import ADDRESSES

PAIR = compile_program(CASES["pair"][0], 0, ADDRESSES, "eth0")
NUM_MACHINES = 4
PROGRAMS = [dataclasses.replace(PAIR, node=node) for node in range(NUM_MACHINES)]
SETTINGS = {"net.ipv4.tcp_rmem": "4096 131072 50000000", "net.ipv4.tcp_nothing": "1"}
PFIFO = {"kind": "pfifo", "handle": "7:", "root": True, "options": {"limit": 9}}


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachines:
    return FakeMachines(monkeypatch, tmp_path, NUM_MACHINES)


def fleet(
    machines: FakeMachines, name: str = "alice@laptop", session: str = "one", *runs: str
) -> Fleet:
    hosts = [machines.machine(node) for node in range(len(machines.kernels))]
    owner = Owner(name=name, pid=7, session=session, runs=runs)
    return Fleet(hosts, owner=owner)


def apply(some: Fleet, programs: list[Program] = PROGRAMS, **options: Any) -> Any:
    return some.apply(programs, SETTINGS, **{"lease_s": 60.0, **options})


def is_as_before(machines: FakeMachines, node: int) -> bool:
    kernel = machines.kernels[node]
    settings = {name: kernel.setting(name) for name in FORMER}
    left = state.paths(f"*@{node}.*")
    return kernel.root == DEFAULT and kernel.segments == 65535 and settings == FORMER and not left


def test_timers_are_armed_everywhere_before_anything_is_changed(machines: FakeMachines) -> None:
    """The other steps follow in order: read, load, read back, extend."""
    with fleet(machines) as alice:
        applied = apply(alice)
    steps = [operation for _, operation in machines.asked]
    assert steps == [
        step for step in ("arm", "show", "apply", "show", "beat") for _ in range(NUM_MACHINES)
    ]
    assert {kernel.root["handle"] for kernel in machines.kernels} == {HANDLE}
    assert {found.num_commands for found in applied.values()} == {len(PAIR.text.splitlines())}
    assert machines.kernels[1].setting("net.ipv4.tcp_rmem") == "4096 131072 50000000"


def test_a_second_apply_changes_nothing(machines: FakeMachines) -> None:
    """The kernel has the configuration already, so no command is sent."""
    with fleet(machines) as alice:
        apply(alice)
        before = [kernel.commands.count("tc -batch -") for kernel in machines.kernels]
        again = apply(alice)
    assert {found.num_commands for found in again.values()} == {0}
    assert [kernel.commands.count("tc -batch -") for kernel in machines.kernels] == before


def test_clear_restores_everything_and_is_idempotent(machines: FakeMachines) -> None:
    """The host is equal to the byte, and no record stays."""
    with fleet(machines) as alice:
        apply(alice)
        first, second = alice.clear(), alice.clear()
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))
    assert [c.cleared for c in first.values() if isinstance(c, Cleared)] == [True] * NUM_MACHINES
    assert [c.cleared for c in second.values() if isinstance(c, Cleared)] == [False] * NUM_MACHINES


def test_one_broken_tc_rolls_back_all_and_quotes_the_line(machines: FakeMachines) -> None:
    """The third of four hosts fails. The message names it and the line that tc refused."""
    machines.kernels[2].broken = "Error: Specified qdisc kind is unknown.\nCommand failed -:6\n"
    with fleet(machines) as alice, pytest.raises(FleetError) as caught:
        apply(alice)
    line = PAIR.text.splitlines()[5]
    assert str(caught.value) == (
        "shaping failed on 1 of 4 hosts:\n"
        f"  m2: tc refused `{line}`: Error: Specified qdisc kind is unknown. Command failed -:6"
    )
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


@pytest.mark.parametrize(
    ("operation", "lease_s", "when"),
    [
        ("arm", 7200.0, "ends with its lease, in 30s at most"),
        ("show", 7200.0, "ends with its lease, in 30s at most"),
        ("apply", None, "ends with its lease, in 30s at most"),
        ("beat", 7200.0, "ends with its lease, in 2h at most"),
        ("beat", None, "may stay, without end: `netbench net clear` when it can be reached"),
    ],
)
def test_a_lost_host_is_named_with_when_it_clears_itself(
    machines: FakeMachines,
    operation: str,
    lease_s: float | None,
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it was to do: the others are cleared at once. Who is asked for a longer lease and
    does not answer may have it."""
    reached = machines.run_as_root

    def cut(node: int, argv: Any, stdin: str) -> tuple[int, str, str]:
        if node == 1 and argv[-1] == operation:
            machines.lost.add(1)
        return reached(node, argv, stdin)

    monkeypatch.setattr(machines, "run_as_root", cut)
    with fleet(machines) as alice, pytest.raises(FleetError) as caught:
        apply(alice, lease_s=lease_s)
    assert "1 of 4 hosts:\n  m1: the SSH connection was lost\n" in str(caught.value)
    assert f"not cleared: m1; what was changed there {when}" in str(caught.value)
    assert all(is_as_before(machines, node) for node in (0, 2, 3))


def test_an_interrupt_rolls_back(machines: FakeMachines) -> None:
    """Ctrl-C while configurations are loaded clears all hosts."""
    with fleet(machines) as alice:
        alice._load = raises(KeyboardInterrupt())  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            apply(alice)
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


@pytest.mark.parametrize("lease_s", [600.0, None])
def test_an_earlier_network_stays_when_nothing_was_loaded(
    machines: FakeMachines, lease_s: float | None
) -> None:
    """Somebody else has one of the hosts: the others keep what they had, for as long as they had
    it, and it may be taken up again."""
    with fleet(machines) as first, fleet(machines, "alice@laptop", "two", "one") as second:
        apply(first, PROGRAMS[:3], lease_s=lease_s)
        machines.boottime_s += 100
        with fleet(machines, "bob@tower", "three") as bob:
            apply(bob, PROGRAMS[3:])
        with pytest.raises(FleetError, match="m3: eth0 is shaped by bob@tower") as caught:
            apply(second)
        assert "before" not in str(caught.value)
        assert {kernel.root["handle"] for kernel in machines.kernels} == {HANDLE}
        for node in range(3):
            shown = second.show([node])[node]
            assert isinstance(shown, Shown)
            assert shown.lease is not None
            assert shown.lease.left_s == (lease_s and lease_s - 100)
            assert not shown.lease.held
        with fleet(machines, "alice@laptop", "four", "one") as fourth:
            apply(fourth, PROGRAMS[:3])


def test_a_rollback_restores_the_latest_lease(machines: FakeMachines) -> None:
    """The lease of an earlier `apply` does not return."""
    with fleet(machines) as alice, fleet(machines, "bob@tower", "two") as bob:
        apply(bob, PROGRAMS[3:])
        apply(alice, PROGRAMS[:3], lease_s=60.0)
        apply(alice, PROGRAMS[:3], lease_s=600.0)
        with pytest.raises(FleetError, match="m3: eth0 is shaped by bob@tower"):
            apply(alice)
        shown = alice.show([0])[0]
    assert isinstance(shown, Shown)
    assert shown.lease is not None
    assert shown.lease.left_s == 600.0


def test_a_lost_earlier_network_is_reported(machines: FakeMachines) -> None:
    """Once configurations are loaded, all hosts are cleared. Unshaped hosts are not named."""
    with fleet(machines) as alice:
        apply(alice, PROGRAMS[:3])
        machines.kernels[3].broken = "Error: no.\nCommand failed -:6\n"
        with pytest.raises(FleetError) as caught:
            apply(alice)
    assert str(caught.value).endswith("\nthe network that was there before has gone: m0, m1, m2")
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


def test_an_interrupt_reports_hosts_that_could_not_be_cleared(machines: FakeMachines) -> None:
    """Ctrl-C while one host is unreachable."""
    with fleet(machines) as alice:

        def interrupt(*_: Any) -> None:
            machines.lost = {1}
            raise KeyboardInterrupt

        alice._load = interrupt  # type: ignore[assignment, method-assign]
        with pytest.raises(FleetError) as caught:
            apply(alice)
    assert str(caught.value) == (
        "interrupted\nnot cleared: m1; what was changed there ends with its lease, in 30s at most"
    )
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)


def raises(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_the_kernel_is_read_back_after_loading(machines: FakeMachines) -> None:
    """A tc that loads something else than it was given is detected, and cleared."""
    network, scale = CASES["pair-scaled"]
    other = [
        dataclasses.replace(compile_program(network, 0, ADDRESSES, "eth0", scale), node=node)
        for node in range(NUM_MACHINES)
    ]
    with fleet(machines) as alice, pytest.raises(FleetError, match="reading back what was loaded"):
        apply(alice, other)
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


def test_two_controllers_at_once(machines: FakeMachines) -> None:
    """The second is told who has the hosts, since when and until when, and changes nothing."""
    with fleet(machines) as alice, fleet(machines, "bob@tower", "two") as bob:
        apply(alice, release=False)
        with pytest.raises(FleetError) as caught:
            apply(bob)
        results = bob.clear()
    message = str(caught.value)
    assert "failed on 4 of 4 hosts" in message
    assert "m3: eth0 is shaped by alice@laptop (pid 7) since 20" in message
    assert "(in 60 s); wait, or take it away" in message
    assert all(isinstance(result, Exception) for result in results.values())
    assert {kernel.root["handle"] for kernel in machines.kernels} == {HANDLE}


def test_a_released_network_can_be_taken_over_by_its_owner(machines: FakeMachines) -> None:
    """`apply --lease 1h` works twice for one user, but not while the first is still running."""
    with fleet(machines) as first, fleet(machines, "alice@laptop", "two", "one") as second:
        apply(first, release=False)
        with pytest.raises(FleetError, match="is shaped by alice@laptop"):
            apply(second)
        apply(first, release=True)
        apply(second)
        lost = "m0: eth0 was taken over by alice@laptop"
        with pytest.raises(FleetError, match=lost):
            first.keep_leases(PROGRAMS, lambda seconds: False, print)


def test_force_clears_the_network_of_another_owner(machines: FakeMachines) -> None:
    """Without --force it stays."""
    with fleet(machines) as alice, fleet(machines, "bob@tower", "two") as bob:
        apply(alice, lease_s=None)
        assert all(isinstance(result, Exception) for result in bob.clear().values())
        results = bob.clear("any")
    assert all(isinstance(result, Cleared) and result.cleared for result in results.values())
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


def test_a_foreign_root_is_refused_or_set_aside_and_restored(machines: FakeMachines) -> None:
    """The error lists all foreign roots with their options."""
    machines.kernels[1].root = machines.kernels[3].root = PFIFO
    with fleet(machines) as alice:
        with pytest.raises(FleetError) as caught:
            apply(alice)
        assert "failed on 2 of 4 hosts" in str(caught.value)
        assert "m1: eth0 has a root qdisc that is not netbench's: pfifo 7:" in str(caught.value)
        applied = apply(alice, replace=True)
        assert [applied[node].replaced for node in range(NUM_MACHINES)] == [
            "", "pfifo 7: root refcnt 2", "", "pfifo 7: root refcnt 2",
        ]  # fmt: skip
        alice.clear()
    assert [kernel.root for kernel in machines.kernels] == [DEFAULT, PFIFO, DEFAULT, PFIFO]


def test_a_root_that_cannot_be_restored_is_always_refused(machines: FakeMachines) -> None:
    """HTB has classes, which tc does not restore."""
    machines.kernels[1].root = {"kind": "htb", "handle": "1:", "root": True, "options": {}}
    with fleet(machines) as alice, pytest.raises(FleetError) as caught:
        apply(alice, replace=True)
    assert "m1: eth0 has a root qdisc that is not netbench's: htb 1:" in str(caught.value)
    assert "could not be restored exactly (htb may hold classes" in str(caught.value)
    assert machines.kernels[1].root["handle"] == "1:"


def test_a_short_loss_of_a_host_is_reported_and_a_long_one_is_an_error(
    machines: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a lease of 30 s and a beat every 5 s, 15 s are survived and more than 30 s are not."""
    clock = [0.0]
    monkeypatch.setattr("netbench.network.remote.fleet.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(
        "netbench.network.remote.fleet.at_once",
        lambda tasks, _: {k: attempt(t) for k, t in tasks.items()},
    )
    said: list[str] = []
    lost_from_s = 0.0

    def wait(seconds: float) -> bool:
        clock[0] += seconds
        machines.boottime_s += seconds
        machines.lost = {2} if lost_from_s < clock[0] <= lost_from_s + lost_for_s else set()
        return clock[0] > lost_from_s + 100

    with fleet(machines) as alice:
        apply(alice, release=False, lease_s=30.0)
        lost_for_s = 15.0
        alice.keep_leases(PROGRAMS, wait, said.append)
        assert said == [
            f"m2: the SSH connection was lost; it clears itself in {left} s"
            for left in (25, 20, 15)
        ]
        lost_from_s, lost_for_s = clock[0], 100.0
        with pytest.raises(FleetError, match="m2: the SSH connection was lost"):
            alice.keep_leases(PROGRAMS, wait, said.append)
        assert clock[0] - lost_from_s == 35.0


def attempt(task: Callable[[], Any]) -> Any:
    try:
        return task()
    except Exception as error:
        return error


def test_a_lost_configuration_is_noticed_by_the_next_beat(machines: FakeMachines) -> None:
    """A node that was restarted answers, but is not shaped any more."""
    with fleet(machines) as alice:
        apply(alice, release=False)
        machines.kernels[3].root = DEFAULT
        with pytest.raises(FleetError, match="m3: eth0 has lost its tc configuration, its root"):
            alice.keep_leases(PROGRAMS, lambda seconds: False, print)


def test_other_hosts_tell_when_an_unreachable_host_clears_itself(machines: FakeMachines) -> None:
    """All hosts of one `apply` have the same lease."""
    with fleet(machines) as alice:
        apply(alice, lease_s=600.0)
        machines.boottime_s += 100
        machines.lost = {0}
        results = alice.clear()
        assert isinstance(results[0], Exception)
        assert alice.cleared_by(results) == pytest.approx(500)
        assert alice.cleared_by({0: results[0]}) is None


def test_settings_that_somebody_changed_are_shown_and_stay(machines: FakeMachines) -> None:
    """Only settings that are as netbench set them are restored."""
    with fleet(machines) as alice:
        apply(alice)
        path = machines.kernels[0].sysctl / "net/ipv4/tcp_rmem"
        path.write_text("1 2 3\n")
        shown, cleared = alice.show()[0], alice.clear()[0]
    assert isinstance(shown, Shown)
    words = "net.ipv4.tcp_rmem is 1 2 3, set to 4096 131072 50000000"
    assert words in shown.problems(PAIR)
    assert isinstance(cleared, Cleared)
    assert cleared.notes == ("net.ipv4.tcp_rmem was changed to 1 2 3 and stays so",)
    assert path.read_text() == "1 2 3\n"


def test_a_missing_agent_is_sent_again_and_removed_in_the_end(machines: FakeMachines) -> None:
    """The host may clean its temporary folder. Nothing stays in the end."""
    with fleet(machines) as alice:
        apply(alice)
        machines.files.clear()
        alice.clear()
        assert len(machines.files) == NUM_MACHINES
    assert not machines.files
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


def test_a_full_folder_is_skipped(machines: FakeMachines) -> None:
    """A host with a full /tmp can still be cleared."""
    machines.full = {"tmp"}
    with fleet(machines) as alice:
        alice.clear()
        assert {path.split("/")[1] for _, path in machines.files} == {"dev"}
    machines.full = {"tmp", "dev", "var"}
    with fleet(machines) as alice, pytest.raises(FleetError) as caught:
        apply(alice)
    assert "m0: no room for the agent: /tmp: No space left on device; /dev/shm: No space" in str(
        caught.value
    )


def test_full_disks_do_not_stop_clear(
    machines: FakeMachines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every shaped host keeps a copy of the agent, for a controller that cannot send one."""
    sent = tmp_path / "agent.zip"
    sent.touch()
    monkeypatch.setattr(sys, "argv", [str(sent)])
    with fleet(machines) as alice:
        apply(alice)
    assert not machines.files
    machines.full = {"tmp", "dev", "var"}
    with fleet(machines, "alice@laptop", "two", "one") as later:
        results = later.clear()
    assert [c.cleared for c in results.values() if isinstance(c, Cleared)] == [True] * NUM_MACHINES
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


def test_an_agent_with_a_wrong_checksum_is_not_run(machines: FakeMachines) -> None:
    """Nothing is run on the other hosts either."""
    machines.checksum = "0" * 64
    with fleet(machines) as alice, pytest.raises(FleetError, match="a wrong checksum"):
        apply(alice)
    assert machines.asked == []
    assert not machines.files


def test_an_old_python_is_reported(machines: FakeMachines) -> None:
    """The version is checked before the agent is run."""
    machines.python = [3, 6, 15]
    with fleet(machines) as alice, pytest.raises(FleetError, match=r"is Python 3\.6\.15, the node"):
        apply(alice)
    assert machines.asked == []


def division_of(node: int) -> dict[str, Any]:
    """Return a host's division into one node."""
    return {
        "name": f"netbench-0000000{node}", "network": "198.18.0.0/15", "peers": [],
        "own": f"198.18.{node}.0/24", "gateway": f"198.18.{node}.254", "overlay": "",
        "nodes": {str(node): f"198.18.{node}.1"}, "vni": 0, "local": "", "mtu_bytes": 1500,
    }  # fmt: skip


def test_hosts_are_divided_into_nodes_all_or_none(
    machines: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes on the other hosts are removed. A lease that is renewed keeps the nodes."""
    wanted = {node: division_of(node) for node in range(NUM_MACHINES)}
    removed: list[str] = []

    def remove(made: division.Division) -> list[str]:
        removed.append(made["name"])
        return []

    monkeypatch.setattr(division, "remove", remove)
    with fleet(machines) as alice:
        alice.divide(wanted)
        answers = iter([False, False, True])
        alice.renew_leases(wanted, lambda seconds: next(answers), print)
        assert removed == []
        results = alice.clear("session")
        assert all(isinstance(result, Cleared) and result.cleared for result in results.values())
    assert sorted(removed) == [made["name"] for made in wanted.values()]
    removed.clear()
    real = division.make

    def make(made: division.Division, interface: str) -> None:
        if made["name"].endswith("2"):
            raise AgentError("no VXLAN")
        real(made, interface)

    monkeypatch.setattr(division, "make", make)
    with fleet(machines) as alice, pytest.raises(FleetError, match="m2: no VXLAN"):
        alice.divide(wanted)
    assert sorted(removed) == [made["name"] for made in wanted.values()]
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


def test_an_agent_is_told_which_node_is_meant(machines: FakeMachines) -> None:
    """A command in the namespace of a node gets what follows the request."""
    asked: list[str] = []

    def answer(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        asked.append(stdin)
        return 0, "", ""

    named = {"addresses": ("198.18.0.1",), "namespace": "netbench-00000000-7"}
    machine = machines.machine(0, root=FakeNode(0, answer), **named)
    with Fleet([machine]) as alice:
        alice.run_inside(0, ["cat"], {"PATH": "/bin"}, "the rest", 5.0)
    (stdin,) = asked
    request, rest = stdin.split("\n")
    assert rest == "the rest"
    assert json.loads(request) == {
        "interface": "eth0", "addresses": ["198.18.0.1"], "namespace": "netbench-00000000-7",
        "argv": ["cat"], "environment": {"PATH": "/bin"},
    }  # fmt: skip
