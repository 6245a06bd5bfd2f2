"""Compare hosts with the network they are to deliver, before anything is changed."""

import ipaddress
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from netbench.network.nodes import split
from netbench.network.remote.agent.messages import taken
from netbench.network.remote.facts import Facts, compile_for
from netbench.network.remote.fleet import Fleet
from netbench.network.shaping.program import CAP_MINOR, MAX_PACKET_BYTES, MAX_SEGMENTS, Program
from netbench.scenario.model import Network
from netbench.units import format_bandwidth, format_bytes, format_time

SOFTWARE_DRIVERS = ("veth", "bridge", "tun", "dummy", "bonding", "team")
"""Drivers of interfaces without a speed of their own."""

FINE_TIMER_S = 1e-6
"""Timer resolution that is fine enough, seconds: netem's delays are whole microseconds."""

SEGMENT_S = 1e-3
"""Transmission time of a packet with segmentation offload that deserves a warning, seconds."""

ROOM_BYTES = 1 << 20
"""Free space that the agent and a login need."""

_MODULES = {"htb": "sch_htb", "netem": "sch_netem", "u32": "cls_u32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Deviation:
    """Something that a host cannot deliver at all (`is_error`), or only less exactly."""

    node: int
    text: str
    is_error: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """Facts and deviations of all hosts. programs: of hosts for which one could be compiled."""

    facts: Mapping[int, Facts | Exception]
    programs: Mapping[int, Program]
    deviations: tuple[Deviation, ...]

    @property
    def is_complete(self) -> bool:
        """Every host has a tc configuration."""
        return len(self.programs) == len(self.facts)

    @property
    def has_errors(self) -> bool:
        return any(deviation.is_error for deviation in self.deviations)


def inspect(
    fleet: Fleet,
    network: Network,
    exempt_ports: tuple[int, ...],
    *,
    replace: bool = False,
    scale: float = 1.0,
) -> Inspection:
    """Ask every host for facts and compare them with what `network` needs; change nothing.

    scale: divisor of bandwidths.
    """
    facts = fleet.facts()
    programs = compile_for(network, facts, exempt_ports, scale)
    known, failures = split(facts)
    unknown = [
        Deviation(node=node, text=str(error), is_error=True) for node, error in failures.items()
    ]
    deviations = preflight(network, programs, known, replace=replace)
    return Inspection(facts=facts, programs=programs, deviations=(*unknown, *deviations))


def grouped(
    deviations: Sequence[Deviation], names: Sequence[str]
) -> dict[tuple[bool, str], list[str]]:
    """Group shared deviations: (is_error, text) -> hosts, errors first. names: of nodes."""
    hosts: dict[tuple[bool, str], list[str]] = {}
    for deviation in sorted(deviations, key=lambda found: (not found.is_error, found.node)):
        name = names[deviation.node]
        text = deviation.text.removeprefix(f"{name}: ").removeprefix(f"{name} ")
        hosts.setdefault((deviation.is_error, text), []).append(name)
    return hosts


def preflight(
    network: Network | None,
    programs: Mapping[int, Program],
    facts: Mapping[int, Facts],
    *,
    replace: bool = False,
) -> tuple[Deviation, ...]:
    """Return how the hosts of `facts` would deviate from `programs`, by node.

    network: that the hosts are to deliver; None = any.
    """
    found: list[Deviation] = []
    for node, host in sorted(facts.items()):
        checks = [*_tools(host), *_room(host)]
        if host.problem:
            checks.append((True, host.problem))
        elif host.interface:
            checks += _interface(host, network, replace)
            checks += _addresses(host, node, facts)
            checks += _routes(host, node, facts)
            if node in programs:
                checks += _program(host, programs[node])
        checks += _same_machine(host, node, facts)
        found += [Deviation(node=node, is_error=wrong, text=text) for wrong, text in checks]
    return tuple(found)


Remark = tuple[bool, str]
"""(is_error, text) of a deviation."""


def _tools(host: Facts) -> Iterator[Remark]:
    if not host.tc:
        yield True, "there is no `tc`; install iproute2 (Debian, Ubuntu) or iproute-tc (Fedora)"
        return
    if "" in host.lacking:
        yield False, f"what this kernel can shape was not tried out: {host.lacking['']}"
        return
    for part, error in sorted(host.lacking.items()):
        if part == "netem distribution":
            if "netem" not in host.lacking:
                yield False, f"tc has no tables of jitter, it must be uniform: {error}"
            continue
        module = _MODULES[part]
        yield (
            True,
            f"kernel {host.kernel} has no {part} ({error}); try `modprobe {module}`, and install "
            f"what has it: linux-modules-extra-{host.kernel} (Ubuntu), kernel-modules-extra "
            "(Fedora, RHEL), or a kernel that is not cut down for containers",
        )


def _room(host: Facts) -> Iterator[Remark]:
    for folder, free in sorted(host.free_bytes.items()):
        if free is not None and free < ROOM_BYTES:
            yield folder == "/run", f"{folder} has only {format_bytes(free)} left"


def _interface(host: Facts, network: Network | None, replace: bool) -> Iterator[Remark]:
    name = host.interface
    if network and host.mtu_bytes != network.mtu_bytes:
        yield (
            False,
            f"{name} has an MTU of {host.mtu_bytes}, the scenario one of {network.mtu_bytes}: "
            f"rates and queues are for the scenario's; write `mtu: {host.mtu_bytes}` there, or "
            f"`ip link set dev {name} mtu {network.mtu_bytes}` here",
        )
    if host.foreign and host.unrestorable:
        yield (
            True,
            f"{name} has a root qdisc that could not be restored exactly: {host.qdisc} "
            f"({host.unrestorable}); `tc qdisc del dev {name} root` if nothing needs it",
        )
    elif host.foreign:
        yield (
            not replace,
            f"{name} has a root qdisc that is not netbench's: {host.qdisc}; "
            + ("it is set aside until `clear`" if replace else "--replace sets it aside"),
        )
    if host.is_taken:
        yield True, taken(name, host.shaped_by)


def _addresses(host: Facts, node: int, facts: Mapping[int, Facts]) -> Iterator[Remark]:
    """Check that the addresses are the host's alone."""
    what = "write its address on the network between the hosts into the inventory (`data_address:`)"
    others = {peer: other for peer, other in facts.items() if other.machine != host.machine}
    for address in host.addresses:
        if others and ipaddress.ip_address(address).is_loopback:
            yield True, f"its address {address} is a loopback address, which others lack; {what}"
        same = [peer for peer, other in others.items() if address in other.addresses]
        if same and node > min(same):
            yield True, f"its address {address} is also that of node {min(same)}; {what}"


def _routes(host: Facts, node: int, facts: Mapping[int, Facts]) -> Iterator[Remark]:
    """Check that all peers are reached through the shaped interface."""
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


def _program(host: Facts, program: Program) -> Iterator[Remark]:
    delays_s = [leaf.delay_us * 1e-6 for leaf in program.leaves if leaf.delay_us]
    rates_bps = [rate for rate in program.rates_bps.values() if math.isfinite(rate)]
    yield from _timers(host, min(delays_s, default=0.0))
    if rates_bps:
        yield from _speed(host, rates_bps, any(x.minor == CAP_MINOR for x in program.classes))
        yield from _segments(host, program, min(rates_bps))
    yield from _ssh(host, program)


def _timers(host: Facts, delay_s: float) -> Iterator[Remark]:
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


def _speed(host: Facts, rates_bps: Sequence[float], is_capped: bool) -> Iterator[Remark]:
    speed_bps = host.speed_bps
    if not speed_bps or host.driver in SOFTWARE_DRIVERS:
        return
    nic = f"{host.interface} is a {format_bandwidth(speed_bps)}/s NIC ({host.driver or 'unknown'})"
    most_bps, total_bps = max(rates_bps), sum(rates_bps)
    if most_bps > speed_bps:
        yield True, f"{nic}, a link wants {format_bandwidth(most_bps)}/s"
    elif total_bps > speed_bps and not is_capped:
        yield (
            False,
            f"{nic}: {len(rates_bps)} links used at once want {format_bandwidth(total_bps, 3)}/s",
        )


def _segments(host: Facts, program: Program, rate_bps: float) -> Iterator[Remark]:
    """Check the packet size of TCP: netem delays a large packet as one."""
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


def _ssh(host: Facts, program: Program) -> Iterator[Remark]:
    """Check that the controller's SSH connection is not shaped."""
    is_shaped = len(host.ssh) == 4 and int(host.ssh[3]) not in program.exempt_ports
    if is_shaped and any(address == host.ssh[0] for address, _ in program.matches):
        exempt = ", ".join(map(str, program.exempt_ports)) or "none"
        yield (
            True,
            f"the SSH connection of this controller, at port {host.ssh[3]}, would be shaped: "
            f"only those at ports {exempt} are not; name the port in the inventory (`port:`)",
        )


def _same_machine(host: Facts, node: int, facts: Mapping[int, Facts]) -> Iterator[Remark]:
    first = min(peer for peer, other in facts.items() if other.machine == host.machine)
    if first != node:
        yield (
            True,
            f"is the same machine as node {first}: traffic between them never leaves it and is "
            "not shaped; give each node its own machine or network namespace",
        )
