"""Traffic on links, from two readings of a node's counters. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.program import Program


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Counters of a node's queues at one time.

    at_s: by the node's clock. leaves: by HTB class, see `netlink.read_leaves`.
    """

    at_s: float
    leaves: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkTraffic:
    """Traffic of one queue of node `src`, to all of `dsts`.

    throughput_bps: sent between two readings, with headers. bandwidth_bps: its limit, inf = none.
    dropped_packets: since the queue was made. backlog_*: queued or in flight at the end.
    """

    src: int
    dsts: tuple[int, ...]
    throughput_bps: float
    bandwidth_bps: float
    dropped_packets: int
    backlog_bytes: int
    backlog_packets: int


def link_traffic(
    program: Program, nodes: Mapping[str, int], before: Counters, after: Counters
) -> tuple[LinkTraffic, ...]:
    """Return the traffic of every queue in both readings, in order. nodes: address -> node."""
    took_s = after.at_s - before.at_s
    uses, rates_bps = [], program.rates_bps
    for leaf in program.leaves:
        name = f"{HANDLE}{leaf.minor:x}"
        then, now = before.leaves.get(name), after.leaves.get(name)
        if then is None or now is None or took_s <= 0:
            continue
        # A queue that was replaced in between counts from 0.
        sent = now["bytes"] - (then["bytes"] if now["bytes"] >= then["bytes"] else 0)
        dsts = {nodes[address] for address, minor in program.matches if minor == leaf.minor}
        uses.append(
            LinkTraffic(
                src=program.node,
                dsts=tuple(sorted(dsts)),
                throughput_bps=8 * sent / took_s,
                bandwidth_bps=rates_bps[leaf.minor],
                dropped_packets=now["drops"],
                backlog_bytes=now["backlog"],
                backlog_packets=now["qlen"],
            )
        )
    return tuple(uses)
