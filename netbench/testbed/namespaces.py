"""Nodes as network namespaces on one bridge: how to build, reach and start ranks on them.

If regions are joined by trunks, each has a router: one more namespace on the bridge. A node sends
packets for another region to the router of its own region, whose queue for that region is the
trunk. From there they go straight to their destination. Answers take the router of the other
region.

Everything here is made inside a private mount and network namespace (or a guest kernel), so the
kernel removes it when the last process of the session ends, however it ends.
"""

import ipaddress
import select
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pyroute2 import IPRoute

from netbench.errors import TestbedError
from netbench.network.nodes import COMMAND_TIMEOUT_S, Channel, Completed
from netbench.network.shaping import netlink
from netbench.network.shaping.segments import Windows
from netbench.scenario.model import Network
from netbench.scenario.sharing import num_routers
from netbench.testbed.interface import NodeAddress
from netbench.testbed.lines import LineBuffer

SUBNET = ipaddress.IPv4Network("10.77.0.0/16")
"""The data network; it exists only inside the session's own namespace."""

CONTROLLER_ADDRESS = str(SUBNET[-2])
"""Address of the session on the bridge. No filter matches it, so control traffic is not shaped."""

PROC_SYS = Path("/proc/sys")
BRIDGE = "netbench"
INTERFACE = "eth0"
LOOPBACK_INDEX = 1  # the kernel makes lo first in every network namespace
CHUNK_BYTES = 1 << 16
KILL_TIMEOUT_S = 10.0
"""Deadline for killed processes to end, seconds."""

WINDOW_PORT = 26264
"""Port of `remember_windows`: unregistered, and below the ephemeral ports."""

REMEMBERED = ("rtt", "rttvar", "ssthresh", "reordering")
"""Metrics that TCP remembers of a peer beside the window. Source: linux/tcp_metrics.h."""


NETNS_DIRECTORY = Path("/run/netns")
HOSTS = Path("/run/netbench-hosts")

HOSTS_HEAD = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
"""

SET_HOST_NAME = 'echo "$0" > /proc/sys/kernel/hostname; exec "$@"'
"""Runs in its own UTS namespace, so that the node's name is its host name."""

NO_GATEWAYS: Mapping[tuple[int, int], int] = {}


def node_addresses(names: Sequence[str]) -> tuple[NodeAddress, ...]:
    """Return the address of every node, in order."""
    return tuple(_address(index, name) for index, name in enumerate(names))


def router_addresses(network: Network) -> tuple[NodeAddress, ...]:
    """Return the address of every region's router, after the nodes'; none without trunks."""
    return tuple(
        _address(network.num_nodes + region, f"router of {network.regions[region]}")
        for region in range(num_routers(network))
    )


def _address(index: int, name: str) -> NodeAddress:
    if index + 1 > SUBNET.num_addresses - 4:
        raise TestbedError(f"more nodes and routers than fit the data network {SUBNET}")
    return NodeAddress(index=index, name=name, address=str(SUBNET[index + 1]), interface=INTERFACE)


def gateways(network: Network) -> dict[tuple[int, int], int]:
    """Return (node, node of another region) -> the router between; empty without trunks."""
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
    """Return the file that names the network namespace of `node`."""
    return NETNS_DIRECTORY / f"n{node}"


def port_of(node: NodeAddress) -> str:
    """Return the bridge's port to a node or router, an interface of the session."""
    return f"v{node.index}"


def build(
    nodes: Sequence[NodeAddress],
    mtu_bytes: int,
    gateways: Mapping[tuple[int, int], int] = NO_GATEWAYS,
    windows: Windows | None = None,
) -> None:
    """Make a bridge and, per node, a namespace with one interface on it. Needs root.

    nodes: with the routers, if any. gateways: see `gateways`; other nodes are reached directly.
    windows: of TCP on the nodes' routes; None = the kernel's.
    /run must be private to the session (a fresh tmpfs), so that no name can collide.
    """
    names = {node: namespace_path(node.index).name for node in nodes}
    _ip_batch(f"netns add {name}" for name in names.values())
    with IPRoute() as root:
        root.link("add", ifname=BRIDGE, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
        bridge = root.link_lookup(ifname=BRIDGE)[0]
        without_ipv6(BRIDGE)
        root.link("set", index=LOOPBACK_INDEX, state="up")
        _ip_batch(
            f"link add {port_of(node)} mtu {mtu_bytes} type veth peer name {node.interface} "
            f"mtu {mtu_bytes} address {_mac(node)} netns {name}"
            for node, name in names.items()
        )
        for node in nodes:
            without_ipv6(port_of(node))
        _ip_batch(f"link set {port_of(node)} master {BRIDGE} up" for node in nodes)
        _fill_bridge(nodes)
        root.link("set", index=bridge, mtu=mtu_bytes, state="up")
        root.addr("add", index=bridge, address=CONTROLLER_ADDRESS, prefixlen=SUBNET.prefixlen)
    for node in nodes:
        with netlink.inside(namespace_path(node.index)):
            without_ipv6(node.interface)
            _ip_batch(_inside_lines(node, nodes, gateways, windows))


def remove(nodes: Sequence[NodeAddress]) -> None:
    """Remove what `build` has made."""
    _ip_batch(f"link del {port_of(node)}" for node in nodes)
    _ip_batch(f"netns del {namespace_path(node.index).name}" for node in nodes)
    checked(["ip", "link", "del", BRIDGE])


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
    checked(["mount", "--bind", str(HOSTS), "/etc/hosts"])


def named_command(node: NodeAddress, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` with the node's name as host name."""
    return ["unshare", "--uts", "--", "sh", "-c", SET_HOST_NAME, node.name, *argv]


def _fill_bridge(nodes: Sequence[NodeAddress]) -> None:
    """Enter every node in the bridge's table, and stop the bridge from learning. It learned from
    frames whose source address a link had corrupted: a node was unreachable for two minutes."""
    lines = [f"link set dev {port_of(node)} learning off\n" for node in nodes]
    lines += [f"fdb add {_mac(node)} dev {port_of(node)} master static\n" for node in nodes]
    checked(["bridge", "-batch", "-"], "".join(lines))


def _ip_batch(lines: Iterable[str]) -> None:
    """Run lines of `ip -batch`. 64 nodes take a seventh of the time that calls of pyroute2 took."""
    checked(["ip", "-batch", "-"], "".join(f"{line}\n" for line in lines))


def checked(command: Sequence[str], stdin: str = "") -> None:
    """Run a command that must succeed. Raises TestbedError with its stderr."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TestbedError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def without_ipv6(interface: str) -> None:
    """Keep the kernel from sending IPv6's own packets, which leave at random moments.

    With them, iterations of two runs of a plan differed by up to 0.54%. Raises TestbedError where
    /proc/sys cannot be written, as in some containers.
    """
    setting = PROC_SYS / "net" / "ipv6" / "conf" / interface / "disable_ipv6"
    if not setting.exists():
        return
    try:
        setting.write_text("1")
    except OSError as error:
        raise TestbedError(
            f"{setting}: cannot be written: {error.strerror}; in a container, start it with "
            "--privileged, or run with --testbed local:guest, which has a /proc/sys of its own"
        ) from error


def _inside_lines(
    node: NodeAddress,
    nodes: Sequence[NodeAddress],
    gateways: Mapping[tuple[int, int], int],
    windows: Windows | None,
) -> Iterator[str]:
    """Yield the lines of `ip -batch` that configure the namespace of a node."""
    device = f"dev {node.interface}"
    metrics = ""
    pairs: Mapping[tuple[int, int], int] = {}
    if windows is not None:
        metrics, pairs = _route_metrics(windows, windows.most_segments), windows.pairs
        yield f"link set lo mtu {windows.loopback_mtu_bytes}"
    yield "link set lo up"
    yield f"address add {node.address}/{SUBNET.prefixlen} {device}"
    yield f"link set {node.interface} up"
    if metrics:
        yield f"route replace {SUBNET} {device} scope link{metrics}"
    for other in nodes:
        # Permanent: one kernel keeps at most 1024 learned neighbours for all its namespaces, and
        # 64 nodes have 4032. It also saves the links from ARP.
        if other is not node:
            yield f"neighbour add {other.address} lladdr {_mac(other)} {device} nud permanent"
        router = gateways.get((node.index, other.index))
        if router is not None:
            yield f"route add {other.address} via {nodes[router].address} {device}{metrics}"
        most = pairs.get((node.index, other.index))
        if windows is not None and most is not None:
            own = _route_metrics(windows, most)
            yield f"route add {other.address} {device} scope link{own}"


def remember_windows(nodes: Sequence[NodeAddress]) -> None:
    """Open and close a connection between any two nodes, so that later ones obey the routes.

    Linux takes the largest window not from the route, but from what it remembers of a peer, and it
    starts to remember when a connection ends (`tcp_update_metrics`, net/ipv4/tcp_metrics.c). All it
    remembers is locked to the values of the route, so nothing else is passed on.
    """
    listeners = []
    for node in nodes:
        with netlink.inside(namespace_path(node.index)):
            backlog = len(nodes)
            listeners.append(socket.create_server((node.address, WINDOW_PORT), backlog=backlog))
    for number, node in enumerate(nodes):
        with netlink.inside(namespace_path(node.index)):
            for listener in listeners[number + 1 :]:
                with socket.create_connection(listener.getsockname()):
                    listener.accept()[0].close()
    for listener in listeners:
        listener.close()


def _route_metrics(windows: Windows, most_segments: int) -> str:
    """Return TCP's first and largest window as metrics of `ip route`. Linux obeys a locked largest
    one, and remembers none that is locked (`REMEMBERED`)."""
    locked = "".join(f" {name} lock 0" for name in REMEMBERED)
    return f" initcwnd {windows.first_segments} cwnd lock {most_segments}{locked}"


def _mac(node: NodeAddress) -> str:
    """Return a locally administered hardware address that contains the IPv4 address."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in node.address.split("."))


class SocketChannel:
    """A channel over a connected stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = LineBuffer()

    def send(self, line: str) -> None:
        try:
            self._connection.sendall(line.encode() + b"\n")
        except OSError as error:
            raise TestbedError(f"a rank has gone: {error}") from error

    def receive(self, timeout_s: float | None = None) -> str | None:
        """Return the next line; None at the end. Raises TestbedError if none comes in time."""
        while (line := self._lines.take()) is None:
            try:
                ready = timeout_s is None or select.select([self._connection], [], [], timeout_s)[0]
                if not ready:
                    raise TestbedError(f"silent for {timeout_s:g} s")
                chunk = self._connection.recv(CHUNK_BYTES)
            except OSError:
                return None
            if not chunk:
                return None
            self._lines.feed(chunk)
        return line

    def close(self) -> None:
        # shutdown, not only close: it wakes a thread that is blocked in receive().
        with suppress(OSError):  # the other end was faster
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class NamespaceNode:
    """The namespace of node `index`: a `netbench.network.nodes.Node`.

    started: processes of the commands that `open` started, for `kill_all`.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self.started: list[subprocess.Popen[bytes]] = []

    def run(
        self, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Completed:
        """Run a command to its end. Raises TestbedError."""
        # Without nsenter: in a guest, half of the time of a short command is starting it.
        with netlink.inside(namespace_path(self._index)):
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            except OSError as error:
                not_found = 127  # the status that a shell gives
                return Completed(not_found, "", f"{argv[0]}: {error.strerror}")
        with process:
            try:
                stdout, stderr = process.communicate(stdin, timeout_s)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise TestbedError(
                    f"node n{self._index}: no answer within {timeout_s:g} s from: {' '.join(argv)}"
                ) from error
            except BaseException:
                process.kill()
                raise
        return Completed(process.returncode, stdout, stderr)

    def open(self, argv: Sequence[str]) -> Channel:
        """Start a command that stays; its stderr is this process's. Raises NetbenchError."""
        with netlink.inside(namespace_path(self._index)):
            here, there = socket.socketpair()
            try:
                with there:
                    process = subprocess.Popen(argv, stdin=there.fileno(), stdout=there.fileno())
            except OSError as error:
                here.close()
                what = f"node n{self._index}: cannot start {argv[0]}: {error.strerror}"
                raise TestbedError(what) from error
        self.started.append(process)
        return SocketChannel(here)


def kill_all(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Kill processes and wait for their end; SIGTERM would leave one that is stopped.

    Raises TestbedError that names every process left after `KILL_TIMEOUT_S`.
    """
    left = list(processes)
    for process in left:
        process.kill()
    end_s = time.monotonic() + KILL_TIMEOUT_S
    for process in tuple(left):
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end_s - time.monotonic()))
            left.remove(process)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise TestbedError(f"killed, but not ended within {KILL_TIMEOUT_S:g} s: process {pids}")


def namespace_nodes(nodes: Sequence[NodeAddress]) -> tuple[NamespaceNode, ...]:
    """The nodes, and routers, of a network that was built here, by index."""
    return tuple(NamespaceNode(node.index) for node in nodes)
