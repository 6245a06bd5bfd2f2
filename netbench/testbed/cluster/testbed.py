"""A testbed of machines: a host of an inventory per node.

    inspect -> node servers -> tune -> ranks connect -> shape -> verify -> iterations -> close

The fleet's lease is renewed all the time, and every node server gets beats: whatever happens to
this process, hosts restore their network and end their ranks by themselves. SSH is never shaped.
"""

import base64
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from netbench.errors import NetbenchError, TestbedError
from netbench.network.nodes import Channel, all_or_error, at_once, split
from netbench.network.probing.dynamics import Messages
from netbench.network.probing.fidelity import TOLERANCE
from netbench.network.probing.measure import Endpoints, Pace, measure
from netbench.network.probing.samples import sample_links
from netbench.network.probing.verify import evaluate
from netbench.network.remote.fleet import ARM_LEASE_S
from netbench.network.remote.pairs import unreachable
from netbench.network.remote.preflight import Deviation, grouped, inspect
from netbench.network.shaping.program import sysctls
from netbench.network.shaping.readback import unwanted_drops
from netbench.scenario.model import Network
from netbench.testbed.cluster.certificate import FOLDER, Leftovers, clean
from netbench.testbed.cluster.code import BOOTSTRAP, RUN_VARIABLE, code_zip
from netbench.testbed.cluster.server import ServerLink
from netbench.testbed.interface import STORE_PORT, Clocks, NodeAddress
from netbench.testbed.local import RankSetup
from netbench.testbed.ranks.hangs import Activity, Process, process_number
from netbench.testbed.ranks.scripts import inherited_environment
from netbench.testbed.ssh.inventory import Inventory, ssh_ports
from netbench.testbed.ssh.machines import Hosts
from netbench.testbed.ssh.scenario_hosts import fleet_of
from netbench.units import shortened

NAME = "cluster"
"""One of `records.TESTBEDS`."""

START_S = 120.0
"""Deadline for a host to start its node server, seconds."""

END_S = 20.0
"""Deadline for a host to end all ranks, seconds."""

STEP_S = 60.0
"""Deadline of a question to all hosts, seconds."""

BEAT_INTERVAL_S = 2.0
"""Interval of beats, seconds."""

START_MARGIN_S = 1.0
"""`Testbed.start_margin_s`."""

T = TypeVar("T")


class ClusterTestbed:
    """Hosts of an inventory, the first of them for the nodes of `network`.

    scale: divisor of bytes and bandwidths. on_error: gets host, rank (None =
    its node server) and every line of standard error. leftovers: what is left, by name of the host,
    after `close`. Raises NetbenchError, after everything that was started has ended.
    """

    name = NAME
    tolerance = TOLERANCE[NAME]
    start_margin_s = START_MARGIN_S

    def __init__(
        self,
        inventory: Inventory,
        network: Network,
        scale: float,
        ranks: RankSetup,
        on_error: Callable[[str, int | None, str], None] = lambda host, rank, text: None,
        *,
        replace: bool = False,
    ) -> None:
        self._network = network
        self._scale = scale
        self._ranks = ranks
        self._replace = replace
        self._on_error = on_error
        self._token = secrets.token_hex(8)
        self._hosts_of = inventory.first(network.num_nodes)
        self._names = [host.name for host in self._hosts_of]
        self._servers: dict[int, ServerLink] = {}
        self._over = threading.Event()
        self._closing = threading.Lock()
        self._network_lock = threading.Lock()
        self.leftovers: dict[str, Leftovers] = {}
        self._is_tuned = False
        self._hosts = Hosts(self._hosts_of, inventory.known_hosts)
        self._fleet = fleet_of(inventory, self._hosts_of, self._hosts)
        try:
            self._inspect(ssh_ports(self._hosts_of))
            self._start_servers()
        except BaseException:
            self.close()
            raise

    def _inspect(self, exempt_ports: tuple[int, ...]) -> None:
        found = inspect(
            self._fleet, self._network, exempt_ports, replace=self._replace, scale=self._scale
        )
        self._check(found.deviations)
        facts, _ = split(found.facts)
        self.kernel = " | ".join(dict.fromkeys(host.kernel for host in facts.values()))
        self.tc = " | ".join(dict.fromkeys(host.tc for host in facts.values()))
        self.nodes = tuple(
            NodeAddress(
                index=node,
                name=host.name,
                address=facts[node].addresses[0],
                interface=facts[node].interface,
                kernel=node,
            )
            for node, host in enumerate(self._hosts_of)
        )
        self._check(unreachable(self._endpoints(), self._names, STORE_PORT))
        self._programs = [found.programs[node] for node in range(self._network.num_nodes)]

    def _check(self, deviations: Sequence[Deviation]) -> None:
        """Raises TestbedError if hosts cannot do what is asked of them."""
        lines = [
            f"  {shortened(hosts)}: {text}"
            for (is_error, text), hosts in grouped(deviations, self._names).items()
            if is_error
        ]
        if lines:
            raise TestbedError(
                "\n".join(["the hosts cannot run this; nothing was changed:", *lines])
            )

    def _endpoints(self) -> Endpoints:
        return Endpoints(
            addresses=[(node.address,) for node in self.nodes],
            nodes=self._hosts.nodes,
            python=[host.python for host in self._hosts_of],
            shared_clock=False,
        )

    def _start_servers(self) -> None:
        starts = {node.index: partial(self._start_server, node) for node in self.nodes}
        hellos = self._all(at_once(starts, START_S), "starting the node servers")
        self.versions = {self._hosts_of[node].name: hello for node, hello in hellos.items()}
        check_versions(self.versions, needs_torch=not self._ranks.scripts)
        threading.Thread(target=self._beat, daemon=True).start()

    def _start_server(self, node: NodeAddress) -> dict[str, Any]:
        host = self._hosts_of[node.index]
        code = base64.b64encode(code_zip()).decode()
        checksum = hashlib.sha256(code_zip()).hexdigest()
        arguments = [
            FOLDER + self._token,
            self._token,
            str(len(code) + 1),
            checksum,
            node.interface,
        ]
        channel = self._hosts[node.index].open([host.python, "-c", BOOTSTRAP, *arguments])
        server = ServerLink(channel, host.name, partial(self._on_error, host.name))
        self._servers[node.index] = server
        channel.send(code)
        hello = server.hello(START_S)
        server.beat()
        return hello

    def _beat(self) -> None:
        while not self._over.wait(BEAT_INTERVAL_S):
            for server in list(self._servers.values()):
                server.beat()

    def _keep_lease(self) -> None:
        try:
            self._fleet.keep_leases(self._programs, self._over.wait, lambda text: None)
        except NetbenchError as error:
            for server in self._servers.values():
                server.give_up(str(error))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Keep `close`, which another thread may call, from clearing hosts that then change."""
        with self._network_lock:
            if self._over.is_set():
                raise TestbedError("the run was stopped")
            yield

    def tune(self, network: Network, scale: float) -> None:
        with self._changing():
            self._is_tuned = True
            self._fleet.tune(sysctls(network, scale), replace=self._replace)
        threading.Thread(target=self._keep_lease, daemon=True).start()

    def shape(self, network: Network, scale: float) -> None:
        with self._changing():
            self._fleet.apply(
                self._programs,
                sysctls(network, scale),
                lease_s=ARM_LEASE_S,
                replace=self._replace,
                release=False,
            )

    def verify(
        self, network: Network, scale: float, messages: Messages | None = None
    ) -> dict[str, Any]:
        assert messages is None, "on hosts TCP is theirs, and their clocks are not shared"
        measured = measure(network, sample_links(network), self._endpoints(), scale, pace=Pace())
        found = evaluate(measured, network, scale, self.tolerance, shared_clock=False)
        return asdict(found)

    def dropped_packets(self) -> int:
        shown = self._all(self._fleet.show(), "counting dropped packets")
        return sum(unwanted_drops(program, shown[program.node].found) for program in self._programs)

    def sent_bytes(self) -> list[int]:
        samples = self._ask("sample")
        return [samples[node.index]["sent"] for node in self.nodes]

    def activity(self) -> Activity:
        samples = self._ask("sample", lost_too=False)
        processes = {
            process_number(node, int(pid)): Process(
                session=process_number(node, session), state=state, cpu_s=cpu_s
            )
            for node, sample in samples.items()
            for pid, (session, state, cpu_s) in sample["processes"].items()
        }
        return Activity(
            at_s=time.monotonic(),
            num_bytes=sum(sample["sent"] for sample in samples.values()),
            processes=processes,
            num_oom_kills=sum(sample["oom_kills"] for sample in samples.values()),
        )

    def publish(self, name: str, text: str) -> str:
        return str(self._ask("publish", name=name, text=text)[0])

    def environment(self, node: int) -> Mapping[str, str]:
        hello = self.versions[self._hosts_of[node].name]
        inherited = inherited_environment(hello["executable"], hello["environment"])
        return {**inherited, RUN_VARIABLE: self._token}

    def start_rank(self, node: int, rank: int) -> Channel:
        return self._servers[node].start(
            rank,
            script=self._ranks.scripts,
            modules=self._ranks.modules,
            environment=self._ranks.environment,
        )

    def clocks(self) -> Clocks:
        began_s = time.monotonic()
        read = {node: server.clock for node, server in self._servers.items()}
        found = self._all(at_once(read, STEP_S), "reading the clocks")
        return Clocks(
            at_s=(began_s + time.monotonic()) / 2,
            offsets_s={node: offset_s for node, (offset_s, _) in found.items()},
            error_s=max(error_s for _, error_s in found.values()),
        )

    def close(self) -> None:
        """End all ranks and restore the network. Safe to call from any thread, and again."""
        with self._closing:
            if not self.leftovers:
                self.leftovers = self._close()

    def _close(self) -> dict[str, Leftovers]:
        self._over.set()
        silent = {node: server.lost for node, server in self._servers.items() if server.is_silent}
        at_once({n: partial(s.ask, "end", END_S) for n, s in self._servers.items()}, END_S)
        for server in self._servers.values():
            server.close()
        reached = [node for node in range(len(self._hosts_of)) if node not in silent]
        with self._network_lock:
            cleared = self._fleet.clear("session", reached) if self._is_tuned else {}
        found = {
            **clean(self._hosts, reached, cleared, [self._token]),
            **{node: Leftovers(unknown=why) for node, why in silent.items()},
        }
        self._fleet.close(reached)
        self._hosts.close()
        return {host.name: found[node] for node, host in enumerate(self._hosts_of)}

    def _ask(self, operation: str, *, lost_too: bool = True, **fields: Any) -> dict[int, Any]:
        """Return the answers of all node servers. lost_too: else, of those still there."""
        asks = {
            node: partial(server.ask, operation, **fields)
            for node, server in self._servers.items()
            if lost_too or not server.lost
        }
        return self._all(at_once(asks, STEP_S), f"`{operation}`")

    def _all(self, results: Mapping[int, T | Exception], what: str) -> dict[int, T]:
        return all_or_error(results, what)


def check_versions(versions: Mapping[str, Mapping[str, Any]], *, needs_torch: bool) -> None:
    """Raises TestbedError with a table if hosts lack torch or differ in Python or torch."""
    kinds = {(v["python"].rpartition(".")[0], v["torch"]) for v in versions.values()}
    if not needs_torch or (len(kinds) <= 1 and not any(torch is None for _, torch in kinds)):
        return
    width = max(map(len, versions))
    lines = [
        f"  {host:{width}}  Python {v['python']}, torch {v['torch'] or 'missing'} "
        f"({v['executable']})"
        for host, v in versions.items()
    ]
    raise TestbedError(
        "\n".join(
            [
                "the hosts need torch, in one version, and one version of Python; name the "
                "environment in the inventory (`python:`):",
                *lines,
            ]
        )
    )
