"""Nodes as network namespaces on one bridge, and the transport that reaches them.

Where regions are joined by trunks a region has a router, one more namespace on the bridge. A node
sends what is for another region to its own region's router, whose queue for that region is the
trunk; from there it goes straight to its destination, and the answer by the other region's router.

Everything here is made inside a private mount and network namespace (or a guest kernel), so the
kernel takes all of it back when the last process of the session ends, however it ends.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, netns

from netbench.errors import TestbedError
from netbench.network import netlink
from netbench.network.queues import num_routers
from netbench.scenario.model import Network
from netbench.testbed.transport import COMMAND_TIMEOUT_S, Channel, NodeAddress

SUBNET = ipaddress.IPv4Network("10.77.0.0/16")
"""The data network; it exists only inside the session's own namespace."""

CONTROLLER_ADDRESS = str(SUBNET[-2])
"""The session itself, on the bridge. No filter matches it, so control traffic is not shaped."""

BRIDGE = "netbench"
INTERFACE = "eth0"
LOOPBACK_INDEX = 1  # the kernel makes lo first in every network namespace
NETNS_DIRECTORY = Path("/run/netns")
NO_GATEWAYS: Mapping[tuple[int, int], int] = {}

FORK_SERVER_START_S = 120.0
"""Deadline for importing torch and listening, by the session's clock, seconds."""


def node_addresses(names: Sequence[str]) -> tuple[NodeAddress, ...]:
    """The address of every node, in order."""
    if len(names) > SUBNET.num_addresses - 4:
        raise TestbedError(f"{len(names)} nodes do not fit the data network {SUBNET}")
    return tuple(
        NodeAddress(index=i, name=name, address=str(SUBNET[i + 1]), interface=INTERFACE)
        for i, name in enumerate(names)
    )


def router_addresses(network: Network) -> tuple[NodeAddress, ...]:
    """The address of every region's router, after those of the nodes; none without trunks."""
    first = network.num_nodes
    if first + num_routers(network) > SUBNET.num_addresses - 4:
        raise TestbedError(f"{first} nodes and their routers do not fit the data network {SUBNET}")
    return tuple(
        NodeAddress(
            index=first + region,
            name=f"router of {network.regions[region]}",
            address=str(SUBNET[first + region + 1]),
            interface=INTERFACE,
        )
        for region in range(num_routers(network))
    )


def gateways(network: Network) -> dict[tuple[int, int], int]:
    """(node, node of another region) -> the router between; empty without trunks."""
    if not num_routers(network):
        return {}
    regions = network.node_regions
    return {
        (src, dst): network.num_nodes + home
        for src, home in enumerate(regions)
        for dst, region in enumerate(regions)
        if region != home
    }


def namespace_path(node: int) -> Path:
    """The file that names the network namespace of `node`."""
    return NETNS_DIRECTORY / f"n{node}"


def build(
    nodes: Sequence[NodeAddress],
    mtu_bytes: int,
    gateways: Mapping[tuple[int, int], int] = NO_GATEWAYS,
) -> None:
    """Make a bridge and, per node, a namespace with one interface on it. Needs root.

    nodes: with the routers, if any. gateways: see `gateways`; others are reached straight.
    /run must be private to the session (a fresh tmpfs), so that no name can collide.
    """
    _add_namespaces(nodes)
    with IPRoute() as root:
        root.link("add", ifname=BRIDGE, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
        bridge = root.link_lookup(ifname=BRIDGE)[0]
        root.link("set", index=LOOPBACK_INDEX, state="up")
        for node in nodes:
            _add_interface(root, bridge, node, mtu_bytes)
        _tell_bridge(nodes)
        root.link("set", index=bridge, mtu=mtu_bytes, state="up")
        root.addr("add", index=bridge, address=CONTROLLER_ADDRESS, prefixlen=SUBNET.prefixlen)
    for node in nodes:
        _configure_inside(node, nodes, gateways)


def _add_namespaces(nodes: Sequence[NodeAddress]) -> None:
    # One batch: 64 namespaces take 0.04 s in a guest; pyroute2 forks itself for each, 4.4 s.
    _load("ip", [f"netns add {namespace_path(node.index).name}" for node in nodes])


def _tell_bridge(nodes: Sequence[NodeAddress]) -> None:
    """Where every node is. A bridge that learns is misled by a frame whose source address a link
    with corruption has damaged: a node was unreachable for two minutes."""
    lines = [f"link set dev v{node.index} learning off" for node in nodes]
    lines += [f"fdb add {_mac(node)} dev v{node.index} master static" for node in nodes]
    _load("bridge", lines)


def _load(command: str, lines: Sequence[str]) -> None:
    done = subprocess.run(
        [command, "-batch", "-"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TestbedError(f"`{command} -batch` failed: {done.stderr.strip()}")


def _add_interface(root: Any, bridge: int, node: NodeAddress, mtu_bytes: int) -> None:
    namespace, host_side = namespace_path(node.index).name, f"v{node.index}"
    peer = {
        "ifname": node.interface,
        "mtu": mtu_bytes,
        "net_ns_fd": namespace,
        "address": _mac(node),
    }
    root.link("add", ifname=host_side, kind="veth", mtu=mtu_bytes, peer=peer)
    root.link("set", index=root.link_lookup(ifname=host_side)[0], master=bridge, state="up")


def _configure_inside(
    node: NodeAddress, nodes: Sequence[NodeAddress], gateways: Mapping[tuple[int, int], int]
) -> None:
    netns.pushns(namespace_path(node.index).name)
    try:
        with IPRoute() as inside:
            interface = inside.link_lookup(ifname=node.interface)[0]
            inside.link("set", index=LOOPBACK_INDEX, state="up")
            inside.addr("add", index=interface, address=node.address, prefixlen=SUBNET.prefixlen)
            inside.link("set", index=interface, state="up")
            # Permanent: one kernel keeps at most 1024 learned neighbours for all its namespaces,
            # and 64 nodes have 4032. It also saves the links from ARP.
            for other in nodes:
                if other is not node:
                    inside.neigh(
                        "add",
                        ifindex=interface,
                        dst=other.address,
                        lladdr=_mac(other),
                        state="permanent",
                    )
                router = gateways.get((node.index, other.index))
                if router is not None:
                    inside.route(
                        "add",
                        dst=f"{other.address}/32",
                        gateway=nodes[router].address,
                        oif=interface,
                    )
    finally:
        netns.popns()


def _mac(node: NodeAddress) -> str:
    """A locally administered hardware address that spells the IPv4 address."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in node.address.split("."))


class SocketChannel:
    """A rank's channel over a connected stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("r", encoding="utf-8")

    def send(self, line: str) -> None:
        try:
            self._connection.sendall(line.encode() + b"\n")
        except OSError as error:
            raise TestbedError(f"a rank has gone: {error}") from error

    def receive(self) -> str | None:
        try:
            return self._reader.readline() or None
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        # shutdown, not only close: it wakes a thread that is blocked in receive().
        with suppress(OSError):  # the rank was faster
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def run(
    node: int, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
) -> tuple[int, str, str]:
    """Run a command in the namespace of `node`: `Transport.run`. Raises TestbedError."""
    # Without nsenter: in a guest, half of the time of a short command is starting it.
    with netlink.inside(namespace_path(node)):
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:  # 127: as a shell says it
            return 127, "", f"{argv[0]}: {error.strerror}"
    with process:
        try:
            stdout, stderr = process.communicate(stdin, timeout_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise TestbedError(
                f"node n{node}: no answer within {timeout_s:g} s from: {' '.join(argv)}"
            ) from error
        except BaseException:
            process.kill()
            raise
    return process.returncode, stdout, stderr


class NamespaceTransport:
    """Commands in namespaces; ranks forked by one server that imported torch once.

    trains: whether there will be such ranks, and not scripts.
    """

    def __init__(self, scratch: Path, environment: dict[str, str], trains: bool = True) -> None:
        self._socket_path = scratch / "ranks.sock"
        self._commands: list[subprocess.Popen[bytes]] = []
        self._server = None
        if trains:
            fork_server = ["--fork-server", str(self._socket_path)]
            self._server = subprocess.Popen(
                [sys.executable, "-m", "netbench.trainers", *fork_server],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
            )

    def run(
        self, node: int, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> tuple[int, str, str]:
        return run(node, argv, stdin, timeout_s)

    def start_rank(self, node: int, rank: int) -> Channel:
        connection = self._connect()
        channel = SocketChannel(connection)
        netns_path = str(namespace_path(node))
        channel.send(json.dumps({"op": "fork", "rank": rank, "netns": netns_path}))
        return channel

    def start_command(self, node: int, rank: int) -> Channel:
        here, there = socket.socketpair()
        with netlink.inside(namespace_path(node)), there:
            command = subprocess.Popen(
                [sys.executable, "-m", "netbench.trainers", "--command"],
                stdin=there.fileno(),
                stdout=there.fileno(),
            )
        self._commands.append(command)
        return SocketChannel(here)

    def _connect(self) -> socket.socket:
        assert self._server is not None
        deadline = time.monotonic() + FORK_SERVER_START_S
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(self._socket_path))
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                if self._server.poll() is not None:
                    raise TestbedError(
                        f"the fork server ended with status {self._server.returncode}"
                        " before it listened"
                    ) from None
                if time.monotonic() > deadline:
                    raise TestbedError("the fork server did not listen in time") from None
                time.sleep(0.05)
            else:
                return connection

    def close(self) -> None:
        started = [*self._commands, *([self._server] if self._server else [])]
        for process in started:
            process.kill()  # its ranks die with it; SIGTERM would leave one that is stopped
        for process in started:
            process.wait(timeout=10.0)
