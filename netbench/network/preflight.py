"""Can these machines deliver this network? Told before anything is changed, with the number. Pure.

An error is what cannot be delivered at all; a warning is what will be less exact, or worth knowing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from netbench.network.program import CAP_MINOR, MAX_SEGMENTS, UNLIMITED_BPS, Program
from netbench.scenario.model import Network
from netbench.units import format_bandwidth, format_bytes, format_time

SOFTWARE_DRIVERS = ("veth", "bridge", "tun", "dummy", "bonding", "team")
"""Interfaces whose "speed" is made up, or is that of others."""

FINE_TIMER_S = 1e-6
"""Resolution of timers that nobody notices: netem's own delays are whole microseconds."""

SEGMENT_S = 1e-3
"""How long a packet with segmentation offload may occupy a link before it is worth a word."""

MAX_PACKET_BYTES = 1 << 16
"""What TCP hands over at once at most, with segmentation offload."""

ROOM_BYTES = 1 << 20
"""For the agent, and for what else a login needs."""

_MODULES = {"htb": "sch_htb", "netem": "sch_netem", "u32": "cls_u32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a host said of itself. None and "" where it could not tell.

    addresses: on the network to shape. ssh: of the controller's connection, as `courier.Sent`.
    problem: why its interface was not found; then nothing is known of one. machine: the same for
    hosts that are one machine. timer_s: resolution of kernel timers. hz: CONFIG_HZ. lacking: part
    of a program -> what tc said of it; "" -> why nothing could be tried. free_bytes: by folder.
    settings: by name, None = this kernel has none. qdisc: the root's. foreign: it is neither the
    default nor netbench's; unrestorable: why --replace could not put it back. routes: peer
    address -> interface it is reached through. shaped_by: who has a lease, in words. is_taken: it
    is not this owner's, or another process of theirs holds it.
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
    ) -> Facts:
        """From the agent's answer to `owner`."""
        names = {field.name for field in dataclasses.fields(cls)}
        known = {key: value for key, value in answer.items() if key in names}
        if lease := answer.get("lease"):
            theirs = lease["owner"]
            is_other = theirs["name"] != owner["name"] or lease["held"]
            known["shaped_by"] = lease["who"]
            known["is_taken"] = is_other and theirs["session"] != owner["session"]
        return cls(addresses=addresses, ssh=ssh, **known)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One sentence on one node. is_error: the request cannot be delivered."""

    node: int
    text: str
    is_error: bool


def preflight(
    network: Network,
    programs: Mapping[int, Program],
    facts: Mapping[int, Facts],
    *,
    replace: bool = False,
) -> tuple[Problem, ...]:
    """All that speaks against giving `programs` to the hosts of `facts`, by node."""
    found: list[Problem] = []
    for node, host in sorted(facts.items()):
        checks = [*_tools(host), *_room(host)]
        if host.problem:
            checks.append((True, host.problem))
        elif host.interface:
            checks += _interface(host, network, replace)
            checks += _routes(host, node, facts)
            if node in programs:
                checks += _program(host, programs[node])
        found += [Problem(node=node, is_error=wrong, text=text) for wrong, text in checks]
    return (*found, *_same_machine(facts))


Check = tuple[bool, str]
"""Whether it is an error, and what it says."""


def _tools(host: Facts) -> Iterator[Check]:
    if not host.tc:
        yield True, "there is no `tc`; install iproute2 (Debian, Ubuntu) or iproute-tc (Fedora)"
        return
    if "" in host.lacking:
        yield False, f"what this kernel can shape was not tried out: {host.lacking['']}"
        return
    for part, words in sorted(host.lacking.items()):
        if part == "netem distribution":
            if "netem" not in host.lacking:
                yield False, f"tc has no tables of jitter, it must be uniform: {words}"
            continue
        module = _MODULES[part]
        yield (
            True,
            f"kernel {host.kernel} has no {part} ({words}); try `modprobe {module}`, and install "
            f"what has it: linux-modules-extra-{host.kernel} (Ubuntu), kernel-modules-extra "
            "(Fedora, RHEL), or a kernel that is not cut down for containers",
        )


def _room(host: Facts) -> Iterator[Check]:
    for folder, free in sorted(host.free_bytes.items()):
        if free is not None and free < ROOM_BYTES:
            yield folder == "/run", f"{folder} has only {format_bytes(free)} left"


def _interface(host: Facts, network: Network, replace: bool) -> Iterator[Check]:
    name = host.interface
    if host.mtu_bytes != network.mtu_bytes:
        yield (
            False,
            f"{name} has an MTU of {host.mtu_bytes}, the scenario one of {network.mtu_bytes}: "
            f"rates and queues are for the scenario's; write `mtu: {host.mtu_bytes}` there, or "
            f"`ip link set dev {name} mtu {network.mtu_bytes}` here",
        )
    if host.foreign and host.unrestorable:
        yield (
            True,
            f"{name} has a root qdisc that could not be put back exactly: {host.qdisc} "
            f"({host.unrestorable}); `tc qdisc del dev {name} root` if nothing needs it",
        )
    elif host.foreign:
        yield (
            not replace,
            f"{name} has a root qdisc that is not netbench's: {host.qdisc}; "
            + ("it is put aside until `clear`" if replace else "--replace puts it aside"),
        )
    if host.is_taken:
        yield (
            True,
            f"{name} is shaped by {host.shaped_by}; wait, or take it away from them with "
            "`netbench net clear --force`",
        )


def _routes(host: Facts, node: int, facts: Mapping[int, Facts]) -> Iterator[Check]:
    """Peers that are not reached through the shaped interface are not shaped."""
    for peer, other in sorted(facts.items()):
        if peer == node or other.machine == host.machine:
            continue
        for address in other.addresses:
            through = host.routes.get(address)
            if through == "":
                yield True, f"there is no route to {address} (node {peer})"
            elif through and through != host.interface:
                yield (
                    True,
                    f"{address} (node {peer}) is reached through {through}, not through "
                    f"{host.interface}: it would not be shaped; name the addresses of one network "
                    "in the inventory (`data_address:`)",
                )


def _program(host: Facts, program: Program) -> Iterator[Check]:
    delays_s = [leaf.delay_us * 1e-6 for leaf in program.leaves if leaf.delay_us]
    rates_bps = _rates_bps(program)
    yield from _timers(host, min(delays_s, default=0.0))
    if rates_bps and host.speed_bps and host.driver not in SOFTWARE_DRIVERS:
        is_capped = any(htb.minor == CAP_MINOR for htb in program.classes)
        yield from _speed(host, rates_bps, is_capped)
    if rates_bps:
        yield from _segments(host, program, min(rates_bps))
    yield from _ssh(host, program)


def _rates_bps(program: Program) -> list[float]:
    """What each queue is limited to, of those that are."""
    ceils_bps = {htb.minor: htb.ceil_bps for htb in program.classes}
    rates = [
        min(leaf.rate_bps or UNLIMITED_BPS, ceils_bps.get(leaf.minor, UNLIMITED_BPS))
        for leaf in program.leaves
    ]
    return [float(rate) for rate in rates if rate < UNLIMITED_BPS]


def _timers(host: Facts, delay_s: float) -> Iterator[Check]:
    if host.timer_s <= FINE_TIMER_S:
        return
    hz = f"HZ={host.hz}, " if host.hz else ""
    late = f"timers of this kernel tick every {format_time(host.timer_s)} ({hz}no high-resolution"
    if delay_s:
        yield (
            host.timer_s > delay_s,
            f"{late} timers): every delay is late by up to that, and the smallest wanted is "
            f"{format_time(delay_s)}; boot a kernel with CONFIG_HIGH_RES_TIMERS",
        )
    else:
        yield False, f"{late} timers): packets leave in bursts"


def _speed(host: Facts, rates_bps: Sequence[float], is_capped: bool) -> Iterator[Check]:
    speed_bps = host.speed_bps or math.inf
    nic = f"{host.interface} is a {format_bandwidth(speed_bps)}/s NIC ({host.driver or 'unknown'})"
    most_bps, total_bps = max(rates_bps), sum(rates_bps)
    if most_bps > speed_bps:
        yield True, f"{nic}, a link wants {format_bandwidth(most_bps)}/s"
    elif total_bps > speed_bps and not is_capped:
        yield (
            False,
            f"{nic}: {len(rates_bps)} links used at once want {format_bandwidth(total_bps, 3)}/s",
        )


def _segments(host: Facts, program: Program, rate_bps: float) -> Iterator[Check]:
    """TCP hands large packets over, which netem holds back as one."""
    packet_s = 8 * MAX_PACKET_BYTES / rate_bps
    is_offloaded = bool(host.gso or host.tso)
    if packet_s <= SEGMENT_S or not is_offloaded or program.max_segments < MAX_SEGMENTS:
        return
    if host.settings.get("net.ipv4.tcp_tso_rtt_log") is None:
        yield (
            False,
            f"TCP hands over up to 64 KiB at once (GSO), {format_time(packet_s)} at "
            f"{format_bandwidth(rate_bps)}/s, and kernel {host.kernel} has no tcp_tso_rtt_log to "
            f"limit it: short round trips lose rate; `ethtool -K {host.interface} tso off gso off`",
        )


def _ssh(host: Facts, program: Program) -> Iterator[Check]:
    """The controller's connection must not be shaped, whoever the controller is."""
    if len(host.ssh) == 4 and int(host.ssh[3]) not in program.exempt_ports:
        exempt = ", ".join(map(str, program.exempt_ports)) or "none"
        if any(address == host.ssh[0] for address, _ in program.matches):
            yield (
                True,
                f"the SSH connection of this controller, at port {host.ssh[3]}, would be shaped: "
                f"only those at ports {exempt} are not; name the port in the inventory (`port:`)",
            )


def _same_machine(facts: Mapping[int, Facts]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for node, host in sorted(facts.items()):
        other = first.setdefault(host.machine, node)
        if other != node:
            yield Problem(
                node=node,
                is_error=True,
                text=f"is the same machine as node {other}: what goes between them never leaves it "
                "and is not shaped; give each node a machine, or a network namespace, of its own",
            )
