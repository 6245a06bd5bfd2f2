"""Compute how busy links, NICs and connections are in a simulated iteration."""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netbench.plan.model import Plan
from netbench.plan.tensor import LAYER_ALL_REDUCES, num_passes
from netbench.scenario.sharing import SHARING
from netbench.simulator import collectives, kernel
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, TaskKind, TaskTimeline
from netbench.simulator.iteration import Simulation
from netbench.simulator.segments import groups_of
from netbench.systems import system_of
from netbench.systems.iteration import Call

_Traffic = tuple[TaskTimeline, NDArray[np.float64] | float]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkUse:
    """Load of a shared resource over one iteration.

    kind: host (limit of one connection), channels (several connections of a collective), inside
    (a node), sockets (all that a host sends and receives), or a `scenario.sharing.QueueKind`.
    name: of nodes or regions, as text; `ends` has its parts, source first. payload_bytes: per
    iteration. capacity_bps: of payload, bit/s. utilisation: payload over what the resource could
    carry in the iteration.
    """

    kind: str
    name: str
    payload_bytes: float
    capacity_bps: float
    utilisation: float
    ends: tuple[str, ...]


def links(simulation: Simulation) -> tuple[LinkUse, ...]:
    """Return every resource that carries bytes in an iteration, busiest first."""
    fabric, plan = simulation.fabric, simulation.plan
    traffic = _traffic(plan, fabric, simulation.parts[0].timeline)
    by_path = np.zeros(len(fabric.delay_s))
    for timeline, times in traffic:
        flows = timeline.path != kernel.NONE
        amount = (timeline.amount * times)[flows]
        by_path += np.bincount(timeline.path[flows], amount, minlength=len(by_path))
    network, resources = fabric.network(), fabric.resources
    hops = network.hops
    used = hops != kernel.NONE
    carried = np.bincount(
        hops[used],
        weights=np.broadcast_to(by_path[:, None], hops.shape)[used],
        minlength=len(network.capacity),
    )
    utilisation = carried / network.capacity / simulation.iteration_s
    order = np.argsort(-utilisation, kind="stable")[: int((carried > 0).sum())].tolist()
    ends = {index: _ends(plan, fabric, resources[index]) for index in order}
    return tuple(
        LinkUse(
            kind=str(resources[index][0]),
            name=" -> ".join(ends[index]),
            payload_bytes=float(carried[index]),
            capacity_bps=float(8 * network.capacity[index]),
            utilisation=float(utilisation[index]),
            ends=ends[index],
        )
        for index in order
    )


def pair_bytes(simulation: Simulation) -> NDArray[np.float64]:
    """Return the payload of an iteration from rank to rank, (num_ranks, num_ranks), [src, dst]."""
    fabric, plan = simulation.fabric, simulation.plan
    total = np.zeros((plan.layout.num_ranks,) * 2)
    for timeline, times in _traffic(plan, fabric, simulation.parts[0].timeline):
        flows = timeline.path != kernel.NONE
        pairs = (timeline.rank[flows], timeline.peer[flows])
        np.add.at(total, pairs, (timeline.amount * times)[flows])
    return total


def num_simulated(plan: Plan, timeline: TaskTimeline) -> int:
    """Return the number of micro-batches in a timeline; the others repeat its steady state."""
    forward = (timeline.kind == TaskKind.FORWARD) & (timeline.rank == 0)
    return int(forward.sum()) // plan.num_chunks


def _traffic(plan: Plan, fabric: Fabric, timeline: TaskTimeline) -> list[_Traffic]:
    """Return timelines with all bytes of an iteration, and how often each task occurs.

    timeline: of the first part. It has a pipeline's messages and data parallelism; collectives that
    it contains only as a duration are simulated here. Each has the size of all that it moves in an
    iteration, or in one pass of a layer.
    """
    traffic: list[_Traffic] = []
    calls: list[tuple[collectives.AddCollective, NDArray[np.int64], float, float]] = []
    if not plan.has_pipelines:
        for call, size_bytes in _called_bytes(plan).items():
            groups = groups_of(call, plan.layout.num_ranks)
            algorithm = collectives.COLLECTIVES[call.library][call.op]
            calls.append((algorithm, groups, size_bytes, 1.0))
    else:
        messages = plan.num_rounds * plan.num_micro_batches / num_simulated(plan, timeline)
        traffic = [(timeline, np.where(timeline.kind == TaskKind.TRANSFER, messages, 1.0))]
    if plan.layout.tp > 1:
        steps = plan.num_rounds * plan.num_micro_batches
        grid = system_of(plan).rank_grid(plan.layout)
        layers = np.array([stage.num_layers for stage in plan.stages])
        for count in np.unique(layers):
            groups = grid[:, layers == count].reshape(-1, plan.layout.tp)
            times = float(LAYER_ALL_REDUCES * num_passes(plan) * count * steps)
            calls.append((collectives.ring_all_reduce, groups, float(plan.activation_bytes), times))
    for collective, groups, size, times in calls:
        graph = Graph(fabric)
        collective(graph, groups, size, graph.work(TaskKind.MARK, groups))
        traffic.append((graph.run(), times))
    return traffic


def _called_bytes(plan: Plan) -> dict[Call, float]:
    """Bytes of an iteration by collective, for one call of each that stands for all of its kind."""
    total: dict[Call, float] = {}
    system = system_of(plan)
    for segment in system.segments(system.representative(plan)):
        for call in (call for task in segment.tasks for call in task.calls):
            kind = dataclasses.replace(call, size_bytes=0.0)
            total[kind] = total.get(kind, 0.0) + segment.repeat * call.size_bytes
    return total


def _ends(plan: Plan, fabric: Fabric, resource: tuple[object, ...]) -> tuple[str, ...]:
    kind, *key = resource
    ids, names, regions = [int(str(value)) for value in key], plan.node_names, plan.network.regions
    kinds = {queues.name: queues.by for queues in SHARING[plan.network.sharing].queues}
    if kind == "sockets":
        return (names[ids[0]],)
    if kind not in kinds:  # between ranks
        source, target = (names[plan.device_nodes[plan.placement[rank]]] for rank in ids)
        if kind == "inside":
            return f"{source}, rank {ids[0]}", str(ids[1])
        return source, target
    parts, of_region, link = [], fabric.queues.region, fabric.queues.link
    for column, value in zip(kinds[str(kind)], ids, strict=True):
        if column == "link":
            alike = np.flatnonzero(link[of_region[ids[0]]] == value)
            parts.append(", ".join(regions[region] for region in alike))
        else:
            parts.append((names if column in ("src", "dst") else regions)[value])
    return tuple(parts)
