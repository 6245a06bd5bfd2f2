"""Fleet and agent on four namespaces of a real kernel: run as root, with /run private.

`python -m tests.network.agent_in_guest` exits with 1 and says what was wrong, or with 0. Expects
virtual time: leases of half a minute are waited for at no cost.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from netbench.errors import NetworkError, TestbedError
from netbench.network.remote import deployer
from netbench.network.remote.agent.messages import Owner
from netbench.network.remote.deployer import Machine
from netbench.network.remote.facts import settings
from netbench.network.remote.fleet import Cleared, Fleet, Shown
from netbench.network.shaping.program import Program, compile_program, compile_programs
from netbench.scenario.model import Link
from netbench.testing.nodes import Answer, FakeNode
from tests.network.inside_guest import ADDRESSES, build, run
from tests.networks import FAR, two_regions

NUM_NODES = 4
"""Two in each region: a third would do what the second does, and each starts a Python per step."""

LEASE_S = 30.0
SLACK_S = 3.0
"""The timer polls once a second, and then needs some time."""

TEMPORARY = Path("/run/tmp")
"""Used instead of /tmp, which belongs to the machine outside the guest."""

NETWORK = two_regions(num_nodes=NUM_NODES)
OTHER = two_regions(inside=Link(one_way_delay_s=0.002, bandwidth_bps=1e9), num_nodes=NUM_NODES)
PROGRAMS = compile_programs(NETWORK, ADDRESSES, "eth0")
SETTINGS = settings(NETWORK) | {"net.ipv4.tcp_rmem": "4096 131072 99999999"}
MACHINES = tuple(
    Machine(
        name=f"host{node}",
        python=sys.executable,
        addresses=(ADDRESSES[node][0],),
        node=FakeNode(node, run),
        root=FakeNode(node, run),
    )
    for node in range(NUM_NODES)
)

RESTORABLE = (
    "pfifo limit 77",
    "bfifo limit 123456",
    "pfifo_fast",
    "noqueue",
    "fq_codel",
    "fq_codel limit 500 target 3ms ce_threshold 2ms noecn",
    "fq",
    "fq maxrate 100mbit limit 500 nopacing",
    "tbf rate 17mbit burst 15000 latency 33ms",
    "netem delay 10ms",
    "netem delay 12344us loss 1.3% rate 77mbit limit 333 duplicate 3% reorder 10% 20% gap 3 ecn",
    "netem loss gemodel 1% 20% 90% 1% rate 10mbit 10 20 30",
)
UNRESTORABLE = {
    "htb default 1": "htb may hold classes",
    "netem delay 10ms 2ms": "jitter, whose distribution tc does not print",
    "tbf rate 2gbit burst 1mb limit 44444 peakrate 3gbit mtu 9000": "option minburst of tbf",
    "prio": "prio may hold classes",
}


def fleet(
    name: str = "alice@laptop",
    run_as_root: Answer = run,
    machines: Sequence[Machine] = MACHINES,
    runs: tuple[str, ...] = (),
) -> Fleet:
    owner = Owner(name=name, pid=os.getpid(), session=secrets.token_hex(8), runs=runs)
    machines = [
        replace(machine, root=FakeNode(node, run_as_root)) for node, machine in enumerate(machines)
    ]
    return Fleet(machines, owner=owner, lease_s=LEASE_S)


def snapshot(node: int, interface: str = "eth0") -> dict[str, str]:
    """Return everything that netbench may change or leave behind on a node."""
    shown = f"qdisc show dev {interface}\nfilter show dev {interface}\n"
    script = f"tc -batch -; echo ===; tail -n +1 tcp_* ip_*; echo ===; ip -d link show {interface}"
    answer = run(node, ("sh", "-c", f"cd /proc/sys/net/ipv4; {script}"), shown)[1]
    qdiscs, sysctls, link = answer.split("===\n")
    here = f"@{Path(f'/run/netns/n{node}').stat().st_ino}."
    folders = (Path("/run/netbench"), Path("/dev/shm/netbench"))
    left = sorted(path.name for f in folders for path in f.glob("*") if here in path.name)
    return {
        "qdisc": qdiscs,
        "sysctls": sysctls,
        "segments": " ".join(re.findall(r"gso_max_segs \d+", link)),
        "state": " ".join(left),
    }


def snapshots() -> list[dict[str, str]]:
    return [snapshot(node) for node in range(NUM_NODES)]


def leftovers() -> list[str]:
    """Return running timers, and folders of agents. A killed process takes a moment to end."""
    deadline = time.monotonic() + SLACK_S
    while True:
        found = subprocess.run(["pgrep", "-x", "netbench-timer"], stdout=subprocess.PIPE).stdout
        if not found or time.monotonic() > deadline:
            timers = ["netbench-timer"] * len(found.splitlines())
            return timers + [str(path) for path in TEMPORARY.glob("*")]
        time.sleep(0.1)


def differences(before: list[dict[str, str]], nodes: Sequence[int] | None = None) -> Iterator[str]:
    for node in range(NUM_NODES) if nodes is None else nodes:
        for key, value in snapshot(node).items():
            if value != before[node][key]:
                yield f"host{node}: {key} is {value!r}, was {before[node][key]!r}"


def is_shaped(node: int) -> bool:
    return "htb 6e62:" in run(node, ("tc", "qdisc", "show", "dev", "eth0"), "")[1]


def error_of(function: Callable[[], object]) -> str:
    try:
        function()
    except NetworkError as error:
        return str(error)
    return "(no error)"


def apply_to(some: Fleet, programs: Sequence[Program] = PROGRAMS, **options: object) -> None:
    wanted = {"lease_s": LEASE_S, "release": False, **options}
    some.apply(programs, SETTINGS, **wanted)  # type: ignore[arg-type]


def check_round(before: list[dict[str, str]]) -> Iterator[str]:
    """Apply, apply again, change, look, renew, clear."""
    with fleet() as alice:
        first = alice.apply(PROGRAMS, SETTINGS, lease_s=LEASE_S, release=False)
        if {found.num_commands for found in first.values()} != {len(PROGRAMS[0].text.splitlines())}:
            yield f"first: {first}"
        again = alice.apply(PROGRAMS, SETTINGS, lease_s=LEASE_S, release=False)
        if any(found.num_commands for found in again.values()):
            yield f"again: {again}"
        changed = alice.apply(
            compile_programs(OTHER, ADDRESSES, "eth0"), SETTINGS, lease_s=LEASE_S, release=False
        )
        if {found.num_commands for found in changed.values()} != {1}:
            yield f"1 of 3 links of each node is inside its region, but: {changed}"
        rmem = run(3, ("sysctl", "-n", "net.ipv4.tcp_rmem"), "")[1].split()
        if rmem != ["4096", "131072", "99999999"]:
            yield f"tcp_rmem is {rmem}"
        said: list[str] = []
        alice.keep_leases(PROGRAMS, _waits(8), said.append)  # 40 s: more than a lease
        yield from said
        for node, shown in alice.show().items():
            assert isinstance(shown, Shown), shown
            if shown.problems(PROGRAMS[node]) == () or not shown.lease or not shown.lease.applied:
                yield f"host{node}: {shown}"
        cleared = alice.clear()
        yield from (f"{c}" for c in cleared.values() if not isinstance(c, Cleared) or not c.cleared)
        yield from differences(before)
        twice = alice.clear()
        yield from (f"{c}" for c in twice.values() if not isinstance(c, Cleared) or c.cleared)
    yield from (f"left behind: {left}" for left in leftovers())


def check_vanished(before: list[dict[str, str]]) -> Iterator[str]:
    """A controller of four nodes is killed, and the folder of its agent on one is deleted."""
    controller = os.fork()
    if controller == 0:
        alice = fleet()
        apply_to(alice)
        alice.keep_leases(PROGRAMS, lambda seconds: threading.Event().wait(seconds), print)
        os._exit(1)
    time.sleep(40.0)
    if not all(map(is_shaped, range(NUM_NODES))):
        yield "not kept for 40 s"
    os.kill(controller, signal.SIGKILL)
    os.waitpid(controller, 0)
    folders = sorted(TEMPORARY.glob("*/agent.zip"))
    if len(folders) != NUM_NODES:
        yield f"agents: {folders}"
    shutil.rmtree(folders[0].parent)
    time.sleep(LEASE_S * 5 / 6 - 1)
    if not all(map(is_shaped, range(NUM_NODES))):
        yield "cleared before the lease had ended"
    time.sleep(LEASE_S / 6 + 1 + SLACK_S)
    yield from differences(before)
    yield from (f"left behind: {left}" for left in leftovers())


def check_terminated(before: list[dict[str, str]]) -> Iterator[str]:
    """A timer restores everything on SIGTERM. A killed timer is replaced by the next beat."""
    programs = PROGRAMS[:2]
    with fleet(machines=MACHINES[:2]) as alice:
        apply_to(alice, programs)
        for state in Path("/run/netbench").glob("*.json"):
            os.kill(json.loads(state.read_text())["deadman"]["pid"], signal.SIGKILL)
        alice.keep_leases(programs, _waits(1), print)
        if len([name for name in leftovers() if name == "netbench-timer"]) != 2:
            yield f"killed dead-men were not replaced: {leftovers()}"
        for state in Path("/run/netbench").glob("*.json"):
            os.kill(json.loads(state.read_text())["deadman"]["pid"], signal.SIGTERM)
        time.sleep(SLACK_S)
        yield from differences(before)
        lost = error_of(lambda: alice.keep_leases(programs, _waits(9), print))
        if "host1: eth0 is not armed: the lease has ended" not in lost:
            yield lost


def _waits(beats: int) -> Callable[[float], bool]:
    """Return a wait for `keep_leases` that ends after `beats` beats."""
    left = iter([False] * beats + [True])

    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        return next(left)

    return wait


def check_foreign(before: list[dict[str, str]]) -> Iterator[str]:
    """A foreign root qdisc is refused, or set aside and restored as it was printed."""
    for first in range(0, len(RESTORABLE), NUM_NODES):
        kinds = RESTORABLE[first : first + NUM_NODES]
        _load_foreign(kinds)
        yield from _put_aside(kinds, lapses=kinds[-1] == RESTORABLE[-1])
        _unload_foreign(kinds)
    _load_foreign(tuple(UNRESTORABLE))
    yield from _refused()
    _unload_foreign(tuple(UNRESTORABLE))
    yield from differences(before)


def _load_foreign(kinds: Sequence[str]) -> None:
    for node, options in enumerate(kinds):
        root = ("tc", "qdisc", "add", "dev", "eth0", "root", "handle", "8001:")
        assert run(node, (*root, *options.split()), "")[0] == 0, options


def _unload_foreign(kinds: Sequence[str]) -> None:
    for node in range(len(kinds)):
        assert run(node, ("tc", "qdisc", "del", "dev", "eth0", "root"), "")[0] == 0


def _put_aside(kinds: Sequence[str], lapses: bool) -> Iterator[str]:
    """lapses: the end of the lease restores them, instead of `clear`."""
    before, programs = snapshots(), PROGRAMS[: len(kinds)]
    with fleet(machines=MACHINES[: len(kinds)]) as alice:
        refused = error_of(lambda: apply_to(alice, programs))
        for node, options in enumerate(kinds):
            kind = options.split()[0]
            words = f"host{node}: eth0 has a root qdisc that is not netbench's: {kind} 8001:"
            if words not in refused:
                yield f"{options} was not refused: {refused}"
        yield from differences(before)
        for facts in alice.facts().values():
            assert not isinstance(facts, Exception), facts
            if not facts.foreign or facts.unrestorable:
                yield f"{facts.qdisc}: {facts.unrestorable}"
        apply_to(alice, programs, replace=True)
        if not all(map(is_shaped, range(len(kinds)))):
            yield "not replaced"
        if lapses:
            time.sleep(LEASE_S + SLACK_S)
        else:
            for cleared in alice.clear().values():
                if not isinstance(cleared, Cleared) or cleared.notes:
                    yield f"{cleared}"
        yield from differences(before)


def _refused() -> Iterator[str]:
    before, num_hosts = snapshots(), len(UNRESTORABLE)
    with fleet(machines=MACHINES[:num_hosts]) as alice:
        refused = error_of(lambda: apply_to(alice, PROGRAMS[:num_hosts], replace=True))
        facts = alice.facts()
    for node, (options, why) in enumerate(UNRESTORABLE.items()):
        words = f"host{node}: eth0 has a root qdisc that is not netbench's: {options.split()[0]}"
        found = facts[node]
        assert not isinstance(found, Exception), found
        if words not in refused or why not in refused or why not in found.unrestorable:
            yield f"{options}: {refused} {found}"
    yield from differences(before)


def check_queues(_: list[dict[str, str]]) -> Iterator[str]:
    """An interface with several queues gets back its default, and a configured root."""
    inside = """link add mq0 numtxqueues 4 type veth peer name mq1
        link set mq0 up
        link set mq1 up"""
    assert run(0, ("ip", "-batch", "-"), inside)[0] == 0
    machines = [replace(MACHINES[0], addresses=(), interface="mq0")]
    program = compile_program(NETWORK, 0, ADDRESSES, "mq0")
    add = (
        "qdisc add dev mq0 root handle 1: mq\n"
        "qdisc replace dev mq0 parent 1:2 handle 99: netem delay 5ms\n"
        "qdisc replace dev mq0 parent 1:3 handle 98: fq_codel limit 77\n"
    )
    for text in ("", add):
        assert run(0, ("tc", "-batch", "-"), text)[0] == 0
        before = snapshot(0, "mq0")
        with fleet(machines=machines) as alice:
            apply_to(alice, [program], replace=True)
            cleared = alice.clear()[0]
        if snapshot(0, "mq0") != before or not isinstance(cleared, Cleared) or cleared.notes:
            yield f"{text}: {snapshot(0, 'mq0')} was {before}; {cleared}"
    assert run(0, ("ip", "link", "del", "mq0"), "")[0] == 0


def check_owners(before: list[dict[str, str]]) -> Iterator[str]:
    """Two controllers at once: the first keeps all hosts. Who knows its run may take them over."""
    machines, programs = MACHINES[:3], PROGRAMS[:3]
    with (
        fleet(machines=machines) as alice,
        fleet("bob@tower", machines=machines) as bob,
        fleet(machines=machines, runs=(alice.session,)) as alice_again,
    ):
        apply_to(alice, programs)
        for other in (bob, alice_again):
            refused = error_of(partial(apply_to, other, programs))
            if (
                "failed on 3 of 3" not in refused
                or "host2: eth0 is shaped by alice@laptop (pid" not in refused
            ):
                yield refused
        if not all(map(is_shaped, range(3))):
            yield "a refused controller took the network away"
        if not all("shaped by alice" in str(c) for c in bob.clear().values()):
            yield f"bob may clear: {bob.clear()}"
        apply_to(alice, programs, lease_s=2 * LEASE_S, release=True)
        apply_to(alice_again, programs, lease_s=None, release=True)
        taken = error_of(lambda: alice.keep_leases(programs, _waits(2), print))
        if "host0: eth0 was taken over by alice@laptop" not in taken:
            yield taken
        time.sleep(4 * LEASE_S)
        if not all(map(is_shaped, range(3))):
            yield "a lease without end has ended"
        if "shaped by alice@laptop" not in error_of(lambda: apply_to(bob, programs)):
            yield "bob may shape what alice has"
        forced = bob.clear("any")
        yield from (f"{c}" for c in forced.values() if not isinstance(c, Cleared) or not c.cleared)
        yield from differences(before)


def check_broken_tc(before: list[dict[str, str]]) -> Iterator[str]:
    """tc fails on the third of four: none stays shaped, and the message shows the line."""
    folder = Path("/run/broken")
    folder.mkdir()
    script = folder / "tc"
    script.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -batch ]; then head -n 4 | /usr/sbin/tc -batch - || exit\n'
        'echo "Error: out of order." >&2; echo "Command failed -:5" >&2; exit 1; fi\n'
        'exec /usr/sbin/tc "$@"\n'
    )
    script.chmod(0o755)

    def broken(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        path = ("env", f"PATH={folder}:{os.environ['PATH']}") if node == 2 else ()
        return run(node, (*path, *argv), stdin)

    with fleet(run_as_root=broken) as alice:
        message = error_of(lambda: apply_to(alice))
    line = PROGRAMS[2].text.splitlines()[4]
    if f"1 of 4 hosts:\n  host2: tc refused `{line}`: Error: out of order." not in message:
        yield message
    yield from differences(before)
    yield from (f"left behind: {left}" for left in leftovers())


def check_cut_off(before: list[dict[str, str]]) -> Iterator[str]:
    """An unreachable host clears itself; the others are cleared at once."""
    machines, programs = MACHINES[:3], PROGRAMS[:3]
    for operation in ("apply", "show", "beat"):
        with fleet(machines=machines, run_as_root=_cut_off_from(operation)) as alice:
            message = error_of(partial(apply_to, alice, programs, lease_s=7200.0, release=True))
        if "1 of 3 hosts:\n  host1: the SSH connection was lost\nnot cleared: host1" not in message:
            yield f"{operation}: {message}"
        yield from differences(before, [n for n in range(3) if n != 1])
        time.sleep(LEASE_S + SLACK_S)
        yield from (f"{operation}: {problem}" for problem in differences(before))
    gone: list[int] = []

    def later(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        if node == 1 and "beat" in argv:
            gone.append(node)
            if len(gone) > 3:
                raise TestbedError("host1: the SSH connection was lost")
        return run(node, argv, stdin)

    said: list[str] = []
    with fleet(machines=machines, run_as_root=later) as alice:
        apply_to(alice, programs)
        lost = error_of(lambda: alice.keep_leases(programs, _waits(99), said.append))
        alice.clear("session")
    if "holding failed on 1 of 3 hosts:\n  host1: the SSH connection was lost" not in lost:
        yield lost
    if not said or "it clears itself in 25 s" not in said[0]:
        yield f"said: {said}"
    yield from differences(before)


def _cut_off_from(operation: str) -> Answer:
    """Return a `run` that loses host 1 at its first `operation`."""
    gone: list[int] = []

    def cut(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        if node == 1 and (gone or operation in argv):
            gone.append(node)
            raise TestbedError("host1: the SSH connection was lost")
        return run(node, argv, stdin)

    return cut


def check_restarted(before: list[dict[str, str]]) -> Iterator[str]:
    """An interface is deleted and made again: its owner is told, and no state stays."""
    programs = PROGRAMS[:2]
    with fleet(machines=MACHINES[:2]) as alice:
        apply_to(alice, programs)
        subprocess.run(["ip", "link", "del", "v1"], check=True)
        lost = error_of(lambda: alice.keep_leases(programs, _waits(9), print))
        if "host1: no interface has the address 10.77.0.2" not in lost:
            yield lost
        _plug_in(1)
        lost = error_of(lambda: alice.keep_leases(programs, _waits(9), print))
        if "host1: eth0 has lost its tc configuration, its root qdisc is noqueue 0:" not in lost:
            yield lost
        alice.clear("session")
    yield from differences(before)


def _plug_in(node: int) -> None:
    lines = (
        f"link add v{node} type veth peer name eth0 netns n{node}\nlink set v{node} master br0 up\n"
    )
    subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)
    inside = f"link set eth0 up\naddr add {ADDRESSES[node][0]}/16 dev eth0\n"
    assert run(node, ("ip", "-batch", "-"), inside)[0] == 0


def check_meddled(before: list[dict[str, str]]) -> Iterator[str]:
    """Changes that somebody else made meanwhile stay, and are reported."""
    write = ("sysctl", "-qw", "net.ipv4.tcp_wmem=4096 16384 5000000")
    tso = ("sysctl", "-qw", "net.ipv4.tcp_tso_rtt_log=7")
    capped = two_regions(FAR, FAR, num_nodes=NUM_NODES, sharing="nic", nic_bps=25e6)
    programs = compile_programs(capped, ADDRESSES, "eth0")
    assert programs[1].max_segments < 65535
    with fleet(machines=MACHINES[:2]) as alice:
        apply_to(alice, programs[:2])
        if snapshot(1)["segments"] != f"gso_max_segs {programs[1].max_segments}":
            yield f"segments: {snapshot(1)['segments']}"
        assert run(1, tso, "")[0] == 0
        shown = alice.show()[1]
        assert isinstance(shown, Shown)
        if shown.changed != ("net.ipv4.tcp_tso_rtt_log is 7, set to 0",):
            yield f"changed: {shown.changed}"
        cleared = alice.clear()[1]
        assert isinstance(cleared, Cleared)
        if cleared.notes != ("net.ipv4.tcp_tso_rtt_log was changed to 7 and stays so",):
            yield f"notes: {cleared.notes}"
    former = before[1]["sysctls"].split("tcp_tso_rtt_log <==\n")[1].split()[0]
    assert run(1, (*tso[:2], f"net.ipv4.tcp_tso_rtt_log={former}"), "")[0] == 0
    yield from differences(before)
    # Buffers that are larger already are not made smaller.
    assert run(1, (*write[:2], "net.ipv4.tcp_wmem=4096 16384 900000000"), "")[0] == 0
    with fleet(machines=MACHINES[:2]) as alice:
        apply_to(alice, PROGRAMS[:2])
        if "900000000" not in run(1, ("sysctl", "net.ipv4.tcp_wmem"), "")[1]:
            yield "a buffer was made smaller"
        alice.clear()
    former = before[1]["sysctls"].split("tcp_wmem <==\n")[1].splitlines()[0]
    assert run(1, (*write[:2], f"net.ipv4.tcp_wmem={former}"), "")[0] == 0
    yield from differences(before)


def main() -> int:
    """Run all checks; print what failed."""
    build(NUM_NODES)
    TEMPORARY.mkdir()
    deployer.FOLDERS = (str(TEMPORARY),)
    before = snapshots()
    problems = []
    only = sys.argv[1:]
    for check in (
        check_round,
        check_vanished,
        check_terminated,
        check_foreign,
        check_queues,
        check_owners,
        check_broken_tc,
        check_cut_off,
        check_restarted,
        check_meddled,
    ):
        found = list(check(before)) if not only or check.__name__ in only else []
        print(f"{check.__name__}: {found or 'as planned'}", flush=True)
        problems += found
    print("all as planned" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
