"""Classes, netem leaves and filters, and the `tc -batch` line of each. Pure.

tc's resolution (iproute2 6.1): delays are whole microseconds, stored in ticks of 64 ns, and rates
are whole bytes per second. Configurations use these units, so that nothing is rounded twice.
"""

import ipaddress
import math
from dataclasses import dataclass
from functools import lru_cache

from netbench.network.shaping.batch import HANDLE
from netbench.scenario.model import NO_BURSTS, BurstLoss, Network

ETHERNET_HEADER_BYTES = 14
"""Bytes that a qdisc counts beyond the IP packet (no preamble, no checksum)."""

TCP_HEADER_BYTES = 52
"""IPv4 20, TCP 20, timestamps 12, in every segment of Linux (RFC 791, 9293, 7323)."""

EXEMPT_PRIORITY = {4: 1, 6: 2}
"""Priority of the filters of exempt ports, by IP version: before the filters of destinations."""

TABLES = {"normal": 0, "uniform": 1, "pareto": 2, "paretonormal": 3}
"""Jitter distribution -> minimum packet size of the class above the netem, bytes. netem keeps its
table for ever and does not report it, so the class records it: no packet is that small."""

TABLE_DEVIATIONS = {
    "normal": 1.0,
    "uniform": 1 / math.sqrt(3),
    "pareto": 0.8197,
    "paretonormal": 0.8339,
}
"""Standard deviation that a jitter of 1 produces. A table's 4096 values end at 4 deviations, which
truncates the tails. Source: `normal.dist`, `pareto.dist` and `paretonormal.dist` of iproute2 6.1;
measured in tests/network/noise_in_guest.py."""

_IP = {4: ("ip", "ip", 16), 6: ("ipv6", "ip6", 36)}
"""IP version -> tc's names of protocol and match, offset of the destination's last four bytes."""


FAIR_MEMORY_BYTES, NEVER_S = 1 << 30, 1000
"""Largest size of a fair queue, and how long a packet may wait before CoDel acts."""


def frame_bytes(network: Network) -> int:
    """Return the size of a full frame as a qdisc counts it, bytes."""
    return network.mtu_bytes + ETHERNET_HEADER_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class HtbClass:
    """A HTB class `6e62:minor` under `6e62:parent` (0 = the root). Rates bit/s, multiples of 8.

    mpu_bytes: records the jitter table of the netem below, see `TABLES`.
    """

    minor: int
    parent: int
    rate_bps: int
    ceil_bps: int
    burst_bytes: int
    ceil_burst_bytes: int
    quantum_bytes: int
    mpu_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """The netem qdisc `minor:` in class `6e62:minor`. rate_bps: bit/s, 0 = not limited.

    jitter_us: netem's parameter; times `TABLE_DEVIATIONS` it is the standard deviation.
    Probabilities are 0..1. may_overflow: the scenario asked for the limit, so its drops are wanted.
    fair_quantum_bytes: connections leave in turn, this much of each (fq_codel); 0 = packets leave
    in order of arrival.
    """

    minor: int
    delay_us: int
    jitter_us: int
    loss: float
    rate_bps: int
    limit_packets: int
    distribution: str = "normal"
    jitter_correlation: float = 0.0
    bursts: BurstLoss = NO_BURSTS
    duplication: float = 0.0
    corruption: float = 0.0
    reordering: float = 0.0
    may_overflow: bool = False
    fair_quantum_bytes: int = 0


def class_line(verb: str, dev: str, htb: HtbClass) -> str:
    """Format a class for `tc -batch`. verb: add, change, ...; dev: e.g. "dev eth0"."""
    parent = f"{htb.parent:x}" if htb.parent else ""
    return (
        f"class {verb} {dev} parent {HANDLE}{parent} classid {HANDLE}{htb.minor:x} htb "
        f"rate {htb.rate_bps}bit ceil {htb.ceil_bps}bit "
        f"burst {htb.burst_bytes}b cburst {htb.ceil_burst_bytes}b quantum {htb.quantum_bytes}"
        f"{f' mpu {htb.mpu_bytes}' if htb.mpu_bytes else ''}"
    )


def leaf_line(verb: str, dev: str, leaf: Leaf) -> str:
    """Format a leaf for `tc -batch`; `change` applies to whichever leaf the class has."""
    handle = "" if verb == "change" else f" handle {leaf.minor:x}:"
    return f"qdisc {verb} {dev} parent {HANDLE}{leaf.minor:x}{handle} netem {netem_options(leaf)}"


def fair_line(dev: str, leaf: Leaf, num_buckets: int) -> str:
    """Format the fair queue below a netem, which packets enter when their delay is over.

    It is fq_codel, whose times are so long that it never drops a packet. num_buckets: of its hash
    of connections.
    """
    limits = f"limit {leaf.limit_packets} memory_limit {FAIR_MEMORY_BYTES} flows {num_buckets}"
    never = f"target {NEVER_S}s interval {NEVER_S}s noecn"
    quantum = f"quantum {leaf.fair_quantum_bytes}"
    return f"qdisc add {dev} parent {leaf.minor:x}:1 fq_codel {limits} {never} {quantum}"


def netem_options(leaf: Leaf, *, every: bool = False) -> str:
    """Format the options of a netem.

    every: include fields that are 0, for a qdisc that is changed: netem keeps what is not sent.
    """
    delay = f"delay {leaf.delay_us}us {leaf.jitter_us}us"
    correlation = leaf.jitter_correlation if leaf.jitter_us else 0.0
    delay += f" {_percent(correlation)}" if correlation or every else ""
    if leaf.jitter_us:
        # netem's jitter is uniform without a table.
        delay += "" if leaf.distribution == "uniform" else f" distribution {leaf.distribution}"
    loss = f"loss {_percent(leaf.loss)}"
    if leaf.bursts != NO_BURSTS:
        loss = "loss gemodel " + " ".join(map(_percent, gemodel(leaf.bursts).values()))
    others = {
        "duplicate": leaf.duplication, "corrupt": leaf.corruption, "reorder": leaf.reordering,
    }  # fmt: skip
    rest = [f"{name} {_percent(x)}" for name, x in others.items() if x or every]
    options = [f"limit {leaf.limit_packets}", delay, loss, *rest, f"rate {leaf.rate_bps}bit"]
    return " ".join(options)


def gemodel(bursts: BurstLoss) -> dict[str, float]:
    """Return the parameters of netem's Gilbert-Elliott model by tc's names, in tc's order."""
    return {
        "p": bursts.to_bad, "r": bursts.to_good, "1-h": bursts.loss_bad, "1-k": bursts.loss_good,
    }  # fmt: skip


def exempt_line(dev: str, version: int, port: int, end: str) -> str:
    """Format a filter that sends TCP from (`sport`) or to (`dport`) a port to the root itself.

    HTB sends such packets at once.
    """
    protocol, match, _ = _IP[version]
    return (
        f"filter add {dev} parent {HANDLE} protocol {protocol} prio {EXEMPT_PRIORITY[version]} "
        f"u32 match {match} protocol 6 0xff match {match} {end} {port} 0xffff flowid {HANDLE}0"
    )


def match_line(dev: str, address: str, minor: int, *, hashed: bool) -> str:
    """Format the filter of a destination; hashed filters are in the bucket of its last byte."""
    ip = parse_ip(address)
    protocol, match, _ = _IP[ip.version]
    table = f" ht {ip.version}:{ip.packed[-1]:x}:" if hashed else ""
    return (
        f"filter add {dev} parent {HANDLE} protocol {protocol} prio {ip.version} u32{table} "
        f"match {match} dst {ip}/{ip.max_prefixlen} flowid {HANDLE}{minor:x}"
    )


def hash_lines(dev: str, version: int) -> tuple[str, str]:
    """Format a table of 256 buckets, and the rule that sends packets to their bucket."""
    protocol, _, last_word_at = _IP[version]
    common = f"parent {HANDLE} protocol {protocol} prio {version}"
    return (
        f"filter add {dev} {common} handle {version}: u32 divisor 256",
        f"filter add {dev} {common} u32 match u32 0 0 at {last_word_at} "
        f"hashkey mask 0x000000ff at {last_word_at} link {version}:",
    )


def ip_version(address: str) -> int:
    """Return 4 or 6 for an address of a tc configuration."""
    return 6 if ":" in address else 4


@lru_cache(maxsize=1 << 14)
def parse_ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address; cached, because every node has the addresses of all others."""
    return ipaddress.ip_address(address)


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.9g}%"
