"""Throughput, drops and backlog out of two looks at a node's counters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from netbench.network.probing.usage import Counters, link_traffic
from netbench.network.shaping.program import compile_program
from netbench.network.shaping.readback import parse
from tests.network.shaping_cases import CASES
from tests.networks import ADDRESSES

GOLDEN = Path(__file__).parents[2] / "golden" / "network"
PAIR = compile_program(CASES["pair"][0], 0, ADDRESSES, "eth0")
NODES = {address: node for node, pair in enumerate(ADDRESSES) for address in pair}


def counters_at(at_s: float, counters: dict[str, dict[str, Any]]) -> Counters:
    """Return what tc printed with other counters. counters: class -> field -> value."""
    qdiscs, filters = (GOLDEN / "pair.tables.json").read_text().split("\n", 1)
    changed = [q | counters.get(q.get("parent", ""), {}) for q in json.loads(qdiscs)]
    tables = f"{json.dumps(changed)}\n{filters}"
    found = parse(tables, (GOLDEN / "pair.classes.txt").read_text())
    return Counters(at_s=at_s, leaves=found.leaves)


def test_bytes_between_two_looks_over_the_nodes_own_time() -> None:
    """1 MB in 2 s are 4 Mbit/s; what waits and what was dropped is as it is."""
    before = counters_at(100.0, {"6e62:2": {"bytes": 5_000_000}})
    now = {"bytes": 6_000_000, "drops": 3, "backlog": 1514, "qlen": 1}
    uses = link_traffic(PAIR, NODES, before, counters_at(102.0, {"6e62:2": now}))
    assert [use.dsts for use in uses] == [(1,), (2,), (3,)]
    first = uses[0]
    assert (first.src, first.throughput_bps, first.bandwidth_bps) == (0, 4e6, 5e9)
    assert (first.dropped_packets, first.backlog_bytes, first.backlog_packets) == (3, 1514, 1)
    assert uses[1].throughput_bps == 0


def test_a_queue_that_was_made_anew_counts_from_zero() -> None:
    """Not minus what the old one had sent."""
    before = counters_at(100.0, {"6e62:2": {"bytes": 5_000_000}})
    after = counters_at(101.0, {"6e62:2": {"bytes": 1000}})
    assert link_traffic(PAIR, NODES, before, after)[0].throughput_bps == 8000


def test_what_is_not_there_is_left_out() -> None:
    """A node that is not shaped has no links to show, and no time no throughput."""
    one = counters_at(100.0, {})
    bare = Counters(at_s=101.0, leaves={})
    assert link_traffic(PAIR, NODES, one, bare) == ()
    assert link_traffic(PAIR, NODES, one, one) == ()
