"""Give a session's nodes a network, and prove that they have it.

`nodes` are the network's nodes and, after them, its routers (`namespaces.router_addresses`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from netbench.errors import NetworkError
from netbench.network import netlink
from netbench.network.apply import apply, read_back
from netbench.network.command import DEADLINE_S, Run, all_or_error, at_once, output_of
from netbench.network.measure import measure
from netbench.network.program import Program, compile_programs
from netbench.network.queues import num_routers
from netbench.network.readback import Found
from netbench.network.trace import Change, replay_sysctls
from netbench.network.verify import evaluate, sample_links
from netbench.scenario.model import Network
from netbench.testbed.namespaces import namespace_path
from netbench.testbed.transport import NodeAddress

FIRST_PORT, LAST_PORT = 10_000, 60_000
"""Shared out between the nodes; Linux's own range is 32768-60999. Room for a rank's listener and
its connections to 60 others at 8 ranks a node."""


ROUTER_SYSCTLS = {
    # First: it sets others of the namespace back to their defaults.
    "net.ipv4.ip_forward": "1",
    "net.ipv4.conf.all.send_redirects": "0",
    "net.ipv4.conf.{interface}.send_redirects": "0",
}
"""Of a router, which sends packets out by the interface they came in: it must not tell their
senders of the way without it."""

BEHIND_ROUTER_SYSCTLS = {
    "net.ipv4.conf.all.accept_redirects": "0",
    "net.ipv4.conf.{interface}.accept_redirects": "0",
}
"""Of a node that sends through one."""


def tune(
    run: Run,
    nodes: Sequence[NodeAddress],
    network: Network,
    scale: float,
    changes: Sequence[Change] = (),
) -> None:
    """Set what TCP needs on every node; before any connection is made, which keeps what it found.

    changes: what befalls the network later. Raises NetworkError that lists every node that failed.
    """
    tasks = {}
    for node in nodes:
        script = _script(node_sysctls(node, network, scale, changes))
        tasks[node.index] = partial(output_of, run, node.index, ("sh",), script)
    all_or_error(at_once(tasks, DEADLINE_S), "setting TCP's limits")


def node_sysctls(
    node: NodeAddress, network: Network, scale: float, changes: Sequence[Change] = ()
) -> dict[str, str]:
    """All settings of a node or router, by name, in the order in which they are to be made."""
    common = replay_sysctls(network, changes, scale)
    if node.index >= network.num_nodes:
        return {**_of_interface(ROUTER_SYSCTLS, node), **common}
    behind = _of_interface(BEHIND_ROUTER_SYSCTLS, node) if num_routers(network) else {}
    ports = port_range(node.index, network.num_nodes)
    return {**common, **behind, "net.ipv4.ip_local_port_range": ports}


def _of_interface(settings: Mapping[str, str], node: NodeAddress) -> dict[str, str]:
    return {name.format(interface=node.interface): value for name, value in settings.items()}


def port_range(node: int, num_nodes: int) -> str:
    """The ports of a node, none of them another's, in node order: "first last".

    Of two gloo ranks the one with the lower port opens the connection, and TCP's delays depend on
    who did. With ports from one range, drawn by the kernel, runs would not repeat.
    """
    width = (LAST_PORT - FIRST_PORT) // num_nodes
    first = FIRST_PORT + node * width
    return f"{first} {first + width - 1}"


def _script(settings: Mapping[str, str]) -> str:
    files = {f"/proc/sys/{name.replace('.', '/')}": value for name, value in settings.items()}
    # A kernel too old to have a setting has not what it turns off either.
    lines = [f"[ ! -e {file} ] || echo {value} > {file}" for file, value in files.items()]
    return "\n".join(["set -e", *lines, ""])


def shape(run: Run, nodes: Sequence[NodeAddress], network: Network, scale: float) -> None:
    """Apply the network to all nodes and read it back.

    Raises NetworkError that lists every node that failed, or holds something else.
    """
    wanted = programs(nodes, network, scale)
    apply(wanted, run, read=read)
    wrong = [found for found in read_back(wanted, run, read=read) if found.problems]
    if wrong:
        lines = [f"  {nodes[w.node].name}: {'; '.join(w.problems)}" for w in wrong]
        raise NetworkError("\n".join(["the kernel holds something else than the plan:", *lines]))


def read(program: Program) -> Found:
    """What a node of this session holds. Its kernel is this one, however commands get there."""
    return netlink.read(namespace_path(program.node), program.interface)


def dropped_packets(run: Run, nodes: Sequence[NodeAddress], network: Network, scale: float) -> int:
    """Packets the shaped queues dropped since `shape`, beside the loss that was asked for."""
    found = read_back(programs(nodes, network, scale), run, read=read)
    return sum(node.dropped_packets for node in found)


def programs(nodes: Sequence[NodeAddress], network: Network, scale: float) -> tuple[Program, ...]:
    """The shaping program of every node and router."""
    addresses = [(node.address,) for node in nodes]
    return compile_programs(network, addresses, nodes[0].interface, scale)


def verify(
    run: Run,
    nodes: Sequence[NodeAddress],
    network: Network,
    scale: float,
    tolerance: float,
    virtual: bool,
) -> dict[str, Any]:
    """Measure a sample of links of every class: `network.verify.Probe` as JSON data."""
    measurements = measure(
        network,
        sample_links(network),
        [(node.address,) for node in nodes],
        run,
        scale,
        at_the_same_time=virtual,
    )
    return evaluate(measurements, network, scale, tolerance).to_dict()
