"""Compare shaping 64 nodes with a link per pair against `tc` and pyroute2 rule by rule.

Runs inside a guest and prints one JSON list per row, like `benchmarks.compare`. Methods that take
minutes are timed on a few nodes and multiplied, as the row says. Methods that take seconds are
timed `TRIES` times, and the best counts, since the machine may be busy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyroute2 import IPRoute, netns

from benchmarks.compare import row, seconds
from netbench.network.nodes import Node
from netbench.network.shaping.apply import apply, clear, read_back
from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.program import Program, compile_programs
from netbench.network.shaping.tc import HtbClass, Leaf
from netbench.scenario import load_scenario
from netbench.scenario.model import Network
from netbench.testbed.namespaces import build, namespace_nodes, namespace_path, node_addresses
from netbench.testbed.shaping import read

TRIES = 3
NUM_TIMED_TC = 2
NUM_TIMED_PYROUTE2 = 4
"""Nodes timed rule by rule; their time is scaled to all nodes."""


def main() -> None:
    """Print all rows, with the delays and rates of case 3."""
    network = replace(load_scenario("case3").network, sharing="pair")
    nodes, programs = full_matrix(network)
    num = len(programs)
    first_s, second_s = first_and_second(programs, nodes)
    matrix = f"shaping {num} nodes, {num * (num - 1)} links"
    apply(programs, nodes, read=read)
    assert not [d for d in read_back(programs, nodes, read=read) if d.problems]
    row(
        f"{matrix}, again with nothing to do",
        ("the kernel is read, nothing sent", second_s),
        ("`netbench`, the first time", first_s),
    )
    clear(programs, nodes)
    own = ("`tc -batch`, one a node", first_s)
    few = programs[:NUM_TIMED_TC]
    row(matrix, own, (
        f"one `tc` per rule ({len(few)} nodes timed, x {num // len(few)})",
        num / len(few) * seconds(lambda: rule_by_rule(few, nodes)),
    ))  # fmt: skip
    clear(few, nodes)
    few = programs[:NUM_TIMED_PYROUTE2]
    row(matrix, own, (
        f"pyroute2, a call per rule (delay only: it cannot send a rate; {len(few)} nodes timed, "
        f"x {num // len(few)})",
        num / len(few) * min(calls_and_clear_s(few, nodes) for _ in range(TRIES)),
    ))  # fmt: skip


def full_matrix(network: Network) -> tuple[Sequence[Node], tuple[Program, ...]]:
    """Build namespaces for every node; return them and their programs."""
    nodes = node_addresses([f"node{i}" for i in range(network.num_nodes)])
    build(nodes, network.mtu_bytes)
    addresses = [(node.address,) for node in nodes]
    programs = compile_programs(network, addresses, nodes[0].interface, 1000.0)
    return namespace_nodes(nodes), programs


def first_and_second(programs: Sequence[Program], nodes: Sequence[Node]) -> tuple[float, float]:
    """Return the best seconds of an apply to bare interfaces, and of one with nothing to do."""
    firsts, seconds_ = [], []
    for _ in range(TRIES):
        again = partial(apply, programs, nodes, read=read)
        firsts.append(seconds(again))
        seconds_ += [seconds(again) for _ in range(TRIES)]
        clear(programs, nodes)
    return min(firsts), min(seconds_)


def rule_by_rule(programs: Sequence[Program], nodes: Sequence[Node]) -> None:
    for program in programs:
        for rule in program.text.splitlines():
            status, _, stderr = nodes[program.node].run(("tc", *rule.split()), "")
            assert status == 0, f"{rule}: {stderr}"


def calls_and_clear_s(programs: Sequence[Program], nodes: Sequence[Node]) -> float:
    """Return the seconds of the calls alone."""
    took_s = seconds(lambda: calls_rule_by_rule(programs))
    clear(programs, nodes)
    return took_s


def calls_rule_by_rule(programs: Sequence[Program]) -> None:
    """Make the same classes, leaves and filters; leaves have no rate and loss."""
    for program in programs:
        netns.pushns(namespace_path(program.node).name)
        try:
            with IPRoute() as inside:
                calls(inside, program)
        finally:
            netns.popns()


def calls(inside: IPRoute, program: Program) -> None:
    index = inside.link_lookup(ifname=program.interface)[0]
    root = int(HANDLE.rstrip(":"), 16) << 16
    inside.tc("add", "htb", index, root, default=0)
    for htb in program.classes:
        add_class(inside, index, root, htb)
    for leaf in program.leaves:
        add_leaf(inside, index, root, leaf)
    for address, minor in program.matches:
        packed = int(ipaddress.IPv4Address(address))
        inside.tc(
            "add-filter", "u32", index, parent=root, prio=4, protocol=0x0800, target=root | minor,
            keys=[f"0x{packed:08x}/0xffffffff+16"],
        )  # fmt: skip


def add_class(inside: IPRoute, index: int, root: int, htb: HtbClass) -> None:
    # Its rates are bytes per second, in 32 bits.
    rate = min(htb.rate_bps // 8, 2**32 - 1)
    inside.tc(
        "add-class", "htb", index, root | htb.minor, parent=root | htb.parent,
        rate=rate, ceil=rate, burst=htb.burst_bytes, cburst=htb.ceil_burst_bytes,
        quantum=htb.quantum_bytes,
    )  # fmt: skip


def add_leaf(inside: IPRoute, index: int, root: int, leaf: Leaf) -> None:
    inside.tc(
        "add", "netem", index, leaf.minor << 16, parent=root | leaf.minor,
        delay=leaf.delay_us, limit=leaf.limit_packets,
    )  # fmt: skip


if __name__ == "__main__":
    main()
