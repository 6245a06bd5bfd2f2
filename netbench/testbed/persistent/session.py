"""The inside of a persistent network: build it, shape it, read it back, serve commands.

The counterpart of `testbed.persistent.client`, started as `testbed.runs.local_session` is. Events:

    phase      name, done, total
    ready      the network is shaped; lines are served
    error      message
"""

from __future__ import annotations

import os
import threading
import tty
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from netbench.plan.serial import network_from_json
from netbench.scenario.model import Network
from netbench.testbed import namespaces
from netbench.testbed.interface import NodeAddress
from netbench.testbed.persistent.shells import serve_line
from netbench.testbed.runs.launch import Emit, carry_out, phase
from netbench.testbed.shaping import shape, tune

HOSTS = Path("/run/netbench-hosts")

HOSTS_HEAD = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
"""


def serve(job: Mapping[str, Any], emit: Emit) -> None:
    """Build the network of a job and serve commands; does not return. Raises NetbenchError."""
    network = network_from_json(job["network"])
    nodes = network_addresses(network, job["node_names"])
    with phase(emit, "nodes", len(nodes)):
        namespaces.build(nodes, network.mtu_bytes, namespaces.gateways(network))
    write_hosts(nodes, network.num_nodes)
    reached = namespaces.namespace_nodes(nodes)
    with phase(emit, "shape", len(nodes)):
        tune(reached, nodes, network, 1.0)
        shape(reached, nodes, network, 1.0)
    lines = [_open_line(line) for line in job["lines"]]
    threads = [threading.Thread(target=serve_line, args=(line, nodes)) for line in lines]
    for thread in threads:
        thread.start()
    emit("ready")
    for thread in threads:
        thread.join()


def _open_line(line: int | str) -> int:
    if isinstance(line, int):
        return line
    fd = os.open(line, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(fd)
    return fd


def network_addresses(network: Network, names: Sequence[str]) -> tuple[NodeAddress, ...]:
    """Return the nodes and routers of a persistent network."""
    return (*namespaces.node_addresses(names), *namespaces.router_addresses(network))


def hosts_text(nodes: Sequence[NodeAddress], num_nodes: int) -> str:
    """Return /etc/hosts: nodes by name and as node0, node1, ...; routers as router0, ..."""
    lines = []
    for node in nodes[:num_nodes]:
        names = dict.fromkeys((node.name, f"node{node.index}"))
        lines.append(f"{node.address}\t{' '.join(names)}\n")
    for router in nodes[num_nodes:]:
        lines.append(f"{router.address}\trouter{router.index - num_nodes}\n")
    return HOSTS_HEAD + "".join(lines)


def write_hosts(nodes: Sequence[NodeAddress], num_nodes: int) -> None:
    """Mount a file over /etc/hosts, inside the session's private mount namespace."""
    HOSTS.write_text(hosts_text(nodes, num_nodes))
    namespaces.checked(["mount", "--bind", str(HOSTS), "/etc/hosts"])


if __name__ == "__main__":
    carry_out(serve)
