"""A testbed of machines: hosts of an inventory, or the namespaces of several nodes on each.

    divide -> inspect -> node servers -> tune -> ranks connect -> shape -> verify -> iterations
        -> close

The fleet's lease is renewed all the time, and every node server gets beats: whatever happens to
this process, hosts restore their network and end their ranks by themselves. SSH is never shaped.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
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
from netbench.testbed.cluster.certificate import Leftovers, clean
from netbench.testbed.cluster.code import RUN_VARIABLE
from netbench.testbed.cluster.players import Players
from netbench.testbed.cluster.server import (
    BEAT_INTERVAL_S,
    END_S,
    START_S,
    ServerLink,
    start_server,
)
from netbench.testbed.interface import STORE_PORT, Clocks, NodeAddress
from netbench.testbed.local import RankSetup
from netbench.testbed.ranks.hangs import Activity, Process, process_number
from netbench.testbed.ranks.scripts import inherited_environment
from netbench.testbed.ssh.inventory import Inventory, ssh_ports
from netbench.units import shortened

NAME = "cluster"
"""One of `records.TESTBEDS`."""

STEP_S = 60.0
"""Deadline of a question to all hosts, seconds."""

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
        self._servers: dict[int, ServerLink] = {}
        self._over = threading.Event()
        self._closing = threading.Lock()
        self._network_lock = threading.Lock()
        self.leftovers: dict[str, Leftovers] = {}
        self._is_tuned = False
        self._players = Players(inventory, network.num_nodes)
        self._fleet, self._names = self._players.fleet, self._players.names
        try:
            self._divide()
            self._inspect(ssh_ports(self._players.logins))
            self._start_servers()
        except BaseException:
            self.close()
            raise

    def _divide(self) -> None:
        """Make the nodes of hosts that have several, and keep them."""
        with self._changing():
            self._players.divide(self._check, self._network.mtu_bytes)
        if self._players.is_divided:
            threading.Thread(
                target=self._keep, args=[self._players.renew_leases], daemon=True
            ).start()

    def _inspect(self, exempt_ports: tuple[int, ...]) -> None:
        found = inspect(
            self._fleet, self._network, exempt_ports, replace=self._replace, scale=self._scale
        )
        self._check(found.deviations, self._names)
        facts, _ = split(found.facts)
        self.kernel = " | ".join(dict.fromkeys(host.kernel for host in facts.values()))
        self.tc = " | ".join(dict.fromkeys(host.tc for host in facts.values()))
        self.nodes = tuple(
            NodeAddress(
                index=node,
                name=host.name,
                address=facts[node].addresses[0],
                interface=facts[node].interface,
                kernel=self._players.host_of(node),
            )
            for node, host in enumerate(self._players.logins)
        )
        unreached = unreachable(self._endpoints(), self._names, STORE_PORT)
        self._check(unreached, self._names, self._players.hint)
        self._programs = [found.programs[node] for node in range(self._network.num_nodes)]

    def _check(self, deviations: Sequence[Deviation], names: Sequence[str], hint: str = "") -> None:
        """Raises TestbedError if hosts cannot do what is asked of them. hint: for the last line."""
        lines = [
            f"  {shortened(hosts)}: {text}"
            for (is_error, text), hosts in grouped(deviations, names).items()
            if is_error
        ]
        if lines:
            head = "the hosts cannot run this; nothing was changed:"
            raise TestbedError("\n".join([head, *lines, *([hint] if hint else [])]))

    def _endpoints(self) -> Endpoints:
        return Endpoints(
            addresses=[(node.address,) for node in self.nodes],
            nodes=self._players.nodes,
            python=[host.python for host in self._players.logins],
            shared_clock=False,
        )

    def _start_servers(self) -> None:
        starts = {node.index: partial(self._start_server, node) for node in self.nodes}
        hellos = self._all(at_once(starts, START_S), "starting the node servers")
        self.versions = {self._names[node]: hello for node, hello in hellos.items()}
        check_versions(self.versions, needs_torch=not self._ranks.scripts)
        threading.Thread(target=self._beat, daemon=True).start()

    def _start_server(self, node: NodeAddress) -> dict[str, Any]:
        players, name = self._players, self._names[node.index]
        server = self._servers[node.index] = start_server(
            players.nodes[node.index],
            players.logins[node.index].python,
            name,
            players.token(node.index),
            node.interface,
            partial(self._on_error, name),
        )
        hello = server.hello(START_S)
        server.beat()
        return hello

    def _beat(self) -> None:
        while not self._over.wait(BEAT_INTERVAL_S):
            for server in list(self._servers.values()):
                server.beat()

    def _keep_shaped(self, wait: Callable[[float], bool]) -> None:
        self._fleet.keep_leases(self._programs, wait, lambda text: None)

    def _keep(self, renew: Callable[[Callable[[float], bool]], None]) -> None:
        """Renew leases until the run is over. Give up if a host has lost what it had."""
        try:
            renew(self._over.wait)
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
        threading.Thread(target=self._keep, args=[self._keep_shaped], daemon=True).start()

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
        samples = sample_links(network)
        measured = self._unless_lost(
            lambda: measure(network, samples, self._endpoints(), scale, pace=Pace())
        )
        found = evaluate(measured, network, scale, self.tolerance, shared_clock=False)
        return asdict(found)

    def _unless_lost(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, in which hosts wait minutes for each other.

        Raises TestbedError as soon as a host is given up.
        """
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(work())
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        while not wait([result], BEAT_INTERVAL_S).done:
            if lost := [server.lost for server in self._servers.values() if server.lost]:
                raise TestbedError("\n".join(lost))
        return result.result()

    def dropped_packets(self) -> int:
        shown = self._all(self._fleet.show(), "counting dropped packets")
        return sum(unwanted_drops(program, shown[program.node].found) for program in self._programs)

    def sent_bytes(self) -> list[int]:
        samples = self._ask("sample")
        return [samples[node.index]["sent"] for node in self.nodes]

    def host_use(self) -> Mapping[int, dict[str, Any]]:
        servers = {self.nodes[node].kernel: server for node, server in self._servers.items()}
        asks = {kernel: partial(server.ask, "use") for kernel, server in servers.items()}
        used = self._all(at_once(asks, STEP_S), "`use`")
        return {kernel: {"host": servers[kernel].name, **used[kernel]} for kernel in sorted(used)}

    def activity(self) -> Activity:
        samples = self._ask("sample", lost_too=False)
        processes = {
            process_number(kernel, int(pid)): Process(
                session=process_number(kernel, session), state=state, cpu_s=cpu_s
            )
            for kernel, sample in ((self.nodes[node].kernel, x) for node, x in samples.items())
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
        hello = self.versions[self._names[node]]
        inherited = inherited_environment(hello["executable"], hello["environment"])
        own = {**self._players.environment(node), RUN_VARIABLE: self._players.token(node)}
        return {**inherited, **own}

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
        players, servers = self._players, self._servers
        silent = {players.host_of(n): s.lost for n, s in servers.items() if s.is_silent}
        ends = {node: partial(s.ask, "end", END_S) for node, s in servers.items()}
        ended, _ = split(at_once(ends, END_S))
        stayed: dict[int, list[int]] = {}
        for node, pids in ended.items():
            stayed.setdefault(players.host_of(node), []).extend(pids)
        for server in servers.values():
            server.close()
        reached = [host for host in range(len(players.host_names)) if host not in silent]
        with self._network_lock:
            cleared = players.restore(reached, self._is_tuned)
        found = {
            **clean(players.hosts, reached, cleared, players.tokens, stayed),
            **{host: Leftovers(unknown=why) for host, why in silent.items()},
        }
        players.close(reached)
        return {name: found[host] for host, name in enumerate(players.host_names)}

    def _ask(self, operation: str, *, lost_too: bool = True, **fields: Any) -> dict[int, Any]:
        """Return the answers of all node servers. lost_too: else, of those still there."""
        asks = {
            node: partial(server.ask, operation, **fields)
            for node, server in self._servers.items()
            if lost_too or not server.lost
        }
        return self._all(at_once(asks, STEP_S), f"`{operation}`")

    def _all(self, results: Mapping[int, T | Exception], what: str) -> dict[int, T]:
        """Return the results of all hosts. Raises NetworkError with the names of those that failed,
        and why they were given up if they were."""
        found: dict[int, T | Exception] = {}
        for node, result in results.items():
            if isinstance(result, Exception):
                name, server = self._names[node], self._servers.get(node)
                why = (server.lost if server else "") or str(result) or type(result).__name__
                result = TestbedError(f"{name}: {why.removeprefix(f'{name}: ')}")
            found[node] = result
        return all_or_error(found, what)


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
