"""Facts about hosts, read before anything is changed, and what is compiled from them."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from netbench.network.nodes import split
from netbench.network.shaping.program import Program, compile_program
from netbench.network.traces.trace import Change, Replay, compile_replay, replay_sysctls
from netbench.scenario.model import Network

SETTINGS = ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_tso_rtt_log")
"""The part of `program.sysctls` that hosts get: what netem needs to be exact. Everything else
about TCP stays as the host's administrator set it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Facts about a host, as its agent reports them. None and "" where the agent could not tell.

    addresses: on the network to shape. ssh: of the controller's connection, see `deployer.Sent`.
    machine: equal for hosts that are one machine. timer_s: resolution of kernel timers, seconds.
    hz: CONFIG_HZ. lacking: part of a tc configuration -> tc's error; "" -> why no part could be
    tried. free_bytes: by folder. settings: sysctl -> value, None if this kernel lacks it.
    problem: why the interface was not found; then the fields below are unknown. qdisc: the root
    qdisc. foreign: it is neither the default nor netbench's. unrestorable: why --replace could not
    restore it. shaped_by: who has a lease, as text. is_taken: the lease belongs to another run,
    which is not one of the owner's that has ended. routes: peer address -> interface through
    which the peer is reached.
    """

    addresses: tuple[str, ...]
    ssh: tuple[str, ...]
    python: str
    kernel: str
    tc: str
    machine: str
    timer_s: float
    hz: int | None
    lacking: Mapping[str, str]
    free_bytes: Mapping[str, int | None]
    settings: Mapping[str, str | None]
    problem: str = ""
    interface: str = ""
    mtu_bytes: int = 0
    speed_bps: float | None = None
    driver: str = ""
    tso: bool | None = None
    gso: bool | None = None
    qdisc: str = ""
    foreign: bool = False
    unrestorable: str = ""
    shaped_by: str = ""
    is_taken: bool = False
    routes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(
        cls,
        answer: Mapping[str, Any],
        addresses: tuple[str, ...],
        ssh: tuple[str, ...],
        owner: Mapping[str, Any],
    ) -> "Facts":
        """Parse the agent's answer to `owner`."""
        names = {field.name for field in dataclasses.fields(cls)}
        known = {key: value for key, value in answer.items() if key in names}
        if lease := answer.get("lease"):
            theirs = lease["owner"]
            runs = () if lease["held"] else owner["runs"]
            known["shaped_by"] = lease["who"]
            known["is_taken"] = theirs["session"] not in (owner["session"], *runs)
        return cls(addresses=addresses, ssh=ssh, **known)


def settings(network: Network, changes: Sequence[Change] = ()) -> dict[str, str]:
    """Return the TCP settings hosts need under any of `changes`; the agent only raises buffers."""
    wanted = replay_sysctls(network, changes)
    return {name: wanted[name] for name in SETTINGS}


def compile_for(
    network: Network,
    facts: Mapping[int, Facts | Exception],
    exempt_ports: tuple[int, ...],
    scale: float = 1.0,
) -> dict[int, Program]:
    """Compile for every host whose interface is known; for none unless all addresses are known."""
    known, _ = split(facts)
    if len(known) < network.num_nodes or not all(host.addresses for host in known.values()):
        return {}
    addresses = [known[node].addresses for node in range(network.num_nodes)]
    return {
        node: compile_program(
            network, node, addresses, host.interface, scale, exempt_ports=exempt_ports
        )
        for node, host in known.items()
        if host.interface
    }


def compile_replays_for(
    network: Network,
    changes: Sequence[Change],
    facts: Mapping[int, Facts | Exception],
    exempt_ports: tuple[int, ...],
) -> dict[int, Replay]:
    """Compile a trace for every host, if `compile_for` has a configuration for each of them."""
    hosts = [host for _, host in sorted(split(facts)[0].items())]
    addresses = [host.addresses for host in hosts]
    compiled = partial(compile_replay, network, changes, exempt_ports=exempt_ports)
    return {i: compiled(i, addresses, host.interface) for i, host in enumerate(hosts)}
