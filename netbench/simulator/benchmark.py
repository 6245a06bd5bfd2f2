"""Collectives and transfers by themselves, as `netbench collective` runs them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from netbench.plan.collective import ELEMENT_BYTES, CollectivePlan
from netbench.simulator.collectives import COLLECTIVES
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, Ids, Kind
from netbench.simulator.profile import TransportProfile, load_transport


def simulate_collective(plan: CollectivePlan, transport: TransportProfile | None = None) -> float:
    """Seconds until the last rank has finished, all starting at once, over connections that the
    iteration before has opened up.

    transport: None = the built-in profile of the plan's backend. Sizes and rates are unscaled, the
    payload a whole number of elements per rank.
    """
    fabric = Fabric(
        plan.network, np.arange(plan.num_nodes), transport or load_transport(plan.backend)
    )
    graph = Graph(fabric)
    num_members = 2 if plan.op == "p2p" else plan.num_nodes
    members = np.arange(num_members)[None, :]
    shard_elements = -(-plan.payload_bytes // (ELEMENT_BYTES * plan.num_nodes))
    size_bytes = shard_elements * ELEMENT_BYTES * plan.num_nodes
    collective = COLLECTIVES[plan.backend][plan.op]
    warm = collective(graph, members, size_bytes, graph.work(Kind.MARK, members))
    gate = graph.work(Kind.MARK, members)
    graph.edge(warm.reshape(-1, 1), gate)
    done = collective(graph, members, size_bytes, gate)
    timeline = graph.run()
    return float(_last(timeline.end_s, done) - _last(timeline.end_s, gate))


def _last(end_s: NDArray[np.float64], tasks: Ids) -> float:
    return float(end_s[tasks].max())
