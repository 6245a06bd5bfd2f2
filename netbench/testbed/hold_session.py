"""A held network from the inside: build it, shape it, read it back, serve commands until the end.

The counterpart of `netbench.testbed.hold`, started as `netbench.testbed.session` is. Events:

    phase      name, done, total
    held       the network is there; lines are served
    error      message
"""

from __future__ import annotations

import os
import subprocess
import threading
import tty
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from netbench.errors import TestbedError
from netbench.plan.serial import network_from_json
from netbench.scenario.model import Network
from netbench.testbed import namespaces
from netbench.testbed.job import Job, carry_out
from netbench.testbed.shaping import shape, tune
from netbench.testbed.shells import serve_line
from netbench.testbed.transport import NodeAddress

HOSTS = Path("/run/netbench-hosts")

HOSTS_HEAD = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
"""


class HoldSession(Job):
    """Builds the network of a job, and is there."""

    def __init__(self, job: Mapping[str, Any], output: TextIO) -> None:
        super().__init__(job, output)
        self._network = network_from_json(job["network"])

    def run(self) -> None:
        """Build and serve; does not return. Raises NetbenchError; the caller reports it."""
        network, names = self._network, self._job["node_names"]
        nodes = held_addresses(network, names)
        self.phase("nodes", 0, len(nodes))
        namespaces.build(nodes, network.mtu_bytes, namespaces.gateways(network))
        self.phase("nodes", len(nodes), len(nodes))
        write_hosts(nodes, network.num_nodes)
        run = namespaces.run
        self.phase("shape", 0, len(nodes))
        tune(run, nodes, network, 1.0)
        shape(run, nodes, network, 1.0)
        self.phase("shape", len(nodes), len(nodes))
        lines = [self._open_line(line) for line in self._job["lines"]]
        threads = [threading.Thread(target=serve_line, args=(line, nodes)) for line in lines]
        for thread in threads:
            thread.start()
        self.emit("held")
        for thread in threads:
            thread.join()

    def _open_line(self, line: int | str) -> int:
        if isinstance(line, int):
            return line
        fd = os.open(line, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(fd)
        return fd


def held_addresses(network: Network, names: Sequence[str]) -> tuple[NodeAddress, ...]:
    """The nodes and routers of a held network."""
    return (*namespaces.node_addresses(names), *namespaces.router_addresses(network))


def hosts_text(nodes: Sequence[NodeAddress], num_nodes: int) -> str:
    """/etc/hosts: each node by its name and as node0, node1, ...; routers as router0, ..."""
    lines = []
    for node in nodes[:num_nodes]:
        names = dict.fromkeys((node.name, f"node{node.index}"))
        lines.append(f"{node.address}\t{' '.join(names)}\n")
    for router in nodes[num_nodes:]:
        lines.append(f"{router.address}\trouter{router.index - num_nodes}\n")
    return HOSTS_HEAD + "".join(lines)


def write_hosts(nodes: Sequence[NodeAddress], num_nodes: int) -> None:
    """Put names over /etc/hosts, seen only inside the session's private mount namespace."""
    HOSTS.write_text(hosts_text(nodes, num_nodes))
    mount = ["mount", "--bind", str(HOSTS), "/etc/hosts"]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TestbedError(f"nodes get no names: {done.stderr.strip()}")


if __name__ == "__main__":
    carry_out(HoldSession)
