"""The machines that play the nodes of a run: hosts, or namespaces into which hosts are divided.

The agent makes the namespaces, under the lease of the host's data interface, and removes them with
it (`network.remote.agent.division`). Each is then a machine like any other: an agent shapes it, a
node server starts its ranks, probes measure it. It has a connection of its own to the host, because
sshd allows ten sessions per connection.
"""

import json
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from netbench.errors import NetbenchError, TestbedError
from netbench.network.nodes import COMMAND_TIMEOUT_S, Completed, all_or_error, at_once, split
from netbench.network.remote.agent.division import INTERFACE
from netbench.network.remote.deployer import Machine
from netbench.network.remote.facts import Facts
from netbench.network.remote.fleet import Cleared, Fleet
from netbench.network.remote.preflight import Deviation, preflight
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.inventory import HOST_PREFIX, ROUTES, VXLAN, Inventory
from netbench.testbed.ssh.machines import Hosts
from netbench.testbed.ssh.nodes import HostChannel, HostNode
from netbench.testbed.ssh.scenario_hosts import fleet_of, owner_of

ASK_S = 90.0
"""Deadline for all hosts to report their environment and GPUs, seconds."""

VXLAN_BYTES = {4: 50, 6: 70}
"""Bytes that VXLAN adds to a packet, by version of IP (RFC 7348): Ethernet, IP, UDP, VXLAN."""

VNIS = 1 << 24
"""Number of network identifiers of VXLAN."""

ASK = """\
import json, os, shutil, subprocess
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
gpus = [gpu for gpu in (visible or "").split(",") if gpu]
if visible is None and shutil.which("nvidia-smi"):
    ask = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    done = subprocess.run(ask, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    gpus = done.stdout.split() if done.returncode == 0 else []
print(json.dumps([dict(os.environ), gpus]))
"""
"""Program for any Python: print the login's environment, and the GPUs it may use."""

Check = Callable[[Sequence[Deviation], Sequence[str]], None]
"""Takes deviations and the names of their machines. Raises TestbedError if one is an error."""


class Players(AbstractContextManager["Players"]):
    """Players of `count` nodes, on the first hosts of an inventory.

    names, logins, nodes, fleet: of the players, by node. A namespace is there after `divide`.
    hosts: connections to the hosts themselves. num_hosts: of them. step: as in `Fleet`.
    """

    def __init__(
        self, inventory: Inventory, count: int, step: Callable[[str], None] = lambda name: None
    ) -> None:
        self._inventory = inventory
        self._own = inventory.first(count)
        self._places = [(h, k) for h, host in enumerate(self._own) for k in range(host.nodes)]
        self._token = secrets.token_hex(8)
        self._environments: dict[int, dict[str, str]] = {}
        self._inherited: dict[int, dict[str, str]] = {}
        self.is_divided = inventory.is_divided
        self.hosts = Hosts(self._own, inventory.known_hosts)
        self._host_fleet = fleet_of(inventory, self._own, self.hosts, step)
        self.host_names = tuple(host.name for host in self._own)
        self.logins = self._own
        self._connections, self.fleet = self.hosts, self._host_fleet
        self.nodes: Sequence[HostNode | NamespaceOfHost] = self.hosts.nodes
        if self.is_divided:
            self.logins = tuple(self._login(node) for node in range(len(self._places)))
            self._connections = Hosts(self.logins, inventory.known_hosts)
            self._names = [f"netbench-{secrets.token_hex(4)}" for _ in self._own]
            machines = [self._machine(node) for node in range(len(self._places))]
            self.fleet = Fleet(machines, owner=owner_of(inventory), step=step)
            self.nodes = [NamespaceOfHost(self, node) for node in range(len(self._places))]
        self.names = tuple(login.name for login in self.logins)

    def __exit__(self, *_: object) -> None:
        self.close(range(len(self._own)))

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of nodes of each host."""
        return tuple(host.nodes for host in self._own)

    def host_facts(self) -> dict[int, Facts | Exception]:
        """See `Fleet.facts`: of the hosts themselves."""
        return self._host_fleet.facts()

    def host_of(self, node: int) -> int:
        """Return the number of the host that plays a node."""
        return self._places[node][0]

    def token(self, node: int) -> str:
        """Return the token of a node: equal for the first nodes of all hosts, the second, ..."""
        place = self._places[node][1]
        return f"{self._token}.{place}" if place else self._token

    @property
    def tokens(self) -> tuple[str, ...]:
        """Every token of the run."""
        return tuple(dict.fromkeys(map(self.token, range(len(self._places)))))

    def environment(self, node: int) -> Mapping[str, str]:
        """Return the variables that ranks of a node have beside those of the login: its GPUs."""
        return self._environments.get(node, {})

    def whole_environment(self, node: int) -> Mapping[str, str]:
        """Return the variables of the login, and those of the node."""
        return {**self._inherited.get(self.host_of(node), {}), **self.environment(node)}

    def login(self, node: int) -> HostNode:
        """Return the host of a node as its own connection reaches it."""
        return self._connections[node]

    def divide(self, check: Check, mtu_bytes: int) -> tuple[Deviation, ...]:
        """Make the namespaces; do nothing for whole hosts. Return warnings about the hosts.

        mtu_bytes: of the scenario; less where the network between the hosts has less. The caller
        renews the leases at once (`renew_leases`). Raises NetbenchError after all were removed.
        """
        if not self.is_divided:
            return ()
        facts, failed = split(self._host_fleet.facts())
        deviations = [Deviation(node=n, text=str(e), is_error=True) for n, e in failed.items()]
        deviations += preflight(None, {}, facts, replace=True)
        deviations += self._not_joinable(facts)
        check(deviations, self.host_names)
        asks = {h: partial(_ask, self.hosts[h]) for h in range(len(self._own))}
        answers = all_or_error(at_once(asks, ASK_S), "asking for environment and GPUs")
        for node, (host, place) in enumerate(self._places):
            self._inherited[host], gpus = answers[host]
            self._environments[node] = node_environment(
                f"{self._names[host]}-{node}", gpus, place, self._own[host].nodes
            )
        self._host_fleet.divide(
            divisions(self._inventory, self._own, self._names, facts, mtu_bytes)
        )
        return tuple(found for found in deviations if not found.is_error)

    def renew_leases(self, wait: Callable[[float], bool]) -> None:
        """Renew the leases of divided hosts until `wait(seconds)` returns True.

        Raises FleetError if a host has lost its nodes, or was not reached for too long.
        """
        if self.is_divided:
            self._host_fleet.renew_leases(range(len(self._own)), wait, lambda text: None)

    @contextmanager
    def divided(self, mtu_bytes: int) -> Iterator[None]:
        """Make the namespaces, keep them, and remove them. Raises NetbenchError."""
        over = threading.Event()

        def renew() -> None:
            with suppress(NetbenchError):  # who uses the nodes sees that they are gone
                self.renew_leases(over.wait)

        try:
            self.divide(lambda deviations, names: None, mtu_bytes)
            threading.Thread(target=renew, daemon=True).start()
            yield
        finally:
            over.set()
            removed = self.restore(range(len(self._own)), is_tuned=False)
        all_or_error(removed, "removing the nodes of the hosts")

    def restore(self, hosts: Iterable[int], is_tuned: bool) -> dict[int, Cleared | Exception]:
        """Restore the network of hosts, with their namespaces. is_tuned: nodes were changed."""
        return self._host_fleet.clear("session", hosts) if is_tuned or self.is_divided else {}

    def close(self, hosts: Iterable[int]) -> None:
        """Delete the agents on hosts that can be reached, and end all connections."""
        hosts = set(hosts)
        if self.is_divided:
            self.fleet.close(node for node, (host, _) in enumerate(self._places) if host in hosts)
            self._connections.close()
        self._host_fleet.close(hosts)
        self.hosts.close()

    @property
    def hint(self) -> str:
        """Remedy if nodes of several hosts do not reach each other; "" = none."""
        if not self.is_divided or len(self._own) == 1:
            return ""
        if self._inventory.overlay == ROUTES:
            return (
                "the nodes are joined by routes over the data network; where it drops packets from "
                'addresses that it does not know, as most clouds do, write "overlay: vxlan" in the '
                "inventory"
            )
        return "the nodes are joined by VXLAN; the firewalls must pass UDP port 4789 between hosts"

    def _login(self, node: int) -> Host:
        host, place = self._places[node]
        own = self._own[host]
        return replace(
            own,
            name=f"{own.name}/{place}",
            data_addresses=(node_address(self._inventory, host, place),),
            interface=INTERFACE,
            nodes=1,
        )

    def _machine(self, node: int) -> Machine:
        login, connection = self.logins[node], self._connections[node]
        return Machine(
            name=login.name,
            node=connection,
            root=connection.as_root,
            python=login.python,
            addresses=login.data_addresses,
            interface=login.interface,
            agent_path=login.agent_path,
            namespace=f"{self._names[self.host_of(node)]}-{node}",
        )

    def _not_joinable(self, facts: Mapping[int, Facts]) -> list[Deviation]:
        text = (
            "its data address {address} is IPv6, and nodes are joined by IPv4 routes; give it an "
            'IPv4 data address, or write "overlay: vxlan"'
        )
        return [
            Deviation(node=n, text=text.format(address=found.addresses[0]), is_error=True)
            for n, found in facts.items()
            if self._inventory.overlay == ROUTES
            and len(self._own) > 1
            and ":" in found.addresses[0]
        ]


class NamespaceOfHost:
    """The namespace of a node, as the login user of its host: a `netbench.network.nodes.Node`."""

    def __init__(self, players: Players, node: int) -> None:
        self._players = players
        self._node = node

    def run(
        self, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Completed:
        environment = self._players.whole_environment(self._node)
        return self._players.fleet.run_inside(self._node, argv, environment, stdin, timeout_s)

    def open(self, argv: Sequence[str]) -> HostChannel:
        environment = self._players.whole_environment(self._node)
        channel: Any = self._players.fleet.enter(self._node, argv, environment)
        opened: HostChannel = channel  # of `login`, which has opened it
        return opened


def node_address(inventory: Inventory, host: int, place: int) -> str:
    """Return the address of node `place` of a host."""
    return str(_own_network(inventory, host)[place + 1])


def divisions(
    inventory: Inventory,
    hosts: Sequence[Host],
    names: Sequence[str],
    facts: Mapping[int, Facts],
    mtu_bytes: int,
) -> dict[int, dict[str, Any]]:
    """Return the division of every host (`agent.division`). names: of the divisions."""
    data = [facts[host].addresses[0] for host in range(len(hosts))]
    overlay = inventory.overlay if len(hosts) > 1 else ""
    overhead = max(VXLAN_BYTES[6 if ":" in a else 4] for a in data) if overlay == VXLAN else 0
    if overlay:
        mtu_bytes = min(mtu_bytes, *(facts[h].mtu_bytes - overhead for h in range(len(hosts))))
    vni = secrets.randbelow(VNIS)
    first, parts = 0, []
    for index, host in enumerate(hosts):
        nodes = {first + k: node_address(inventory, index, k) for k in range(host.nodes)}
        parts.append(nodes)
        first += host.nodes
    return {
        index: {
            "name": names[index],
            "network": str(inventory.node_network),
            "own": str(_own_network(inventory, index)),
            "gateway": str(_own_network(inventory, index)[-2]),
            "nodes": parts[index],
            "overlay": overlay,
            "peers": [
                {
                    "data_address": data[other],
                    "network": str(_own_network(inventory, other)),
                    "addresses": list(parts[other].values()),
                }
                for other in range(len(hosts))
                if other != index
            ],
            "vni": vni,
            "local": data[index],
            "mtu_bytes": mtu_bytes,
        }
        for index in range(len(hosts))
    }


def node_environment(name: str, gpus: Sequence[str], place: int, count: int) -> dict[str, str]:
    """Return the variables of node `place` of the `count` nodes of a host: its share of the GPUs.

    name: unlike that of any other node. NCCL takes processes with the same one for neighbours on a
    machine, which exchange data through its memory. gpus: of the host; shares differ by at most 1.
    """
    found = {"NCCL_HOSTID": name}
    if gpus:
        first, last = (len(gpus) * k // count for k in (place, place + 1))
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first:last])
    return found


def _own_network(inventory: Inventory, host: int) -> Any:
    start = int(inventory.node_network.network_address) + (host << (32 - HOST_PREFIX))
    return type(inventory.node_network)((start, HOST_PREFIX))


def _ask(host: HostNode) -> tuple[dict[str, str], list[str]]:
    """Return the environment and GPUs of a login."""
    status, stdout, stderr = host.run([host.python, "-I", "-S", "-c", ASK], timeout_s=ASK_S)
    if status:
        raise TestbedError(f"`{host.python}` failed: {' '.join(stderr.split()[-20:])}")
    environment, gpus = json.loads(stdout.splitlines()[-1])
    return environment, gpus
