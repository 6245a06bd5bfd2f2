"""Testbeds on this machine: a namespace per node, shaped by the kernel this process runs on.

`NamespaceTestbed` forks ranks into the namespaces. `testbed.ssh.local_sshd.SshTestbed` reaches
them through an sshd per node, as a cluster would.
"""

import json
import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netbench.errors import TestbedError
from netbench.network.nodes import Channel, Node
from netbench.network.probing.dynamics import Messages
from netbench.network.shaping import netlink
from netbench.network.shaping.segments import windows
from netbench.scenario.model import Network
from netbench.testbed import namespaces, shaping
from netbench.testbed.ingress import dropped_at_ports, limit_ingress
from netbench.testbed.interface import Clocks, NodeAddress
from netbench.testbed.namespaces import SocketChannel, kill_all, namespace_path
from netbench.testbed.network import VIRTUAL_TIME
from netbench.testbed.ranks.hangs import Activity, read_activity
from netbench.testbed.ranks.scripts import inherited_environment

FORK_SERVER_START_S = 120.0
"""Deadline for importing torch and listening, by the session's clock, seconds."""

START_MARGIN_S = {"guest-virtual": 0.05, "guest-real": 0.5, "native": 0.5}
"""`Testbed.start_margin_s` by name. In virtual time reading an order costs nothing."""

SCRATCH = Path("/run/netbench")
"""Private to a session, as /run is."""

TRAINER = ("-m", "netbench.trainers")
SCRIPT_STARTER = (*TRAINER, "--command")
"""Arguments of the Python that becomes a rank, or starts the script of one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSetup:
    """Settings of new ranks. environment: added to theirs. scripts: they run the user's script.
    modules: those that they need (`plan.experiment.rank_modules`)."""

    environment: Mapping[str, str]
    scripts: bool = False
    modules: Sequence[str] = ()

    @property
    def command(self) -> list[str]:
        """The command of one rank."""
        return [sys.executable, *(SCRIPT_STARTER if self.scripts else TRAINER)]


class LocalTestbed(ABC):
    """Base of local testbeds: everything of `interface.Testbed` but starting ranks."""

    def __init__(
        self,
        names: Sequence[str],
        network: Network,
        *,
        name: str,
        tolerance: float,
        ranks: RankSetup,
    ) -> None:
        self._ranks = ranks
        self.nodes = namespaces.node_addresses(names)
        self.name = name
        self.tolerance = tolerance
        self.start_margin_s = START_MARGIN_S[name]
        self._with_routers = (*self.nodes, *namespaces.router_addresses(network))
        self._shaped: tuple[Network, float] | None = None
        SCRATCH.mkdir(mode=0o700)
        namespaces.build(
            self._with_routers,
            network.mtu_bytes,
            namespaces.gateways(network),
            windows(network) if network.tcp.acts or self._is_virtual else None,
        )
        namespaces.write_hosts(self._with_routers, network.num_nodes)
        self._start()

    @abstractmethod
    def _start(self) -> None:
        """Start what reaches the nodes."""

    @property
    @abstractmethod
    def _reached(self) -> Sequence[Node]:
        """All nodes, and the routers after them."""

    @abstractmethod
    def start_rank(self, node: int, rank: int) -> Channel:
        """See `Testbed`."""

    @abstractmethod
    def close(self) -> None:
        """See `Testbed`."""

    @property
    def _is_virtual(self) -> bool:
        """True if time is: its timers are never late."""
        return self.name == VIRTUAL_TIME

    def tune(self, network: Network, scale: float) -> None:
        shaping.tune(self._reached, self._with_routers, network, scale)
        if network.tcp.acts:
            namespaces.remember_windows(self.nodes)

    def shape(self, network: Network, scale: float) -> None:
        shaping.shape(self._reached, self._with_routers, network, scale, fair=self._is_virtual)
        if self._is_virtual:
            limit_ingress(self._with_routers, network, scale)
        self._shaped = network, scale

    def verify(
        self, network: Network, scale: float, messages: Messages | None = None
    ) -> dict[str, Any]:
        nodes, virtual = self._with_routers, self._is_virtual
        return shaping.verify(
            self._reached, nodes, network, scale, self.tolerance, virtual, messages
        )

    def dropped_packets(self) -> int:
        if self._shaped is None:
            return 0
        fair = self._is_virtual
        sent = shaping.dropped_packets(self._reached, self._with_routers, *self._shaped, fair=fair)
        return sent + dropped_at_ports()

    def sent_bytes(self) -> list[int]:
        return [sent_bytes(node) for node in self.nodes]

    def host_use(self) -> Mapping[int, dict[str, Any]]:
        return {}

    def activity(self) -> Activity:
        return read_activity()

    def publish(self, name: str, text: str) -> str:
        path = SCRATCH / name
        path.write_text(text)
        return str(path)

    def environment(self, node: int) -> Mapping[str, str]:
        return inherited_environment(sys.executable, os.environ)

    def clocks(self) -> Clocks:
        return Clocks.shared()


def sent_bytes(node: NodeAddress) -> int:
    """Bytes a node of this machine has sent over its interface, headers included."""
    with netlink.inside(namespace_path(node.index)):
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    for line in lines:
        name, _, counts = line.partition(":")
        if name.strip() == node.interface:
            return int(counts.split()[8])  # after eight counters of received packets
    raise TestbedError(f"{node.name} has no interface {node.interface}")


class NamespaceTestbed(LocalTestbed):
    """Ranks in namespaces: forked by one server that imported torch once, or scripts."""

    def _start(self) -> None:
        self._namespaces = namespaces.namespace_nodes(self._with_routers)
        self._server = None if self._ranks.scripts else ForkServer(self._ranks)

    @property
    def _reached(self) -> Sequence[Node]:
        return self._namespaces

    def start_rank(self, node: int, rank: int) -> Channel:
        if self._server is None:
            command = namespaces.named_command(self.nodes[node], self._ranks.command)
            return self._namespaces[node].open(command)
        return self._server.fork(rank, node)

    def close(self) -> None:
        servers = [] if self._server is None else [self._server.process]
        kill_all([*(process for node in self._namespaces for process in node.started), *servers])


class ForkServer:
    """A process that has imported torch and forks ranks: importing it per rank takes too long.

    process: kill it to end the ranks too.
    """

    def __init__(self, ranks: RankSetup, scratch: Path = SCRATCH) -> None:
        self._socket_path = scratch / "ranks.sock"
        self.process = subprocess.Popen(
            [sys.executable, *TRAINER, "--fork-server", str(self._socket_path), *ranks.modules],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **ranks.environment},
        )

    def fork(self, rank: int, node: int) -> Channel:
        """Start a rank in the namespace of a node."""
        channel = SocketChannel(self._connect())
        netns_path = str(namespace_path(node))
        channel.send(json.dumps({"op": "fork", "rank": rank, "netns": netns_path}))
        return channel

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + FORK_SERVER_START_S
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(self._socket_path))
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                if self.process.poll() is not None:
                    raise TestbedError(
                        f"the fork server ended with status {self.process.returncode}"
                        " before it listened"
                    ) from None
                if time.monotonic() > deadline:
                    raise TestbedError("the fork server did not listen in time") from None
                time.sleep(0.05)
            else:
                return connection
