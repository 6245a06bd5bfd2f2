"""The inside of a persistent network: build it, shape it, read it back, serve commands.

The counterpart of `testbed.persistent.client`, started as `testbed.runs.local_session` is. Events:

    phase      name, done, total
    ready      the network is shaped; lines are served
    error      message
"""

import os
import threading
import tty
from collections.abc import Mapping, Sequence
from typing import Any

from netbench.plan.serial import network_from_json
from netbench.scenario.model import Network
from netbench.testbed import namespaces
from netbench.testbed.interface import NodeAddress
from netbench.testbed.persistent.shells import serve_line
from netbench.testbed.runs.launch import Emit, carry_out, phase
from netbench.testbed.shaping import shape, tune


def serve(job: Mapping[str, Any], emit: Emit) -> None:
    """Build the network of a job and serve commands; does not return. Raises NetbenchError."""
    network = network_from_json(job["network"])
    nodes = network_addresses(network, job["node_names"])
    with phase(emit, "nodes", len(nodes)):
        namespaces.build(nodes, network.mtu_bytes, namespaces.gateways(network))
    namespaces.write_hosts(nodes, network.num_nodes)
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


if __name__ == "__main__":
    carry_out(serve)
