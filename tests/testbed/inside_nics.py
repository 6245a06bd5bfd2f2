"""NICs that several connections share: run in a guest in virtual time, as root, with /run private.

Prints one JSON object: name of a figure -> value, or a list of problems.
"""

from __future__ import annotations

import json
import math
import socket
import subprocess
import threading
import time
from dataclasses import replace

from netbench.network.shaping.apply import read_back
from netbench.network.shaping.netlink import inside
from netbench.network.shaping.segments import windows
from netbench.scenario.model import Link, Network
from netbench.testbed.ingress import dropped_at_ports, limit_ingress
from netbench.testbed.namespaces import (
    build,
    namespace_nodes,
    namespace_path,
    node_addresses,
    port_of,
)
from netbench.testbed.shaping import dropped_packets, programs, read, shape, tune, verify

NETWORK = Network(
    regions=("a",),
    links=((Link(one_way_delay_s=1e-4, bandwidth_bps=math.inf),),),
    node_regions=(0,) * 4,
    sharing="nic",
    nic_bps=(25e6, 25e6, 10e6, 25e6),
    mtu_bytes=640,
)
OTHERS = {
    "unlimited links": NETWORK,
    "slow links": replace(
        NETWORK, sharing="class-nic", links=((Link(one_way_delay_s=5e-3, bandwidth_bps=8e6),),)
    ),
    "slower NICs": replace(NETWORK, nic_bps=(20e6, 8e6, 20e6, 20e6)),
}
"""Each is shaped on top of the one before it."""

TOLERANCE = 0.02
NUM_MESSAGES = 4
MESSAGE = bytes(20 * (640 - 52))
"""Twenty segments."""

NODES = node_addresses([f"n{i}" for i in range(4)])
REACHED = namespace_nodes(NODES)


def problems(network: Network) -> list[str]:
    """Shape, read back and verify."""
    shape(REACHED, NODES, network, 1.0, fair=True)
    limit_ingress(NODES, network, 1.0)
    found = [
        problem
        for node in read_back(programs(NODES, network, 1.0, fair=True), REACHED, read=read)
        for problem in node.problems
    ]
    return [*found, *verdict(network)]


def verdict(network: Network) -> list[str]:
    """Return why the network is not trustworthy."""
    reasons: list[str] = verify(REACHED, NODES, network, 1.0, TOLERANCE, virtual=True)["reasons"]
    return reasons


def ends_s() -> list[float]:
    """Send messages from n0 to n1 at once, each on its own connection, with windows that were
    open before; return when each has come, seconds after the start, in order."""
    pairs = []
    for _ in range(NUM_MESSAGES):
        with inside(namespace_path(1)), socket.create_server((NODES[1].address, 0)) as listener:
            where = listener.getsockname()
            with inside(namespace_path(0)):
                pairs.append((socket.create_connection(where), listener.accept()[0]))
    start_s = time.monotonic() + 1.0
    found: list[float] = []

    def receive(here: socket.socket) -> None:
        left = len(MESSAGE)
        while left:
            left -= len(here.recv(left))
        found.append(time.monotonic() - start_s)

    def send(there: socket.socket) -> None:
        time.sleep(start_s - time.monotonic())
        there.sendall(MESSAGE)

    threads = [threading.Thread(target=receive, args=(here,)) for _, here in pairs]
    threads += [threading.Thread(target=send, args=(there,)) for there, _ in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600.0)
    return sorted(found)


def main() -> None:
    """Build once, and shape in turn."""
    build(NODES, NETWORK.mtu_bytes, windows=windows(NETWORK))
    tune(REACHED, NODES, NETWORK, 1.0)
    found: dict[str, object] = {name: problems(network) for name, network in OTHERS.items()}
    port = port_of(NODES[2])
    subprocess.run(["tc", "qdisc", "del", "dev", port, "root"], check=True)
    found["no limit on receiving"] = verdict(OTHERS["slower NICs"])
    found["drops"] = dropped_packets(REACHED, NODES, OTHERS["slower NICs"], 1.0, fair=True)
    found["drops at ports"] = dropped_at_ports()
    problems(NETWORK)
    found["in turn"] = ends_s()
    shape(REACHED, NODES, NETWORK, 1.0)
    found["in order of arrival"] = ends_s()
    limit_ingress(NODES, replace(NETWORK, sharing="pair"), 1.0)
    shown = subprocess.run(["tc", "qdisc", "show"], capture_output=True, text=True, check=True)
    found["limits left"] = shown.stdout.count("netem")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
