"""Shape real namespaces and measure them: run in a kernel with netem, as root, with /run private.

`python -m tests.network.inside_guest DIRECTORY` exits with 1 and says what was wrong, or with 0.
DIRECTORY is on the host's disk: the age of a file in it is the only clock that shows how long
something takes outside of virtual time. Expects virtual time: figures are to be within 0.5%.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from netbench.errors import NetworkError
from netbench.network.probing.measure import Endpoints, measure
from netbench.network.probing.samples import LinkSample, sample_links
from netbench.network.probing.verify import evaluate
from netbench.network.shaping import netlink
from netbench.network.shaping.apply import apply, clear, read_back
from netbench.network.shaping.program import compile_programs, sysctls
from netbench.scenario.model import Link, Network
from netbench.testing.nodes import fake_nodes
from tests.networks import FAR, NEAR, UNLIMITED, two_regions

TOLERANCE = 0.005
NUM_NODES = 64
ADDRESSES = [(f"10.77.0.{node + 1}", f"fd77::{node + 1:x}") for node in range(NUM_NODES)]
EIGHT_FLOWS = (LinkSample(kind="nic", src=0, dsts=tuple(range(1, 9))),)

LONG = Link(one_way_delay_s=0.1, bandwidth_bps=1e9)
ONE_WAY = Link(one_way_delay_s=0.03, bandwidth_bps=2e9)

MEASURED: dict[str, tuple[Network, float, Sequence[LinkSample] | None]] = {
    "5 Gbit/s 1 ms inside, 1.12 Gbit/s 11 ms across": (two_regions(), 1.0, None),
    "the same over 1000": (two_regions(), 1000.0, None),
    "1 Gbit/s 100 ms": (two_regions(LONG, LONG, num_nodes=2), 1.0, None),
    "1 Gbit/s 100 ms, MTU 9001": (two_regions(LONG, LONG, num_nodes=2, mtu_bytes=9001), 1.0, None),
    "classes shared by two, over 1000": (two_regions(num_nodes=8, sharing="class"), 1000.0, None),
    "delay only": (two_regions(UNLIMITED, UNLIMITED, num_nodes=2), 1.0, None),
    "NIC of 10 Gbit/s, 8 flows of 5 Gbit/s": (
        two_regions(NEAR, NEAR, num_nodes=10, sharing="nic", nic_bps=10e9), 1.0, EIGHT_FLOWS,
    ),
    "NIC of 25 Gbit/s over 1000": (
        two_regions(UNLIMITED, UNLIMITED, num_nodes=10, sharing="nic", nic_bps=25e9), 1000.0, None,
    ),
    "the same, 8 flows": (
        two_regions(UNLIMITED, UNLIMITED, num_nodes=10, sharing="nic", nic_bps=25e9),
        1000.0,
        EIGHT_FLOWS,
    ),
    "different both ways": (
        Network(
            regions=("a", "b"),
            links=((NEAR, ONE_WAY), (FAR, NEAR)),
            node_regions=(0, 1),
            sharing="pair",
            nic_bps=(float("inf"),) * 2,
        ),
        1.0,
        None,
    ),
}  # fmt: skip


def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
    """Run a command in the namespace of a node."""
    with netlink.inside(Path(f"/run/netns/n{node}")):
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


NODES = fake_nodes(run)


def build(num_nodes: int) -> None:
    """Namespaces n0, n1, ... with an interface eth0 each, on one bridge."""
    lines = ["link add name br0 type bridge", "link set br0 up"]
    for node in range(num_nodes):
        lines.append(f"netns add n{node}")
        lines.append(f"link add v{node} type veth peer name eth0 netns n{node}")
        lines.append(f"link set v{node} master br0 up")
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    for node in range(num_nodes):
        address4, address6 = ADDRESSES[node]
        inside = f"""link set lo up
            link set eth0 up
            addr add {address4}/16 dev eth0
            addr add {address6}/64 dev eth0 nodad"""
        assert run(node, ("ip", "-batch", "-"), inside)[0] == 0


def set_up(network: Network, scale: float) -> None:
    """MTU and TCP's limits of the network on its nodes."""
    mtu = str(network.mtu_bytes)
    for node in range(network.num_nodes):
        subprocess.run(["ip", "link", "set", f"v{node}", "mtu", mtu], check=True)
        assert run(node, ("ip", "link", "set", "eth0", "mtu", mtu), "")[0] == 0
        settings = [f"{name}={value}" for name, value in sysctls(network, scale).items()]
        assert run(node, ("sysctl", "-qw", *settings), "")[0] == 0


def check_figures() -> Iterator[str]:
    """Shape, measure, read back and clear every network of `MEASURED`."""
    for name, (network, scale, samples) in MEASURED.items():
        set_up(network, scale)
        programs = compile_programs(network, ADDRESSES, "eth0", scale)
        apply(programs, NODES)
        found = measure(
            network,
            samples or sample_links(network),
            Endpoints(addresses=ADDRESSES, nodes=NODES),
            scale,
        )
        probe = evaluate(found, network, scale, TOLERANCE)
        print(name)
        for check in probe.checks:
            ratio = (check.measured or 0) / check.expected
            print(f"  {check.kind} {check.src} to {check.dsts} {check.quantity} {ratio:.6f}")
        yield from (f"{name}: {reason}" for reason in probe.reasons)
        for difference in read_back(programs, NODES):
            yield from (f"{name}: node {difference.node}: {p}" for p in difference.problems)
            if difference.dropped_packets:
                yield f"{name}: node {difference.node} dropped {difference.dropped_packets}"
        clear(programs, NODES)


def check_ipv6() -> Iterator[str]:
    """An IPv6 destination is held back by its own rule, all four words of it."""
    network = two_regions(num_nodes=2)
    programs = compile_programs(network, [(pair[1],) for pair in ADDRESSES], "eth0")
    apply(programs, NODES)
    (found,) = measure(
        network,
        sample_links(network)[:1],
        Endpoints(addresses=[(p[1],) for p in ADDRESSES], nodes=NODES),
    )
    clear(programs, NODES)
    rtt_s = found.rtt_s[0] if found.rtt_s else None
    if rtt_s is None or abs(rtt_s - 0.022) > 1e-4:
        yield f"IPv6: a round trip of {rtt_s} s, expected 0.022: {found.error}"


def check_foreign() -> Iterator[str]:
    """A root qdisc of somebody else stops everything and survives."""
    programs = compile_programs(two_regions(num_nodes=2), ADDRESSES, "eth0")
    foreign = ("tc", "qdisc", "add", "dev", "eth0", "root", "handle", "7:", "pfifo", "limit", "9")
    assert run(1, foreign, "")[0] == 0
    try:
        apply(programs, NODES)
        yield "a foreign root qdisc was not refused"
    except NetworkError as error:
        if "node 1: eth0 has a root qdisc that is not netbench's: pfifo 7:" not in str(error):
            yield f"a foreign root qdisc was refused with: {error}"
    clear(programs, NODES)
    if "qdisc pfifo 7: root" not in run(1, ("tc", "qdisc", "show", "dev", "eth0"), "")[1]:
        yield "a foreign root qdisc was removed"
    if "noqueue" not in run(0, ("tc", "qdisc", "show", "dev", "eth0"), "")[1]:
        yield "the other node stayed shaped"
    assert run(1, ("tc", "qdisc", "del", "dev", "eth0", "root"), "")[0] == 0


def check_all_nodes() -> Iterator[str]:
    """Shape 64 nodes with a rule for each of 63 peers, and 16 by classes, twice; clear them.

    `benchmarks.shaping` measures how long this takes, beside `tc` rule by rule.
    """
    for name, num_nodes in (("pair", NUM_NODES), ("class", NUM_NODES // 4)):
        network = two_regions(num_nodes=num_nodes, sharing=name)
        programs = compile_programs(network, ADDRESSES, "eth0", 1000.0)
        for step in (apply, apply, read_back, clear):
            result = step(programs, NODES)
            yield from (f"{name}: {d}" for d in result or () if d.problems)


def main() -> int:
    """Run all checks; print what failed."""
    build(NUM_NODES)
    problems = [*check_figures(), *check_ipv6(), *check_foreign()]
    problems += check_all_nodes()
    for problem in problems:
        print(f"FAILED: {problem}")
    print("all as planned" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
