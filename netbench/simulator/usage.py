"""How busy links, NICs and connections are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netbench.plan.model import Plan
from netbench.plan.tensor import LAYER_ALL_REDUCES, num_passes
from netbench.simulator import collectives, kernel, local_steps
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, Kind, Timeline
from netbench.simulator.simulate import Simulation
from netbench.simulator.zero3 import copies
from netbench.workload.costs import DTYPE_BYTES, layer_matrices, layer_parameters, live_layers

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkUse:
    """Something that flows share, over one iteration.

    kind: host (what one connection moves at most), channels (several, of a collective), pair,
    class, trunk, egress, ingress, inside.
    name: of nodes or regions, for a person. payload_bytes: per iteration. capacity_bps: of payload,
    bit/s. utilisation: share of the iteration for which it would be full.
    """

    kind: str
    name: str
    payload_bytes: float
    capacity_bps: float
    utilisation: float


def links(simulation: Simulation) -> tuple[LinkUse, ...]:
    """Everything that carries bytes in an iteration, busiest first."""
    fabric, plan = simulation.fabric, simulation.plan
    by_path = _timeline_bytes(simulation)
    for timeline, times in _other_traffic(plan, fabric):
        by_path = _longer(by_path, times * _path_bytes(timeline, timeline.amount))
    network, resources = fabric.network(), fabric.resources
    hops = network.hops[: len(by_path)]
    used = hops != kernel.NONE
    carried = np.bincount(
        hops[used],
        weights=np.broadcast_to(by_path[:, None], hops.shape)[used],
        minlength=len(network.capacity),
    )
    utilisation = carried / network.capacity / simulation.iteration_s
    order = np.argsort(-utilisation, kind="stable")
    return tuple(
        LinkUse(
            kind=str(resources[index][0]),
            name=_name(plan, resources[index]),
            payload_bytes=float(carried[index]),
            capacity_bps=float(8 * network.capacity[index]),
            utilisation=float(utilisation[index]),
        )
        for index in order[: int((carried > 0).sum())]
    )


def num_simulated(plan: Plan, timeline: Timeline) -> int:
    """Micro-batches of a pipeline's timeline; the others of a round repeat its steady state."""
    forward = (timeline.kind == Kind.FORWARD) & (timeline.rank == 0)
    return int(forward.sum()) // plan.num_chunks


def _timeline_bytes(simulation: Simulation) -> Floats:
    """Payload of an iteration by path, of a pipeline's messages and its data parallelism."""
    plan, timeline = simulation.plan, simulation.parts[0].timeline
    if plan.schedule == "none":
        return np.zeros(0)
    messages = plan.num_rounds * plan.num_micro_batches / num_simulated(plan, timeline)
    times = np.where(timeline.kind == Kind.TRANSFER, messages, 1.0)
    return _path_bytes(timeline, timeline.amount * times)


def _path_bytes(timeline: Timeline, size: Floats) -> Floats:
    flows = timeline.path >= 0
    total: Floats = np.bincount(timeline.path[flows], weights=size[flows]).astype(np.float64)
    return total


def _longer(a: Floats, b: Floats) -> Floats:
    """The sum, of arrays that may differ in length."""
    total: Floats = np.zeros(max(len(a), len(b)))
    total[: len(a)] += a
    total[: len(b)] += b
    return total


def _other_traffic(plan: Plan, fabric: Fabric) -> list[tuple[Timeline, float]]:
    """Collectives that parts hold as a time only: a timeline of one, and how often it occurs.

    Its size is that of everything it moves in an iteration, or in one pass of a layer.
    """
    ranks = np.arange(plan.layout.num_ranks)
    found: list[tuple[collectives.Collective, NDArray[np.int64], float, float]] = []
    steps = plan.num_rounds * plan.num_micro_batches
    if plan.system == "zero3":
        gathered, scattered, across = _zero3_bytes(plan)
        groups = copies(plan)
        found.append((collectives.ring_all_gather, groups, gathered, 1.0))
        found.append((collectives.ring_reduce_scatter, groups, scattered, 1.0))
        if across:
            found.append((collectives.ring_all_reduce, groups.T, across, 1.0))
    elif plan.system == "ddp":
        size = float(plan.stages[0].gradient_bytes)
        algorithm = collectives.data_parallel(plan.data_parallel, plan.backend)
        found.append((algorithm, ranks[None], size, 1.0))
    elif plan.system in local_steps.SYSTEMS:
        size = float(plan.stages[0].gradient_bytes)
        algorithm = local_steps.COLLECTIVES[plan.system]
        found.append((algorithm, ranks[None], size, 1 / max(1, plan.local_steps)))
    elif plan.layout.tp > 1:
        stages = ranks.reshape(plan.layout.pp, -1, plan.layout.tp)
        layers = np.array([stage.num_layers for stage in plan.stages])
        for count in np.unique(layers):
            groups = stages[layers == count].reshape(-1, plan.layout.tp)
            times = float(LAYER_ALL_REDUCES * num_passes(plan) * count * steps)
            found.append((collectives.ring_all_reduce, groups, float(plan.activation_bytes), times))
    timelines = []
    for collective, groups, size, times in found:
        graph = Graph(fabric)
        collective(graph, groups, size, graph.work(Kind.MARK, groups))
        timelines.append((graph.run(), times))
    return timelines


def _zero3_bytes(plan: Plan) -> tuple[float, float, float]:
    """Parameters that are gathered, gradients that are scattered among those who share a copy, and
    shards that are reduced across copies in an iteration, bytes. Every micro-step gathers the live
    ones once, those of other layers twice, and scatters all; where gradients are kept, the live are
    gathered and all are scattered once."""
    workload, steps = plan.workload, plan.num_micro_batches
    once = 1 if plan.accumulation == "keep" else steps
    live = live_layers(workload, plan.live_parameters)
    total = workload.layers * layer_parameters(workload) + workload.embedding_parameters
    kept = min(total, live * layer_parameters(workload) + workload.embedding_parameters)
    again = 2 * (workload.layers - live) * sum(layer_matrices(workload))
    element = DTYPE_BYTES[workload.dtype]
    num_copies, shard_ranks = copies(plan).shape
    return (
        float(element * (once * kept + steps * again)),
        float(element * once * total),
        element * total / shard_ranks if num_copies > 1 else 0.0,
    )


def _name(plan: Plan, resource: tuple[object, ...]) -> str:
    kind, *which = resource
    names, network = plan.node_names, plan.network
    if kind in ("host", "channels", "inside"):
        ranks = [int(str(rank)) for rank in which]
        source, target = (names[plan.device_nodes[plan.placement[rank]]] for rank in ranks)
        if kind == "inside":
            return f"{source}, rank {ranks[0]} -> {ranks[1]}"
        return f"{source} -> {target}"
    if kind == "trunk":
        source, target = (network.regions[int(str(region))] for region in which)
        return f"{source} -> {target}"
    node = int(str(which[0]))
    if kind == "pair":
        return f"{names[node]} -> {names[int(str(which[1]))]}"
    if kind == "class":
        found = network.links[network.node_regions[node]]
        same = [
            region
            for region, link in zip(network.regions, found, strict=True)
            if (link.one_way_delay_s, link.bandwidth_bps) == tuple(which[1:])
        ]
        return f"{names[node]} -> {', '.join(same)}"
    return names[node]
