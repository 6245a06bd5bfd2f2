"""Regions joined by trunks, measured: run in a guest in virtual time, as root, with /run private.

Prints one JSON object: name of a figure -> [measured, expected]. All sockets are this process's
own, each made in the namespace of its node, so every time is by one clock.
"""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
from pyroute2 import netns

from netbench.network.shaping.apply import read_back
from netbench.scenario.model import Link, Network
from netbench.testbed.interface import NodeAddress
from netbench.testbed.namespaces import (
    build,
    gateways,
    namespace_nodes,
    namespace_path,
    node_addresses,
    router_addresses,
)
from netbench.testbed.shaping import dropped_packets, programs, shape, tune

INSIDE = Link(one_way_delay_s=0.001, bandwidth_bps=1e9)
EAST, WEST = (
    Link(one_way_delay_s=0.01, bandwidth_bps=200e6),
    Link(one_way_delay_s=0.02, bandwidth_bps=100e6),
)
TO_C = Link(one_way_delay_s=0.005, bandwidth_bps=50e6)
NETWORK = Network(
    regions=("a", "b", "c"),
    links=((INSIDE, EAST, TO_C), (WEST, INSIDE, TO_C), (TO_C, TO_C, INSIDE)),
    node_regions=(0, 0, 0, 0, 1, 1, 1, 1, 2),
    sharing="trunk",
    nic_bps=(math.inf,) * 9,
)
PAYLOAD, FRAME = 1448, 1514
DATAGRAM = bytes(56)
DATAGRAM_BITS = 8 * (len(DATAGRAM) + 8 + 20 + 14)
"""With its UDP, IP and Ethernet headers."""

WARMUP_BYTES, TOTAL_BYTES = 8_000_000, 16_000_000

Figures = dict[str, tuple[float, float]]


def addresses() -> tuple[NodeAddress, ...]:
    """Nine nodes and three routers."""
    return (*node_addresses([f"n{i}" for i in range(9)]), *router_addresses(NETWORK))


def socket_on(node: int, kind: socket.SocketKind) -> socket.socket:
    """A socket of the node's network, bound to its address."""
    netns.pushns(namespace_path(node).name)
    try:
        made = socket.socket(socket.AF_INET, kind)
        made.bind((addresses()[node].address, 0))
        return made
    finally:
        netns.popns()


def one_way_s(src: int, dst: int) -> float:
    """The least of five datagrams."""
    least_s = math.inf
    with socket_on(src, socket.SOCK_DGRAM) as there, socket_on(dst, socket.SOCK_DGRAM) as here:
        for _ in range(5):
            sent_s = time.monotonic()
            there.sendto(DATAGRAM, here.getsockname())
            here.recv(100)
            least_s = min(least_s, time.monotonic() - sent_s)
    return least_s


class Flow(threading.Thread):
    """One transfer, source to destination; when how many bytes had come."""

    def __init__(self, src: int, dst: int) -> None:
        super().__init__()
        with socket_on(dst, socket.SOCK_STREAM) as listener:
            listener.listen()
            self._there = socket_on(src, socket.SOCK_STREAM)
            self._there.connect(listener.getsockname())
            self._here, _ = listener.accept()
        self.at_s: list[float] = []
        self.received: list[int] = []

    def run(self) -> None:
        sender = threading.Thread(target=self._there.sendall, args=(bytes(TOTAL_BYTES),))
        sender.start()
        count = 0
        while count < TOTAL_BYTES:
            count += len(self._here.recv(1 << 16))
            self.at_s.append(time.monotonic())
            self.received.append(count)
        sender.join()
        self._there.close()
        self._here.close()


def rate_bps(pairs: Mapping[int, int], dsts: Sequence[int]) -> float:
    """A flow per pair, source to destination, all at once: payload of those to `dsts` together,
    bit/s, from when all of these have had their warm-up until the first of them ends."""
    flows = {dst: Flow(src, dst) for src, dst in pairs.items()}
    for flow in flows.values():
        flow.start()
    for flow in flows.values():
        flow.join(600.0)
    wanted = [flows[dst] for dst in dsts]
    begin_s = max(float(np.interp(WARMUP_BYTES, flow.received, flow.at_s)) for flow in wanted)
    end_s = min(flow.at_s[-1] for flow in wanted)
    counts = [np.interp((begin_s, end_s), flow.at_s, flow.received) for flow in wanted]
    return 8 * float(sum(last - first for first, last in counts)) / (end_s - begin_s)


def figures() -> Figures:
    """Alone, together, and beside each other."""
    found: Figures = {}

    def add(name: str, measured_bps: float, link: Link) -> None:
        found[f"{name}, bit/s"] = measured_bps, link.bandwidth_bps * PAYLOAD / FRAME

    for name, src, dst, link in (("east", 0, 4, EAST), ("west", 4, 0, WEST), ("in", 0, 1, INSIDE)):
        expected_s = link.one_way_delay_s + DATAGRAM_BITS / link.bandwidth_bps
        found[f"{name} one way, s"] = one_way_s(src, dst), expected_s
        add(f"{name} alone", rate_bps({src: dst}, [dst]), link)
    add("four east", rate_bps({0: 4, 1: 5, 2: 6, 3: 7}, [4, 5, 6, 7]), EAST)
    # Those beside are slower, so they are there all the time.
    add("in a beside east", rate_bps({0: 5, 1: 6, 2: 3}, [3]), INSIDE)
    add("in b beside east", rate_bps({0: 5, 1: 6, 4: 7}, [7]), INSIDE)
    add("east beside to c", rate_bps({0: 4, 1: 8}, [4]), EAST)
    add("to c", rate_bps({0: 4, 1: 8}, [8]), TO_C)
    return found


def main() -> None:
    """Build, shape, measure."""
    nodes = addresses()
    build(nodes, NETWORK.mtu_bytes, gateways(NETWORK))
    reached = namespace_nodes(nodes)
    tune(reached, nodes, NETWORK, 1.0)
    shape(reached, nodes, NETWORK, 1.0)
    found = figures()
    found["drops"] = float(dropped_packets(reached, nodes, NETWORK, 1.0)), 0.0
    back = read_back(programs(nodes, NETWORK, 1.0), reached)
    found["programs"] = float(len(back)), 12.0
    print(json.dumps(found))


if __name__ == "__main__":
    main()
