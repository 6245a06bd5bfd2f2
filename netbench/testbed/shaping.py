"""Give a session's nodes the network of a plan, and prove that they have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from netbench.errors import NetworkError
from netbench.network.apply import apply, read_back
from netbench.network.command import DEADLINE_S, all_or_error, at_once, output_of
from netbench.network.measure import measure
from netbench.network.program import Program, compile_programs, sysctls
from netbench.network.verify import evaluate, sample_links
from netbench.plan.collective import Experiment
from netbench.testbed.transport import NodeAddress, Transport

FIRST_PORT, LAST_PORT = 10_000, 60_000
"""Shared out between the nodes; Linux's own range is 32768-60999. Room for a rank's listener and
its connections to 60 others at 8 ranks a node."""


def tune(transport: Transport, nodes: Sequence[NodeAddress], plan: Experiment) -> None:
    """Set what TCP needs on every node; before any connection is made, which keeps what it found.

    Raises NetworkError that lists every node that failed.
    """
    common = sysctls(plan.network, plan.scale)
    tasks = {}
    for node in nodes:
        ports = port_range(node.index, len(nodes))
        script = _script({**common, "net.ipv4.ip_local_port_range": ports})
        tasks[node.index] = partial(output_of, transport.run, node.index, ("sh",), script)
    all_or_error(at_once(tasks, DEADLINE_S), "setting TCP's limits")


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


def shape(transport: Transport, nodes: Sequence[NodeAddress], plan: Experiment) -> None:
    """Apply the plan's network to all nodes and read it back.

    Raises NetworkError that lists every node that failed, or holds something else.
    """
    wanted = _programs(nodes, plan)
    apply(wanted, transport.run)
    wrong = [found for found in read_back(wanted, transport.run) if found.problems]
    if wrong:
        lines = [f"  {nodes[w.node].name}: {'; '.join(w.problems)}" for w in wrong]
        raise NetworkError("\n".join(["the kernel holds something else than the plan:", *lines]))


def dropped_packets(transport: Transport, nodes: Sequence[NodeAddress], plan: Experiment) -> int:
    """Packets the shaped queues dropped since `shape`, beside the loss that was asked for."""
    return sum(found.dropped_packets for found in read_back(_programs(nodes, plan), transport.run))


def _programs(nodes: Sequence[NodeAddress], plan: Experiment) -> tuple[Program, ...]:
    addresses = [(node.address,) for node in nodes]
    return compile_programs(plan.network, addresses, nodes[0].interface, plan.scale)


def verify(
    transport: Transport,
    nodes: Sequence[NodeAddress],
    plan: Experiment,
    tolerance: float,
    virtual: bool,
) -> dict[str, Any]:
    """Measure a sample of links of every class: `network.verify.Probe` as JSON data."""
    measurements = measure(
        plan.network,
        sample_links(plan.network),
        [(node.address,) for node in nodes],
        transport.run,
        plan.scale,
        at_the_same_time=virtual,
    )
    return evaluate(measurements, plan.network, plan.scale, tolerance).to_dict()
