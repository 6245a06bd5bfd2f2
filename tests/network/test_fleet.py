"""All machines or none: the real agent on kernels that are doubles (see agent_in_guest)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netbench.network import agent
from netbench.network.courier import Machine
from netbench.network.fleet import Cleared, Fleet, FleetError, Owner, Shown
from netbench.network.program import Program, compile_program
from netbench.network.tc import HANDLE
from tests.network.fake_machines import DEFAULT, FORMER, FakeMachines
from tests.network.shaping_cases import ADDRESSES, CASES

PAIR = compile_program(CASES["pair"][0], 0, ADDRESSES, "eth0")
NUM_MACHINES = 4
PROGRAMS = [dataclasses.replace(PAIR, node=node) for node in range(NUM_MACHINES)]
SETTINGS = {"net.ipv4.tcp_rmem": "4096 131072 50000000", "net.ipv4.tcp_nothing": "1"}
PFIFO = {"kind": "pfifo", "handle": "7:", "root": True, "options": {"limit": 9}}


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachines:
    return FakeMachines(monkeypatch, tmp_path, NUM_MACHINES)


def fleet(machines: FakeMachines, name: str = "alice@laptop", session: str = "one") -> Fleet:
    hosts = [Machine(name=f"m{node}", interface="eth0") for node in range(len(machines.kernels))]
    owner = Owner(name=name, pid=7, session=session)
    return Fleet(hosts, machines.run, machines.run_as_root, machines.put, owner=owner)


def apply(some: Fleet, programs: list[Program] = PROGRAMS, **options: Any) -> Any:
    return some.apply(programs, SETTINGS, **{"lease_s": 60.0, **options})


def is_as_before(machines: FakeMachines, node: int) -> bool:
    kernel = machines.kernels[node]
    settings = {name: kernel.setting(name) for name in FORMER}
    state = list(agent.STATE.glob(f"eth0@{node}.*"))
    return kernel.root == DEFAULT and kernel.segments == 65535 and settings == FORMER and not state


def test_timers_are_armed_everywhere_before_anything_is_changed(machines: FakeMachines) -> None:
    """Also the order of the rest: read, load, read back, extend."""
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
    """What the kernel printed is what was asked for, so no command is sent."""
    with fleet(machines) as alice:
        apply(alice)
        before = [kernel.commands.count("tc -batch -") for kernel in machines.kernels]
        again = apply(alice)
    assert {found.num_commands for found in again.values()} == {0}
    assert [kernel.commands.count("tc -batch -") for kernel in machines.kernels] == before


def test_clear_puts_everything_back_any_number_of_times(machines: FakeMachines) -> None:
    """To the byte, and no state stays."""
    with fleet(machines) as alice:
        apply(alice)
        first, second = alice.clear(), alice.clear()
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))
    assert [c.cleared for c in first.values() if isinstance(c, Cleared)] == [True] * NUM_MACHINES
    assert [c.cleared for c in second.values() if isinstance(c, Cleared)] == [False] * NUM_MACHINES


def test_one_broken_tc_rolls_all_back_and_quotes_the_line(machines: FakeMachines) -> None:
    """The third of four; the message names it and what tc refused."""
    machines.kernels[2].broken = "Error: Specified qdisc kind is unknown.\nCommand failed -:6\n"
    with fleet(machines) as alice, pytest.raises(FleetError) as caught:
        apply(alice)
    line = PAIR.text.splitlines()[5]
    assert str(caught.value) == (
        "shaping failed on 1 of 4 hosts:\n"
        f"  m2: tc refused `{line}`: Error: Specified qdisc kind is unknown. Command failed -:6"
    )
    assert set(caught.value.failures) == {2}
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
    """Ctrl-C while programs are loaded."""
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
    with fleet(machines) as first, fleet(machines, session="two") as second:
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
        with fleet(machines, session="four") as fourth:
            apply(fourth, PROGRAMS[:3])


def test_the_lease_that_comes_back_is_the_last_one(machines: FakeMachines) -> None:
    """Not that of an apply before it."""
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


def test_an_earlier_network_that_has_gone_is_said(machines: FakeMachines) -> None:
    """Once programs are being loaded all are cleared; hosts that had nothing are not named."""
    with fleet(machines) as alice:
        apply(alice, PROGRAMS[:3])
        machines.kernels[3].broken = "Error: no.\nCommand failed -:6\n"
        with pytest.raises(FleetError) as caught:
            apply(alice)
    assert str(caught.value).endswith("\nthe network that was there before has gone: m0, m1, m2")
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


def test_an_interrupt_says_what_could_not_be_cleared(machines: FakeMachines) -> None:
    """Ctrl-C, and one host is not reached any more."""
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


def test_what_the_kernel_holds_in_the_end_decides(machines: FakeMachines) -> None:
    """A tc that accepts a program and loads another is found out, and cleared."""
    network, scale = CASES["pair-scaled"]
    other = [
        dataclasses.replace(compile_program(network, 0, ADDRESSES, "eth0", scale), node=node)
        for node in range(NUM_MACHINES)
    ]
    with fleet(machines) as alice, pytest.raises(FleetError, match="reading back what was loaded"):
        apply(alice, other)
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


def test_two_controllers_at_once(machines: FakeMachines) -> None:
    """The second is told who has it since when and until when, and takes nothing away."""
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


def test_what_is_left_running_is_its_owners_next_process(machines: FakeMachines) -> None:
    """`apply --lease 1h` twice by one person; not while the first is still at it."""
    with fleet(machines) as first, fleet(machines, session="two") as second:
        apply(first, release=False)
        with pytest.raises(FleetError, match="is shaped by alice@laptop"):
            apply(second)
        apply(first, release=True)
        apply(second)
        lost = "m0: eth0 was taken over by alice@laptop"
        with pytest.raises(FleetError, match=lost):
            first.hold(PROGRAMS, lambda seconds: False, print)


def test_force_clears_what_somebody_else_has(machines: FakeMachines) -> None:
    """And only then."""
    with fleet(machines) as alice, fleet(machines, "bob@tower", "two") as bob:
        apply(alice, lease_s=None)
        assert all(isinstance(result, Exception) for result in bob.clear().values())
        results = bob.clear("any")
    assert all(isinstance(result, Cleared) and result.cleared for result in results.values())
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


def test_a_foreign_root_is_refused_then_put_aside_and_back(machines: FakeMachines) -> None:
    """With what it is; all of them at once."""
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


def test_a_root_that_cannot_come_back_is_refused_even_so(machines: FakeMachines) -> None:
    """HTB has classes of its own."""
    machines.kernels[1].root = {"kind": "htb", "handle": "1:", "root": True, "options": {}}
    with fleet(machines) as alice, pytest.raises(FleetError) as caught:
        apply(alice, replace=True)
    assert "m1: eth0 has a root qdisc that is not netbench's: htb 1:" in str(caught.value)
    assert "could not be put back exactly (htb may hold classes" in str(caught.value)
    assert machines.kernels[1].root["handle"] == "1:"


def test_holding_outlives_a_short_loss_and_reports_a_long_one(
    machines: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 s lease, a beat every 5 s: lost for 15 s is said, for more than 30 s it is the end."""
    clock = [0.0]
    monkeypatch.setattr("netbench.network.fleet.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(
        "netbench.network.fleet.at_once", lambda tasks, _: {k: attempt(t) for k, t in tasks.items()}
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
        alice.hold(PROGRAMS, wait, said.append)
        assert said == [
            f"m2: the SSH connection was lost; it clears itself in {left} s"
            for left in (25, 20, 15)
        ]
        lost_from_s, lost_for_s = clock[0], 100.0
        with pytest.raises(FleetError, match="m2: the SSH connection was lost"):
            alice.hold(PROGRAMS, wait, said.append)
        assert clock[0] - lost_from_s == 35.0


def attempt(task: Callable[[], Any]) -> Any:
    try:
        return task()
    except Exception as error:
        return error


def test_a_lost_program_is_noticed_by_the_next_beat(machines: FakeMachines) -> None:
    """A node that was restarted answers, but is not shaped any more."""
    with fleet(machines) as alice:
        apply(alice, release=False)
        machines.kernels[3].root = DEFAULT
        with pytest.raises(FleetError, match="m3: eth0 has lost its program, its root qdisc is no"):
            alice.hold(PROGRAMS, lambda seconds: False, print)


def test_when_an_unreached_host_clears_itself_is_told_by_the_others(machines: FakeMachines) -> None:
    """All of one apply have one lease."""
    with fleet(machines) as alice:
        apply(alice, lease_s=600.0)
        machines.boottime_s += 100
        machines.lost = {0}
        results = alice.clear()
        assert isinstance(results[0], Exception)
        assert alice.cleared_by(results) == pytest.approx(500)
        assert alice.cleared_by({0: results[0]}) is None


def test_settings_that_somebody_changed_are_shown_and_left(machines: FakeMachines) -> None:
    """Only what is as netbench set it is put back."""
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


def test_the_agent_is_removed_and_sent_again_where_it_has_gone(machines: FakeMachines) -> None:
    """A folder for temporary files is swept; nothing of ours stays in the end."""
    with fleet(machines) as alice:
        apply(alice)
        machines.files.clear()
        alice.clear()
        assert len(machines.files) == NUM_MACHINES
    assert not machines.files
    assert all(is_as_before(machines, node) for node in range(NUM_MACHINES))


def test_a_full_folder_is_passed_over(machines: FakeMachines) -> None:
    """/tmp without room does not keep a host from being cleared."""
    machines.full = {"tmp"}
    with fleet(machines) as alice:
        alice.clear()
        assert {path.split("/")[1] for _, path in machines.files} == {"dev"}
    machines.full = {"tmp", "dev", "var"}
    with fleet(machines) as alice, pytest.raises(FleetError) as caught:
        apply(alice)
    assert "m0: no room for the agent: m0: cannot write /tmp/netbench.aaaaaaaaaa/agent.py" in str(
        caught.value
    )


def test_an_agent_that_arrived_different_is_not_run(machines: FakeMachines) -> None:
    """Nor is anything else, on any host."""
    machines.checksum = "0" * 64
    with fleet(machines) as alice, pytest.raises(FleetError, match="another checksum"):
        apply(alice)
    assert machines.asked == []
    assert not machines.files


def test_an_old_python_is_named(machines: FakeMachines) -> None:
    """Before it would stumble over the agent's syntax."""
    machines.python = [3, 6, 15]
    with fleet(machines) as alice, pytest.raises(FleetError, match=r"is Python 3\.6\.15, the node"):
        apply(alice)
    assert machines.asked == []
