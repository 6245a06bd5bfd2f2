"""From a plan to the time of an iteration, without executing anything.

An iteration repeats itself: GPipe rounds, micro-batches of a full 1F1B pipeline, micro-steps. So a
plan is simulated once per distinct part, and each part counts as often as it occurs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netbench.errors import PlanError
from netbench.plan.buckets import gradient_buckets
from netbench.plan.model import Plan
from netbench.plan.schedules import build_programs
from netbench.plan.tensor import LAYER_ALL_REDUCES, message_bytes
from netbench.simulator import collectives, local_steps
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, Ids, Kind, Timeline
from netbench.simulator.pipeline import Lanes, Wiring, add_pipelines, wire
from netbench.simulator.profile import TransportProfile, load_transport
from netbench.simulator.zero3 import Place, places, time_steps

STEADY = (2, 3, 4)
"""A pipeline is simulated with 4 units of micro-batches; what it does between the ends of the 2nd
and the 3rd, it repeats. A unit is at least 8 micro-batches and a multiple of the stages."""

MAX_KEPT_RANKS = 512
"""Parts of plans of up to so many ranks are kept for the next batch; larger ones take gigabytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A stretch of simulated time and how often an iteration repeats it.

    name: what it is, for a person. from_s, to_s: within the timeline, seconds.
    """

    name: str
    timeline: Timeline
    from_s: float
    to_s: float
    repeat: float

    @property
    def total_s(self) -> float:
        return self.repeat * (self.to_s - self.from_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """What an iteration of `plan` takes, and why.

    iteration_s: seconds. phases: seconds of the iteration by name, as the trainers report them.
    parts: in order of time; their totals sum to iteration_s. fabric: the paths of the timelines.
    """

    plan: Plan
    parts: tuple[Part, ...]
    phases: dict[str, float]
    fabric: Fabric

    @property
    def iteration_s(self) -> float:
        return sum(part.total_s for part in self.parts)


def simulate(
    plan: Plan, transport: TransportProfile | None = None, *, whole: bool = False
) -> Simulation:
    """Simulate one iteration of `plan` at full size; iterations do not differ.

    transport: None = the profile of the plan's backend; collectives are NCCL's with either. whole:
    every micro-batch of a pipeline, where else a steady state stands for most of them. Raises
    PlanError for a plan that the simulator has no rules for.
    """
    transport = transport or load_transport(plan.backend)
    if plan.schedule == "gpipe":
        return _gpipe(plan, transport, whole)
    if plan.schedule in ("1f1b", "interleaved", "zero-bubble"):
        return _one_f_one_b(plan, transport, whole)
    if plan.system not in _OF_ONE_RANK:
        raise PlanError(f"no simulation for schedule {plan.schedule!r} of system {plan.system!r}")
    return dataclasses.replace(_OF_ONE_RANK[plan.system](plan.at_slowest(), transport), plan=plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Timed:
    """A part of an iteration, simulated. moments: tasks whose ends divide it, by name."""

    fabric: Fabric
    timeline: Timeline
    moments: dict[str, Ids]

    def last_s(self, name: str) -> float:
        """When the last of the tasks of a moment ended, seconds."""
        return float(self.timeline.end_s[self.moments[name]].max())


def forget() -> None:
    """Drop the parts that are kept for plans which differ in their batch only. The wiring of
    schedules stays: it knows of no network and no time."""
    for part in (_gpipe_round, _one_f_one_b_pass, _zero3_steps):
        part.cache_clear()


def _timed(part: Any, plan: Plan, transport: TransportProfile, whole: bool = False) -> _Timed:
    """`part` of the plan's shape, kept for the next plan of the same shape unless it is large."""
    timed: _Timed = _kept(part, plan, transport, whole)
    return timed


def _kept(part: Any, plan: Plan, transport: TransportProfile, whole: bool = False) -> Any:
    make = part if plan.layout.num_ranks <= MAX_KEPT_RANKS else part.__wrapped__
    return make(shape(plan, whole), transport)


def shape(plan: Plan, whole: bool = False) -> Plan:
    """What of a plan its parts depend on: the batch only says how often they are repeated."""
    num_micro_batches = plan.num_micro_batches if whole else _num_simulated(plan)
    return dataclasses.replace(
        plan,
        workload=dataclasses.replace(plan.workload, batch=0),
        num_rounds=1,
        num_micro_batches=len(places(plan)) if plan.schedule == "none" else num_micro_batches,
        iterations=1,
        warmup_iterations=0,
        seed=0,
    )


def fabric_of(plan: Plan, transport: TransportProfile) -> Fabric:
    """The network between the ranks of `plan`."""
    nodes = np.asarray(plan.device_nodes)[np.asarray(plan.placement)]
    return Fabric(plan.network, nodes, transport, burst_bytes=plan.activation_bytes)


def rank_lanes(plan: Plan) -> Ids:
    """(num_lanes, pp): the ranks of each pipeline, one lane per tensor-parallel index.

    dtfm counts stages first, megatron tensor indices, then pipelines, then stages.
    """
    layout = plan.layout
    if plan.system == "dtfm":
        return np.arange(layout.num_ranks).reshape(layout.dp, layout.pp)
    return np.arange(layout.num_ranks).reshape(layout.pp, layout.dp * layout.tp).T.copy()


def _gpipe(plan: Plan, transport: TransportProfile, whole: bool) -> Simulation:
    """Rounds of forward, barrier, backward; after the last, gradients are synchronised and all
    meet at a barrier, where the iteration ends."""
    timed = _timed(_gpipe_round, plan, transport, whole)
    timeline, moments = timed.timeline, timed.moments
    turn_s, round_s, end_s = (timed.last_s(name) for name in ("turn", "ends", "done"))
    phases = (
        _stretch(plan, timeline, Kind.FORWARD, "forward", (0.0, turn_s), moments["halfway"]),
        _stretch(plan, timeline, Kind.BACKWARD, "backward", (turn_s, round_s), moments["ends"]),
    )
    sync = Part(name="synchronise", timeline=timeline, from_s=round_s, to_s=end_s, repeat=1)
    seconds_of = [sum(part.total_s for part in parts) for parts in phases]
    return Simulation(
        plan=plan,
        parts=(*phases[0], *phases[1], sync),
        phases={
            "forward_s": seconds_of[0],
            "backward_s": seconds_of[1],
            **_sync_phases(timeline, end_s - round_s),
        },
        fabric=timed.fabric,
    )


@functools.lru_cache(maxsize=4)
def _gpipe_round(plan: Plan, transport: TransportProfile) -> _Timed:
    graph, ranks = Graph(fabric_of(plan, transport)), rank_lanes(plan)
    lanes = pipeline_lanes(plan, ranks, blocking=False)
    seconds = compute_seconds(plan, graph.fabric)
    forward, backward = wired(plan.schedule, plan.layout.pp, plan.num_micro_batches)
    start = graph.work(Kind.MARK, ranks)
    halfway = add_pipelines(graph, lanes, forward, {"forward": seconds["forward"]}, start)
    turn = barrier(graph, ranks, halfway)
    ends = add_pipelines(graph, lanes, backward, {"backward": seconds["backward"]}, turn)
    moments = {"halfway": halfway, "turn": turn, "ends": ends}
    updated = synchronise(graph, plan, ranks, ends)
    moments["done"] = barrier(graph, ranks, updated)
    return _Timed(fabric=graph.fabric, timeline=graph.run(), moments=moments)


def _one_f_one_b(plan: Plan, transport: TransportProfile, whole: bool) -> Simulation:
    """Fill, a steady state, drain; then gradients are synchronised."""
    timed = _timed(_one_f_one_b_pass, plan, transport, whole)
    timeline, ready_s, end_s = timed.timeline, timed.last_s("ends"), timed.last_s("done")
    ends = timed.moments["ends"]
    parts = _stretch(plan, timeline, Kind.BACKWARD, "pipeline", (0.0, ready_s), ends)
    sync = Part(name="synchronise", timeline=timeline, from_s=ready_s, to_s=end_s, repeat=1)
    pipeline_s = sum(part.total_s for part in parts)
    phases = {"pipeline_s": pipeline_s, **_sync_phases(timeline, end_s - ready_s)}
    return Simulation(plan=plan, parts=(*parts, sync), phases=phases, fabric=timed.fabric)


@functools.lru_cache(maxsize=4)
def _one_f_one_b_pass(plan: Plan, transport: TransportProfile) -> _Timed:
    graph, ranks = Graph(fabric_of(plan, transport)), rank_lanes(plan)
    count = plan.num_micro_batches
    start = graph.work(Kind.MARK, ranks)
    lanes = pipeline_lanes(plan, ranks, blocking=plan.system == "megatron")
    (wiring,) = wired(plan.schedule, plan.layout.pp, count, plan.num_chunks, lanes.blocking)
    ends = add_pipelines(graph, lanes, wiring, compute_seconds(plan, graph.fabric), start)
    done = synchronise(graph, plan, ranks, ends)
    timeline = graph.run()
    if np.isnan(timeline.end_s).any():
        raise PlanError(f"schedule {plan.schedule} of {plan.variant} waits for itself")
    return _Timed(fabric=graph.fabric, timeline=timeline, moments={"ends": ends, "done": done})


@functools.lru_cache(maxsize=16)
def wired(
    schedule: str, depth: int, count: int, num_chunks: int = 1, blocking: bool = False
) -> tuple[Wiring, ...]:
    """A schedule's phases. They know of no network, so all plans of a shape have the same."""
    phases = build_programs(schedule, depth, count, num_chunks)
    return tuple(wire(programs, blocking=blocking) for programs in phases)


def _unit(plan: Plan) -> int:
    return plan.layout.pp * math.ceil(8 / plan.layout.pp)


def steady_labels(plan: Plan) -> tuple[int, int]:
    """The micro-batches between whose ends a full pipeline repeats itself."""
    first, last = (STEADY[index] * _unit(plan) - 1 for index in (0, 1))
    return first, last


def _num_simulated(plan: Plan) -> int:
    """Micro-batches of a pipeline to simulate; further ones repeat."""
    return min(plan.num_micro_batches, STEADY[2] * _unit(plan))


def _stretch(
    plan: Plan,
    timeline: Timeline,
    kind: Kind,
    name: str,
    window_s: tuple[float, float],
    ends: Ids,
) -> tuple[Part, ...]:
    """A phase as parts, its steady state repeated for the micro-batches that were not simulated.

    The pipelines of a phase go at different speeds: the one that would end last counts.
    """
    from_s, to_s = window_s
    missing = plan.num_micro_batches - 1 - int(timeline.label[timeline.kind == kind].max())
    if missing == 0:
        return (
            Part(name=name, timeline=timeline, from_s=from_s, to_s=to_s, repeat=plan.num_rounds),
        )
    first, last = steady_labels(plan)
    of_kind = timeline.kind == kind
    num_ranks = plan.layout.num_ranks
    marks = np.zeros((2, num_ranks))
    for row, label in enumerate((first, last)):
        chosen = of_kind & (timeline.label == label)
        np.maximum.at(marks[row], timeline.rank[chosen], timeline.end_s[chosen])
    period_s = (marks[1] - marks[0]) / (last - first)
    finish_s = np.zeros(num_ranks)
    finish_s[timeline.rank[ends].ravel()] = timeline.end_s[ends].ravel()
    slowest = int(np.argmax(finish_s + missing * period_s))
    cuts = (from_s, float(marks[0, slowest]), float(marks[1, slowest]), to_s)
    repeats = (1.0, 1.0 + missing / (last - first), 1.0)
    return tuple(
        Part(
            name=f"{name}, {stretch}",
            timeline=timeline,
            from_s=begin,
            to_s=end,
            repeat=repeat * plan.num_rounds,
        )
        for stretch, begin, end, repeat in zip(
            ("filling", "steady", "emptying"), cuts, cuts[1:], repeats, strict=False
        )
    )


def pipeline_lanes(plan: Plan, ranks: Ids, *, blocking: bool) -> Lanes:
    """The pipelines of `ranks`, as `rank_lanes` has them."""
    return Lanes(
        ranks=ranks,
        num_micro_batches=plan.num_micro_batches,
        message_bytes=message_bytes(plan),
        blocking=blocking,
    )


def rank_seconds(plan: Plan, cost: str) -> NDArray[np.float64]:
    """`cost` (forward_s, backward_s or optimizer_s) of every rank's stage on its device, in the
    rows and columns of `rank_lanes`."""
    lanes, types = rank_lanes(plan), plan.type_stages or (plan.stages,)
    seconds = np.array([[getattr(stage, cost) for stage in stages] for stages in types], np.float64)
    kind = np.zeros(len(plan.device_nodes), np.int64)
    kind[: len(plan.device_types)] = plan.device_types
    found: NDArray[np.float64] = seconds[
        kind[np.asarray(plan.placement)[lanes]], np.arange(lanes.shape[1])
    ]
    return found


def compute_seconds(plan: Plan, fabric: Fabric) -> dict[str, NDArray[np.float64]]:
    """Compute of one micro-batch by kind of work, (num_virtual_stages, num_lanes), seconds.

    Tensor-parallel ranks meet in every layer, and go at the pace of the slowest. Zero-bubble's
    gradients of weights are as much work as a forward pass.
    """
    chunks = plan.num_chunks
    forward, backward = (
        np.tile(_paced(plan, rank_seconds(plan, cost)).T / chunks, (chunks, 1))
        for cost in ("forward_s", "backward_s")
    )
    tensor_s = _tensor_parallel_s(plan, fabric)[:, None] if plan.layout.tp > 1 else 0.0
    passes = 2 if plan.workload.recomputation else 1
    seconds = {"forward": forward + tensor_s, "backward": backward + passes * tensor_s}
    if plan.schedule == "zero-bubble":
        seconds["backward"] = seconds["backward"] - forward
        seconds["weight"] = forward
    return seconds


def _paced(plan: Plan, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of lanes, with those of the slowest rank for all of a tensor-parallel group."""
    groups = seconds.reshape(-1, plan.layout.tp, seconds.shape[1])
    return np.repeat(groups.max(axis=1), plan.layout.tp, axis=0)


def _tensor_parallel_s(plan: Plan, fabric: Fabric) -> NDArray[np.float64]:
    """All-reduces of a chunk's forward pass, (num_virtual_stages,), seconds, in all tensor-parallel
    groups at once: of the boundary tensor, or as sequence parallelism cuts them in two
    (`plan.tensor`)."""
    layout = plan.layout
    groups = np.arange(layout.num_ranks).reshape(-1, layout.tp)
    chunks = plan.num_chunks
    layers = np.tile([stage.num_layers / chunks for stage in plan.stages], chunks)
    kinds = [collectives.ring_all_reduce]
    if plan.sequence_parallel:
        kinds = [collectives.ring_all_gather, collectives.ring_reduce_scatter]
    each_s = sum(_alone_s(fabric, groups, float(plan.activation_bytes), kind) for kind in kinds)
    return LAYER_ALL_REDUCES * layers * each_s


def _alone_s(
    fabric: Fabric, groups: Ids, size_bytes: float, collective: collectives.Collective
) -> float:
    """Seconds of a collective in all `groups` at once, with warm connections."""
    graph = Graph(fabric)
    gate = graph.work(Kind.MARK, groups)
    first = collective(graph, groups, size_bytes, gate)
    ready = graph.work(Kind.MARK, 0)
    graph.edge(first, ready)
    second = collective(graph, groups, size_bytes, np.broadcast_to(ready, groups.shape))
    timeline = graph.run()
    return float(timeline.end_s[second].max() - timeline.end_s[ready].max())


def barrier(graph: Graph, ranks: Ids, ends: Ids) -> Ids:
    """gloo's dissemination barrier: in step k a rank sends a word to rank + 2^k, once it has heard
    that it is awaited there, and waits for that of rank - 2^k. Source: gloo, `gloo/barrier.cc` and
    `gloo/transport/tcp/pair.cc`."""
    order = np.argsort(ranks.ravel())
    tasks, index = ends.ravel()[order], np.arange(order.size)
    for step in range(math.ceil(math.log2(max(1, order.size)))):
        source, target = (index - (1 << step)) % order.size, (index + (1 << step)) % order.size
        word, later = graph.work(Kind.MARK, index), graph.work(Kind.MARK, index)
        graph.edge(tasks, word)
        graph.edge(tasks[target], word, graph.delay_s(target, index))
        graph.edge(word, later)
        graph.edge(word[source], later, graph.delay_s(source, index))
        tasks = later
    return tasks[ranks]


def synchronise(graph: Graph, plan: Plan, ranks: Ids, ends: Ids) -> Ids:
    """Data parallelism of every stage, once its members are ready, and the update.

    ends: in the shape of `ranks`, (dp * tp, pp). Returns when each rank has done, in that shape.
    """
    dp, tp, pp = plan.layout.dp, plan.layout.tp, plan.layout.pp

    def grouped(of_rank: NDArray[Any]) -> NDArray[Any]:
        """(dp * tp, pp) -> (pp * tp, dp): the members of each group."""
        return of_rank.reshape(dp, tp, pp).transpose(2, 1, 0).reshape(pp * tp, dp)

    update_s = grouped(rank_seconds(plan, "optimizer_s"))
    done = _synchronise_groups(graph, plan, grouped(ranks), grouped(ends), update_s)
    return done.reshape(pp, tp, dp).transpose(2, 1, 0).reshape(ranks.shape)


def _synchronise_groups(
    graph: Graph, plan: Plan, members: Ids, gate: Ids, update_s: NDArray[np.float64]
) -> Ids:
    """All are (pp * tp, dp).

    dtfm updates on the hosts, which the updates of a node share; with a central server there is one
    member that does, with a sharded one each updates its share.
    """
    gradients = np.repeat([float(stage.gradient_bytes) for stage in plan.stages], plan.layout.tp)
    if plan.data_parallel == "reduce-broadcast":
        reduced = collectives.chain_reduce(graph, members, gradients, gate)
        at_once = graph.fabric.num_beside(members[:, 0])
        update = graph.work(Kind.OPTIMIZER, members[:, 0], update_s[:, 0] * at_once)
        graph.edge(reduced[:, 0], update)
        turn = graph.work(Kind.MARK, members)
        graph.edge(reduced, turn)
        graph.edge(update, turn[:, 0])
        return collectives.chain_broadcast(graph, members, gradients, turn)
    at_once = np.ones(members.shape, np.int64)
    if plan.system == "dtfm":
        at_once = graph.fabric.num_beside(members.ravel()).reshape(members.shape)
    if plan.data_parallel == "sharded-ps":
        summed = collectives.all_to_all(graph, members, gradients, gate)
        share_s = update_s * at_once / plan.layout.dp
        update = graph.work(Kind.OPTIMIZER, members, share_s)
        graph.edge(summed, update)
        return collectives.ring_all_gather(graph, members, gradients, update)
    done = collectives.DATA_PARALLEL[plan.data_parallel](graph, members, gradients, gate)
    update = graph.work(Kind.OPTIMIZER, members, update_s * at_once)
    graph.edge(done, update)
    return update


def _sync_phases(timeline: Timeline, total_s: float) -> dict[str, float]:
    updates = timeline.kind == Kind.OPTIMIZER
    optimizer_s = float((timeline.end_s - timeline.start_s)[updates].max())
    return {"sync_s": max(0.0, total_s - optimizer_s), "optimizer_s": optimizer_s}


@functools.lru_cache(maxsize=4)
def _zero3_steps(plan: Plan, transport: TransportProfile) -> tuple[Fabric, dict[Place, Timeline]]:
    fabric = fabric_of(plan, transport)
    return fabric, time_steps(plan, fabric, _alone_s)


def _zero3(plan: Plan, transport: TransportProfile) -> Simulation:
    """Micro-steps, then the update."""
    timelines: dict[Place, Timeline]
    fabric, timelines = _kept(_zero3_steps, plan, transport)
    stage, steps = plan.stages[0], plan.num_micro_batches
    parts = [
        Part(
            name=name,
            timeline=timelines[place],
            from_s=0.0,
            to_s=float(timelines[place].end_s.max()),
            repeat=count,
        )
        for name, place, count in places(plan)
    ]
    steps_s = sum(part.total_s for part in parts)
    once = Graph(fabric)
    once.work(Kind.OPTIMIZER, 0, stage.optimizer_s)
    rest = once.run()
    rest_s = float(rest.end_s.max())
    computed_s = steps * (stage.forward_s + stage.backward_s)
    parts.append(Part(name="update", timeline=rest, from_s=0.0, to_s=rest_s, repeat=1))
    phases = {
        "forward_s": steps * stage.forward_s,
        "backward_s": steps * stage.backward_s,
        "sync_s": steps_s - computed_s + rest_s - stage.optimizer_s,
        "optimizer_s": stage.optimizer_s,
    }
    return Simulation(plan=plan, parts=tuple(parts), phases=phases, fabric=fabric)


def _ddp(plan: Plan, transport: TransportProfile) -> Simulation:
    """Gradient accumulation; the last backward pass hands over a bucket as soon as it is full,
    and one communicator reduces bucket after bucket while the pass goes on."""
    stage, steps, fabric = plan.stages[0], plan.num_micro_batches, fabric_of(plan, transport)
    ring = np.arange(plan.layout.num_ranks)[None]
    buckets = gradient_buckets(plan)
    algorithm = collectives.data_parallel(plan.data_parallel, plan.backend)
    sizes = {bucket.size_bytes for bucket in buckets}
    alone_s = {size: _alone_s(fabric, ring, size, algorithm) for size in sorted(sizes)}
    seconds = [alone_s[bucket.size_bytes] + plan.collective_s for bucket in buckets]
    micro = Graph(fabric)
    forward = micro.work(Kind.FORWARD, 0, stage.forward_s)
    micro.edge(forward, micro.work(Kind.BACKWARD, 0, stage.backward_s))
    last, order = Graph(fabric), np.arange(len(buckets))
    forward = last.work(Kind.FORWARD, 0, stage.forward_s)
    between_s = np.diff([bucket.ready_s for bucket in buckets], prepend=0.0)
    pieces = last.work(Kind.BACKWARD, 0, between_s, order)
    reduced = last.work(Kind.COLLECTIVE, 0, seconds, order)
    update = last.work(Kind.OPTIMIZER, 0, stage.optimizer_s)
    for before, after in ((forward, pieces[:1]), (pieces[:-1], pieces[1:]), (pieces, reduced)):
        last.edge(before, after)
    last.edge(reduced[:-1], reduced[1:])
    last.edge(reduced[-1], update)
    timelines = micro.run(), last.run()
    ends_s = [float(timeline.end_s.max()) for timeline in timelines]
    parts = (
        Part(
            name="micro-batch", timeline=timelines[0], from_s=0.0, to_s=ends_s[0], repeat=steps - 1
        ),
        Part(name="last, synchronise", timeline=timelines[1], from_s=0.0, to_s=ends_s[1], repeat=1),
    )
    phases = {
        "forward_s": steps * stage.forward_s,
        "backward_s": steps * stage.backward_s,
        "sync_s": ends_s[1] - stage.forward_s - stage.backward_s - stage.optimizer_s,
        "optimizer_s": stage.optimizer_s,
    }
    return Simulation(plan=plan, parts=parts, phases=phases, fabric=fabric)


def _local_steps(plan: Plan, transport: TransportProfile) -> Simulation:
    """Those of `local_steps`; an iteration is the mean over a whole round."""
    fabric, ring = fabric_of(plan, transport), np.arange(plan.layout.num_ranks)[None]

    def alone_s(collective: collectives.Collective, size_bytes: float) -> float:
        return _alone_s(fabric, ring, size_bytes, collective)

    parts = tuple(
        Part(
            name=stretch.name,
            timeline=stretch.timeline,
            from_s=0.0,
            to_s=float(stretch.timeline.end_s.max()),
            repeat=stretch.repeat,
        )
        for stretch in local_steps.SYSTEMS[plan.system](plan, fabric, alone_s)
    )
    iteration_s = sum(part.total_s for part in parts)
    phases = local_steps.phases(plan, iteration_s)
    return Simulation(plan=plan, parts=parts, phases=phases, fabric=fabric)


_OF_ONE_RANK: dict[str, Callable[[Plan, TransportProfile], Simulation]] = {
    "zero3": _zero3,
    "ddp": _ddp,
    **dict.fromkeys(local_steps.SYSTEMS, _local_steps),
}
"""Systems whose ranks all do the same, so that one stands for all: where devices differ, the
slowest. The others compute less and wait for it, wherever they meet."""
