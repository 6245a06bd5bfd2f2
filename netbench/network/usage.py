"""What links carry: two looks at a node's counters, compared. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from netbench.network.program import UNLIMITED_BPS, Program
from netbench.network.tc import HANDLE


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """Counters of a node. at_s: its own clock. leaves: by HTB class, with at least `bytes`,
    `drops`, `backlog` (bytes) and `qlen` (packets) each, as `tc -s -j` has them."""

    at_s: float
    leaves: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkUse:
    """One queue of node `src`, to all of `dsts`. throughput_bps: as sent, with headers, between two
    looks. bandwidth_bps: what it may carry, inf = not limited. dropped_packets: since it was made.
    backlog_bytes, backlog_packets: waiting or on their way, at the second look."""

    src: int
    dsts: tuple[int, ...]
    throughput_bps: float
    bandwidth_bps: float
    dropped_packets: int
    backlog_bytes: int
    backlog_packets: int


def link_uses(
    program: Program, nodes: Mapping[str, int], before: Look, after: Look
) -> tuple[LinkUse, ...]:
    """Every queue of a program that both looks have, in its order. nodes: address -> node."""
    took_s = after.at_s - before.at_s
    uses = []
    for leaf in program.leaves:
        name = f"{HANDLE}{leaf.minor:x}"
        then, now = before.leaves.get(name), after.leaves.get(name)
        if then is None or now is None or took_s <= 0:
            continue
        # A queue that was made anew in between counts from 0.
        sent = now["bytes"] - (then["bytes"] if now["bytes"] >= then["bytes"] else 0)
        dsts = {nodes[address] for address, minor in program.matches if minor == leaf.minor}
        ceils = [htb.ceil_bps for htb in program.classes if htb.minor == leaf.minor]
        rate_bps = min([leaf.rate_bps or UNLIMITED_BPS, *ceils])
        uses.append(
            LinkUse(
                src=program.node,
                dsts=tuple(sorted(dsts)),
                throughput_bps=8 * sent / took_s,
                bandwidth_bps=rate_bps if rate_bps < UNLIMITED_BPS else math.inf,
                dropped_packets=now["drops"],
                backlog_bytes=now["backlog"],
                backlog_packets=now["qlen"],
            )
        )
    return tuple(uses)


def busiest(uses: Sequence[LinkUse], count: int) -> tuple[LinkUse, ...]:
    """Those that carry most, most first; of equal ones in order."""
    return tuple(sorted(uses, key=lambda use: -use.throughput_bps)[:count])
