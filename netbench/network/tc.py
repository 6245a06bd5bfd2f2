"""Classes, netem leaves and filters, and the `tc -batch` line of each. Pure.

tc's own resolution (iproute2 6.1): delays are whole microseconds (stored in ticks of 64 ns),
rates whole bytes per second. Programs are written in these units, so that nothing is rounded twice.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from functools import lru_cache

from netbench.scenario.model import NO_BURSTS, BurstLoss

HANDLE = "6e62:"
"""The root qdisc of a netbench program ("nb" in ASCII): what has it is ours, all else is not."""

EXEMPT_PRIORITY = {4: 1, 6: 2}
"""Of the filters of ports that are not shaped, by IP version: before those of destinations."""

TABLES = {"normal": 0, "uniform": 1, "pareto": 2, "paretonormal": 3}
"""Jitter distribution -> "smallest packet" of the class above it, bytes. netem keeps its table for
good and cannot be asked which one it has. So the class is: no packet is as small as that."""

TABLE_DEVIATIONS = {
    "normal": 1.0,
    "uniform": 1 / math.sqrt(3),
    "pareto": 0.8197,
    "paretonormal": 0.8339,
}
"""Standard deviation that comes out of a jitter of 1. A table's 4096 values end at 4 deviations,
which cuts the tails. Source: `normal.dist`, `pareto.dist` and `paretonormal.dist` of iproute2 6.1;
measured in tests/network/noise_in_guest.py."""

_IP = {4: ("ip", "ip", 16), 6: ("ipv6", "ip6", 36)}
"""IP version -> tc's names of the protocol and of its matches, where the last four bytes of the
destination are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HtbClass:
    """A HTB class `6e62:minor` under `6e62:parent` (0 = the root). Rates bit/s, multiples of 8.

    mpu_bytes: which table the netem below it draws jitter from, see `TABLES`.
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

    jitter_us: netem's, which times `TABLE_DEVIATIONS` is the standard deviation.
    Shares and probabilities 0..1. may_overflow: the limit was asked for, and drops by it with it.
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


def class_line(verb: str, dev: str, htb: HtbClass) -> str:
    """A line of `tc -batch` about a class. verb: add, change, ...; dev: e.g. "dev eth0"."""
    parent = f"{htb.parent:x}" if htb.parent else ""
    return (
        f"class {verb} {dev} parent {HANDLE}{parent} classid {HANDLE}{htb.minor:x} htb "
        f"rate {htb.rate_bps}bit ceil {htb.ceil_bps}bit "
        f"burst {htb.burst_bytes}b cburst {htb.ceil_burst_bytes}b quantum {htb.quantum_bytes}"
        f"{f' mpu {htb.mpu_bytes}' if htb.mpu_bytes else ''}"
    )


def leaf_line(verb: str, dev: str, leaf: Leaf) -> str:
    """A line of `tc -batch` about a leaf; `change` is of whichever leaf the class has."""
    handle = "" if verb == "change" else f" handle {leaf.minor:x}:"
    return f"qdisc {verb} {dev} parent {HANDLE}{leaf.minor:x}{handle} netem {netem_options(leaf)}"


def netem_options(leaf: Leaf, *, every: bool = False) -> str:
    """What a new qdisc is given. every: also the fields that are 0 in a new one, for a qdisc that
    is changed: netem keeps what is not sent. (Its table it keeps for good, see `TABLES`.)"""
    delay = f"delay {leaf.delay_us}us {leaf.jitter_us}us"
    correlation = leaf.jitter_correlation if leaf.jitter_us else 0.0
    delay += f" {_percent(correlation)}" if correlation or every else ""
    if leaf.jitter_us:
        # Without a table netem's jitter is uniform.
        delay += "" if leaf.distribution == "uniform" else f" distribution {leaf.distribution}"
    loss = f"loss {_percent(leaf.loss)}"
    if leaf.bursts != NO_BURSTS:
        bursts = leaf.bursts
        shares = (bursts.to_bad, bursts.to_good, bursts.loss_bad, bursts.loss_good)
        loss = "loss gemodel " + " ".join(_percent(share) for share in shares)
    rest = [
        f"{name} {_percent(share)}"
        for name, share in (
            ("duplicate", leaf.duplication),
            ("corrupt", leaf.corruption),
            ("reorder", leaf.reordering),
        )
        if share or every
    ]
    words = [f"limit {leaf.limit_packets}", delay, loss, *rest, f"rate {leaf.rate_bps}bit"]
    return " ".join(words)


def exempt_line(dev: str, version: int, port: int, end: str) -> str:
    """TCP from (`sport`) or to (`dport`) a port goes to the root's own handle: HTB sends that at
    once."""
    protocol, match, _ = _IP[version]
    return (
        f"filter add {dev} parent {HANDLE} protocol {protocol} prio {EXEMPT_PRIORITY[version]} "
        f"u32 match {match} protocol 6 0xff match {match} {end} {port} 0xffff flowid {HANDLE}0"
    )


def match_line(dev: str, address: str, minor: int, *, hashed: bool) -> str:
    """The filter of one destination, in the bucket of its last byte where they are hashed."""
    ip = parse_ip(address)
    protocol, match, _ = _IP[ip.version]
    table = f" ht {ip.version}:{ip.packed[-1]:x}:" if hashed else ""
    return (
        f"filter add {dev} parent {HANDLE} protocol {protocol} prio {ip.version} u32{table} "
        f"match {match} dst {ip}/{ip.max_prefixlen} flowid {HANDLE}{minor:x}"
    )


def hash_lines(dev: str, version: int) -> tuple[str, str]:
    """A table of 256 buckets, and the rule that sends every packet to the bucket of its address."""
    protocol, _, last_word_at = _IP[version]
    common = f"parent {HANDLE} protocol {protocol} prio {version}"
    return (
        f"filter add {dev} {common} handle {version}: u32 divisor 256",
        f"filter add {dev} {common} u32 match u32 0 0 at {last_word_at} "
        f"hashkey mask 0x000000ff at {last_word_at} link {version}:",
    )


def ip_version(address: str) -> int:
    """4 or 6, of an address as programs have them."""
    return 6 if ":" in address else 4


@lru_cache(maxsize=1 << 14)
def parse_ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as programs have them; kept, for every node has those of all others."""
    return ipaddress.ip_address(address)


def _percent(share: float) -> str:
    return f"{share * 100:.9g}%"
