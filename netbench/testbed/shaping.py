"""Give the nodes of a session a network, and verify it.

`nodes` are the network's nodes and, after them, its routers (`namespaces.router_addresses`).
`reached` are the same, to run commands on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from netbench.errors import NetworkError
from netbench.network.nodes import DEADLINE_S, Node, all_or_error, at_once, output_of
from netbench.network.probing.dynamics import Messages, check_messages
from netbench.network.probing.measure import Endpoints, Pace, measure
from netbench.network.probing.probe import PORT as PROBE_PORT
from netbench.network.probing.samples import sample_links
from netbench.network.probing.verify import evaluate, with_checks
from netbench.network.shaping import netlink
from netbench.network.shaping.apply import apply, read_back
from netbench.network.shaping.program import Program, compile_programs
from netbench.network.shaping.readback import KernelState
from netbench.network.traces.trace import Change, replay_sysctls
from netbench.scenario.model import Network
from netbench.scenario.sharing import num_routers
from netbench.testbed.interface import STORE_PORT, NodeAddress
from netbench.testbed.namespaces import namespace_path

FIRST_PORT, LAST_PORT = 10_000, 60_000
"""Ports that are divided among the nodes; Linux's own range is 32768-60999. They suffice for a
rank's listener and its connections to 60 others at 8 ranks per node."""

ROUTER_SYSCTLS = {
    # First: it resets other settings of the namespace to their defaults.
    "net.ipv4.ip_forward": "1",
    "net.ipv4.conf.all.send_redirects": "0",
    "net.ipv4.conf.{interface}.send_redirects": "0",
}
"""Settings of a router. It forwards packets out of the interface they came in by, and must not
redirect their senders to the direct path."""

BEHIND_ROUTER_SYSCTLS = {
    "net.ipv4.conf.all.accept_redirects": "0",
    "net.ipv4.conf.{interface}.accept_redirects": "0",
}
"""Settings of a node behind a router."""


def tune(
    reached: Sequence[Node],
    nodes: Sequence[NodeAddress],
    network: Network,
    scale: float,
    changes: Sequence[Change] = (),
) -> None:
    """Set TCP's limits on every node. Connections that exist already keep the old ones.

    changes: of the network, later. Raises NetworkError that lists every node that failed.
    """
    tasks = {}
    for node in nodes:
        script = _script(node_sysctls(node, network, scale, changes))
        tasks[node.index] = partial(output_of, reached[node.index], ("sh",), script)
    all_or_error(at_once(tasks, DEADLINE_S), "setting TCP's limits")


def node_sysctls(
    node: NodeAddress, network: Network, scale: float, changes: Sequence[Change] = ()
) -> dict[str, str]:
    """Return the settings of a node or router by name, in the order in which to make them."""
    common = replay_sysctls(network, changes, scale)
    if node.index >= network.num_nodes:
        return {**_of_interface(ROUTER_SYSCTLS, node), **common}
    behind = _of_interface(BEHIND_ROUTER_SYSCTLS, node) if num_routers(network) else {}
    ports = port_range(node.index, network.num_nodes)
    # A connection that happened to use a port of these would keep its server from starting.
    reserved = f"{PROBE_PORT},{STORE_PORT}"
    ranges = {"ip_local_port_range": ports, "ip_local_reserved_ports": reserved}
    return {**common, **behind, **{f"net.ipv4.{name}": value for name, value in ranges.items()}}


def _of_interface(settings: Mapping[str, str], node: NodeAddress) -> dict[str, str]:
    return {name.format(interface=node.interface): value for name, value in settings.items()}


def port_range(node: int, num_nodes: int) -> str:
    """Return the port range of a node, "first last". Ranges are disjoint and in node order.

    Of two gloo ranks the one with the lower port opens the connection, and TCP's delays depend on
    which one it is. If the kernel drew all ports from one range, runs would not repeat.
    """
    width = (LAST_PORT - FIRST_PORT) // num_nodes
    first = FIRST_PORT + node * width
    return f"{first} {first + width - 1}"


def _script(settings: Mapping[str, str]) -> str:
    files = {f"/proc/sys/{name.replace('.', '/')}": value for name, value in settings.items()}
    # A kernel too old for a setting does not have the feature either that it turns off.
    lines = [f"[ ! -e {file} ] || echo {value} > {file}" for file, value in files.items()]
    return "\n".join(["set -e", *lines, ""])


def shape(
    reached: Sequence[Node],
    nodes: Sequence[NodeAddress],
    network: Network,
    scale: float,
    *,
    fair: bool = False,
) -> None:
    """Apply the network to all nodes and read it back. fair: see `programs`.

    Raises NetworkError that lists every node that failed or has another configuration.
    """
    wanted = programs(nodes, network, scale, fair=fair)
    apply(wanted, reached, read=read)
    wrong = [found for found in read_back(wanted, reached, read=read) if found.problems]
    if wrong:
        lines = [f"  {nodes[w.node].name}: {'; '.join(w.problems)}" for w in wrong]
        raise NetworkError(
            "\n".join(["the kernel does not have the planned configuration:", *lines])
        )


def read(program: Program) -> KernelState:
    """Read the configuration of a node. Its kernel is this one, whatever way commands get there."""
    return netlink.read(namespace_path(program.node), program.interface)


def dropped_packets(
    reached: Sequence[Node],
    nodes: Sequence[NodeAddress],
    network: Network,
    scale: float,
    *,
    fair: bool = False,
) -> int:
    """Count packets that shaped queues dropped since `shape`, without the configured loss."""
    found = read_back(programs(nodes, network, scale, fair=fair), reached, read=read)
    return sum(node.dropped_packets for node in found)


def programs(
    nodes: Sequence[NodeAddress], network: Network, scale: float, *, fair: bool = False
) -> tuple[Program, ...]:
    """Compile the tc configuration of every node and router.

    fair: connections of a NIC are served in turn (`program.compile_program`).
    """
    addresses = [(node.address,) for node in nodes]
    return compile_programs(network, addresses, nodes[0].interface, scale, fair=fair)


def verify(
    reached: Sequence[Node],
    nodes: Sequence[NodeAddress],
    network: Network,
    scale: float,
    tolerance: float,
    virtual: bool,
    messages: Messages | None = None,
) -> dict[str, Any]:
    """See `Testbed.verify`. virtual: time is, so links may be measured side by side, and NICs limit
    what nodes receive, too."""
    endpoints = Endpoints(addresses=[(node.address,) for node in nodes], nodes=reached)
    pace = Pace(concurrent=virtual)
    samples = sample_links(network, ingress=virtual)
    measurements = measure(network, samples, endpoints, scale, pace=pace)
    verdict = evaluate(measurements, network, scale, tolerance)
    if messages is not None:
        verdict = with_checks(verdict, check_messages(messages, endpoints))
    return asdict(verdict)
