"""Simulate one iteration of a plan.

An iteration repeats itself: GPipe rounds, micro-batches of a full 1F1B pipeline, micro-steps. So
each distinct part is simulated once, and counts as often as it occurs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from netbench.errors import PlanError
from netbench.limits import check_memory
from netbench.plan.model import Plan
from netbench.plan.schedules import build_programs
from netbench.plan.tensor import LAYER_ALL_REDUCES, message_bytes
from netbench.simulator import collectives
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, Ids, TaskKind, TaskTimeline
from netbench.simulator.pipeline import Lanes, Noise, Wiring, add_pipelines, wire
from netbench.simulator.segments import groups_of, time_segment
from netbench.systems import has_random_passes, rank_lanes, sums_losses, system_of
from netbench.systems.iteration import Call
from netbench.transport.profile import TransportProfile, load_transport
from netbench.workload.costs import stage_tensors

Result = TypeVar("Result")

STEADY = (2, 3, 4)
"""A pipeline is simulated with 4 units of micro-batches. Its steady state, from the end of the 2nd
to the end of the 3rd, is repeated. A unit is the least multiple of the stages of 8 or more."""

RANDOM_STEADY = (4, 12, 13)
"""The same where passes take random times: a mean needs more micro-batches."""

STEP_BYTES = 4000
"""Memory of a micro-batch on a stage of a schedule, in both directions (measured)."""

SHARDED = {"sharded-ps": collectives.all_to_all, "zero1": collectives.ring_reduce_scatter}
"""`Plan.data_parallel` -> collective that sums a shard of the gradients on each member, which then
updates its shard of the parameters and sends it to the others."""

DRAWS = 3
"""Iterations that are simulated where pipelines meet (`systems.pipelines_meet`), each with other
random times of passes. Odd, so that one of them is the median."""

MAX_KEPT_RANKS = 640
"""Largest plan, in ranks, whose parts are kept for the next batch; larger ones take gigabytes."""

RANDOM_TIMELINES = 10
"""Timelines of a plan without random times that take the memory of one with them: three draws of
13 units of micro-batches instead of 4."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A stretch of simulated time and how often an iteration repeats it.

    name: for reports. from_s, to_s: within the timeline, seconds.
    """

    name: str
    timeline: TaskTimeline
    from_s: float
    to_s: float
    repeat: float

    @property
    def total_s(self) -> float:
        return self.repeat * (self.to_s - self.from_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """A simulated iteration of `plan`; where pipelines meet, the median of several.

    iteration_s: seconds. phases: seconds of the iteration by name, as the trainers report them.
    parts: in order of time; their totals sum to iteration_s. fabric: the paths of the timelines.
    drawn_s: seconds of all iterations of which this is the median, ascending.
    """

    plan: Plan
    parts: tuple[Part, ...]
    phases: dict[str, float]
    fabric: Fabric
    drawn_s: tuple[float, ...] = ()

    @property
    def iteration_s(self) -> float:
        return sum(part.total_s for part in self.parts)


def simulate(
    plan: Plan, transport: TransportProfile | None = None, *, whole: bool = False
) -> Simulation:
    """Simulate one iteration of `plan` at full size.

    Where pipelines meet, the times of passes are random (`Plan.jitter`), and this is the median of
    `DRAWS` iterations; elsewhere iterations do not differ.

    transport: None = the profile of the plan's backend; collectives are NCCL's with either. whole:
    simulate every micro-batch of a pipeline, instead of repeating a steady state. Raises PlanError
    for a plan that the simulator has no rules for.
    """
    transport = transport or load_transport(plan.backend)
    if not plan.has_pipelines:
        return _one_rank_for_all(plan, transport)
    kind, part = (_gpipe, _gpipe_round) if plan.has_turn else (_one_f_one_b, _one_f_one_b_pass)
    drawn = [kind(plan, timed) for timed in _kept(part, plan, transport, whole)]
    drawn.sort(key=lambda one: one.iteration_s)
    drawn_s = tuple(one.iteration_s for one in drawn)
    return dataclasses.replace(drawn[len(drawn) // 2], drawn_s=drawn_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Timed:
    """A simulated part of an iteration. moments: tasks whose ends divide it, by name."""

    fabric: Fabric
    timeline: TaskTimeline
    moments: dict[str, Ids]

    def last_s(self, name: str) -> float:
        """Return the end of the last task of a moment, seconds."""
        return float(self.timeline.end_s[self.moments[name]].max())


def forget() -> None:
    """Drop the parts that are kept for plans which differ only in their batch.

    The wiring of schedules stays: it depends on no network and no durations.
    """
    for part in (_gpipe_round, _one_f_one_b_pass, _known_calls):
        part.cache_clear()


def _kept(
    part: functools._lru_cache_wrapper[Result],
    plan: Plan,
    transport: TransportProfile,
    whole: bool = False,
) -> Result:
    """Return `part` of the plan's shape. It is kept for the next plan unless it is large."""
    timelines = RANDOM_TIMELINES if plan.has_pipelines and has_random_passes(plan) else 1
    make = part if timelines * plan.layout.num_ranks <= MAX_KEPT_RANKS else part.__wrapped__
    return make(shape(plan, whole), transport)


def shape(plan: Plan, whole: bool = False) -> Plan:
    """Return the plan without values that its parts do not depend on, such as the batch."""
    num_micro_batches = plan.num_micro_batches
    if not whole:  # further ones repeat
        num_micro_batches = min(num_micro_batches, _steady(plan)[2] * _unit(plan))
    return dataclasses.replace(
        plan,
        workload=dataclasses.replace(plan.workload, batch=0),
        num_rounds=1,
        num_micro_batches=num_micro_batches if plan.has_pipelines else 1,
        iterations=1,
        warmup_iterations=0,
        seed=0,
    )


def fabric_of(plan: Plan, transport: TransportProfile) -> Fabric:
    """Return the network between the ranks of `plan`."""
    nodes = np.asarray(plan.device_nodes)[np.asarray(plan.placement)]
    return Fabric(plan.network, nodes, transport, burst_bytes=plan.activation_bytes)


def _noises(plan: Plan) -> list[Noise | None]:
    """Return the noise of every iteration to simulate."""
    if not has_random_passes(plan):
        return [None]
    return [Noise(plan.jitter, draw) for draw in range(DRAWS)]


def _steady(plan: Plan) -> tuple[int, int, int]:
    """Return the units of a pipeline, as in `STEADY`."""
    return RANDOM_STEADY if has_random_passes(plan) else STEADY


def _gpipe(plan: Plan, timed: _Timed) -> Simulation:
    """Return an iteration: rounds of forward, barrier, backward.

    After the last round, gradients are synchronised, and a barrier ends the iteration.
    """
    timeline, moments = timed.timeline, timed.moments
    turn_s, round_s, end_s = (timed.last_s(name) for name in ("turn", "ends", "done"))
    phases = (
        _stretch(plan, timeline, TaskKind.FORWARD, "forward", (0.0, turn_s), moments["halfway"]),
        _stretch(plan, timeline, TaskKind.BACKWARD, "backward", (turn_s, round_s), moments["ends"]),
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
def _gpipe_round(plan: Plan, transport: TransportProfile) -> tuple[_Timed, ...]:
    """Simulate a round and the synchronisation, once per noise."""
    fabric = fabric_of(plan, transport)
    return tuple(_one_round(plan, fabric, noise) for noise in _noises(plan))


def _one_round(plan: Plan, fabric: Fabric, noise: Noise | None) -> _Timed:
    graph, ranks = Graph(fabric), rank_lanes(plan)
    lanes = pipeline_lanes(plan, ranks, noise)
    seconds = compute_seconds(plan, graph.fabric)
    forward, backward = wired(
        plan.schedule, plan.layout.pp, plan.num_micro_batches, blocking=lanes.blocking
    )
    start = graph.work(TaskKind.MARK, ranks)
    halfway = add_pipelines(graph, lanes, forward, {"forward": seconds["forward"]}, start)
    turn = barrier(graph, ranks, halfway)
    ends = add_pipelines(graph, lanes, backward, {"backward": seconds["backward"]}, turn)
    moments = {"halfway": halfway, "turn": turn, "ends": ends}
    updated = synchronise(graph, plan, ranks, ends)
    moments["done"] = barrier(graph, ranks, updated)
    return _Timed(fabric=graph.fabric, timeline=graph.run(), moments=moments)


def _one_f_one_b(plan: Plan, timed: _Timed) -> Simulation:
    """Return an iteration: fill, steady state and drain; then gradients are synchronised."""
    timeline, ready_s, end_s = timed.timeline, timed.last_s("ends"), timed.last_s("done")
    ends = timed.moments["ends"]
    parts = _stretch(plan, timeline, TaskKind.BACKWARD, "pipeline", (0.0, ready_s), ends)
    sync = Part(name="synchronise", timeline=timeline, from_s=ready_s, to_s=end_s, repeat=1)
    pipeline_s = sum(part.total_s for part in parts)
    phases = {"pipeline_s": pipeline_s, **_sync_phases(timeline, end_s - ready_s)}
    return Simulation(plan=plan, parts=(*parts, sync), phases=phases, fabric=timed.fabric)


@functools.lru_cache(maxsize=4)
def _one_f_one_b_pass(plan: Plan, transport: TransportProfile) -> tuple[_Timed, ...]:
    """Simulate all passes and the synchronisation, once per noise."""
    fabric = fabric_of(plan, transport)
    return tuple(_one_pass(plan, fabric, noise) for noise in _noises(plan))


def _one_pass(plan: Plan, fabric: Fabric, noise: Noise | None) -> _Timed:
    graph, ranks = Graph(fabric), rank_lanes(plan)
    count = plan.num_micro_batches
    start = graph.work(TaskKind.MARK, ranks)
    lanes = pipeline_lanes(plan, ranks, noise)
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
    """Return a schedule's phases. They depend on no network: all plans of a shape share them."""
    steps = depth * count * num_chunks
    check_memory(STEP_BYTES * steps, f"{depth} stages with {count} micro-batches each")
    phases = build_programs(schedule, depth, count, num_chunks)
    return tuple(wire(programs, blocking=blocking) for programs in phases)


def _unit(plan: Plan) -> int:
    return plan.layout.pp * math.ceil(8 / plan.layout.pp)


def steady_labels(plan: Plan) -> tuple[int, int]:
    """Return the two micro-batches between whose ends a full pipeline is in steady state."""
    first, last = (number * _unit(plan) - 1 for number in _steady(plan)[:2])
    return first, last


def _stretch(
    plan: Plan,
    timeline: TaskTimeline,
    kind: TaskKind,
    name: str,
    window_s: tuple[float, float],
    ends: Ids,
) -> tuple[Part, ...]:
    """Cut a phase into parts; its steady state is repeated for micro-batches not simulated.

    The pipelines of a phase differ in speed: the one that would end last counts.
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


def pipeline_lanes(plan: Plan, ranks: Ids, noise: Noise | None = None) -> Lanes:
    """Return the pipelines of `ranks`, as from `rank_lanes`."""
    return Lanes(
        ranks=ranks,
        num_micro_batches=plan.num_micro_batches,
        message_bytes=message_bytes(plan),
        blocking=system_of(plan).blocking,
        awaits_arrival=system_of(plan).awaits_arrival,
        sums_loss=sums_losses(plan),
        tensor_parallel=plan.layout.tp,
        noise=noise,
    )


def rank_seconds(plan: Plan, cost: str) -> NDArray[np.float64]:
    """Return `cost` of every rank's stage on its device, in the shape of `rank_lanes`.

    cost: forward_s, backward_s or optimizer_s.
    """
    lanes, types = rank_lanes(plan), plan.type_stages or (plan.stages,)
    seconds = np.array([[getattr(stage, cost) for stage in stages] for stages in types], np.float64)
    kind = np.zeros(len(plan.device_nodes), np.int64)
    kind[: len(plan.device_types)] = plan.device_types
    return np.asarray(seconds[kind[np.asarray(plan.placement)[lanes]], np.arange(lanes.shape[1])])


def compute_seconds(plan: Plan, fabric: Fabric) -> dict[str, NDArray[np.float64]]:
    """Return the compute of one micro-batch by kind of work, (num_virtual_stages, num_lanes), s.

    Tensor-parallel ranks synchronise in every layer, at the pace of the slowest. Zero-bubble's
    gradients of weights are as much work as a forward pass.
    """
    chunks, tp = plan.num_chunks, plan.layout.tp

    def paced(cost: str) -> NDArray[np.float64]:
        lanes_s = rank_seconds(plan, cost)
        slowest_s = lanes_s.reshape(-1, tp, lanes_s.shape[1]).max(axis=1)
        return np.tile(np.repeat(slowest_s, tp, axis=0).T / chunks, (chunks, 1))

    forward, backward = paced("forward_s"), paced("backward_s")
    tensor_s = _tensor_parallel_s(plan, fabric)[:, None] if tp > 1 else 0.0
    passes = 2 if plan.workload.recomputation else 1
    seconds = {"forward": forward + tensor_s, "backward": backward + passes * tensor_s}
    if plan.splits_backward:
        seconds["backward"] = seconds["backward"] - forward
        seconds["weight"] = forward
    return seconds


def _tensor_parallel_s(plan: Plan, fabric: Fabric) -> NDArray[np.float64]:
    """Return the seconds of all-reduces in a chunk's forward pass, (num_virtual_stages,).

    They run in all tensor-parallel groups at once. Sequence parallelism cuts each in two
    (`plan.tensor`).
    """
    layout = plan.layout
    groups = np.arange(layout.num_ranks).reshape(-1, layout.tp)
    chunks = plan.num_chunks
    layers = np.tile([stage.num_layers / chunks for stage in plan.stages], chunks)
    kinds = [collectives.ring_all_reduce]
    if plan.sequence_parallel:
        kinds = [collectives.ring_all_gather, collectives.ring_reduce_scatter]
    each_s = sum(
        collectives.alone_s(fabric, groups, float(plan.activation_bytes), kind) for kind in kinds
    )
    return LAYER_ALL_REDUCES * layers * each_s


def barrier(graph: Graph, ranks: Ids, ends: Ids) -> Ids:
    """Add gloo's dissemination barrier.

    In step k a rank sends a word to rank + 2^k, once that rank has announced its receive, and waits
    for the word of rank - 2^k. Source: gloo, `gloo/barrier.cc`, `gloo/transport/tcp/pair.cc`.
    """
    order = np.argsort(ranks.ravel())
    tasks, index = ends.ravel()[order], np.arange(order.size)
    for step in range(math.ceil(math.log2(max(1, order.size)))):
        source, target = (index - (1 << step)) % order.size, (index + (1 << step)) % order.size
        word, later = graph.work(TaskKind.MARK, index), graph.work(TaskKind.MARK, index)
        graph.edge(tasks, word)
        graph.edge(tasks[target], word, graph.delay_s(target, index))
        graph.edge(word, later)
        graph.edge(word[source], later, graph.delay_s(source, index))
        tasks = later
    return tasks[ranks]


def synchronise(graph: Graph, plan: Plan, ranks: Ids, ends: Ids) -> Ids:
    """Add data parallelism of every stage, once its members are ready, and the update.

    ends: in the shape of `ranks`, (dp * tp, pp). Returns the last task of each rank, in that shape.
    """
    dp, tp, pp = plan.layout.dp, plan.layout.tp, plan.layout.pp

    def grouped(of_rank: NDArray[Any]) -> NDArray[Any]:
        """Turn (dp * tp, pp) into (pp * tp, dp): the members of each group."""
        return of_rank.reshape(dp, tp, pp).transpose(2, 1, 0).reshape(pp * tp, dp)

    update_s = grouped(rank_seconds(plan, "optimizer_s"))
    done = _synchronise_groups(graph, plan, grouped(ranks), grouped(ends), update_s)
    return done.reshape(pp, tp, dp).transpose(2, 1, 0).reshape(ranks.shape)


def _synchronise_groups(
    graph: Graph, plan: Plan, members: Ids, gate: Ids, update_s: NDArray[np.float64]
) -> Ids:
    """Add data parallelism of all groups at once. All arrays are (pp * tp, dp).

    Updates on hosts share the CPU of their node. With a central server, one member updates; with a
    sharded one, each updates its shard.
    """
    gradients = np.repeat([float(stage.gradient_bytes) for stage in plan.stages], plan.layout.tp)
    if plan.data_parallel == "reduce-broadcast":
        reduced = collectives.chain_reduce(graph, members, gradients, gate)
        at_once = graph.fabric.num_beside(members[:, 0])
        update = graph.work(TaskKind.OPTIMIZER, members[:, 0], update_s[:, 0] * at_once)
        graph.edge(reduced[:, 0], update)
        turn = graph.work(TaskKind.MARK, members)
        graph.edge(reduced, turn)
        graph.edge(update, turn[:, 0])
        return collectives.chain_broadcast(graph, members, gradients, turn)
    at_once = np.ones(members.shape, np.int64)
    if system_of(plan).updates_on_host:
        at_once = graph.fabric.num_beside(members.ravel()).reshape(members.shape)
    if plan.data_parallel in SHARDED:
        summed = SHARDED[plan.data_parallel](graph, members, gradients, gate)
        share_s = update_s * at_once / plan.layout.dp
        update = graph.work(TaskKind.OPTIMIZER, members, share_s)
        graph.edge(summed, update)
        return collectives.ring_all_gather(graph, members, gradients, update)
    if plan.data_parallel == "by-tensor":
        done = _reduce_by_tensor(graph, plan, members, gate)
    else:
        algorithm = collectives.data_parallel(plan.data_parallel, backend="nccl")
        done = algorithm(graph, members, gradients, gate)
    update = graph.work(TaskKind.OPTIMIZER, members, update_s * at_once)
    graph.edge(done, update)
    return update


def _reduce_by_tensor(graph: Graph, plan: Plan, members: Ids, gate: Ids) -> Ids:
    """Add all-reduces of all tensors of every stage, one after another."""
    done = np.empty_like(gate)
    for index, stage in enumerate(plan.stages):
        each_bytes = stage.gradient_bytes / stage.parameters
        sizes = [each_bytes * count for count in stage_tensors(plan.workload, stage)]
        rows = slice(index * plan.layout.tp, (index + 1) * plan.layout.tp)
        done[rows] = collectives.all_reduce_each(graph, members[rows], sizes, gate[rows])
    return done


def _sync_phases(timeline: TaskTimeline, total_s: float) -> dict[str, float]:
    updates = timeline.kind == TaskKind.OPTIMIZER
    optimizer_s = float((timeline.end_s - timeline.start_s)[updates].max())
    return {"sync_s": max(0.0, total_s - optimizer_s), "optimizer_s": optimizer_s}


@functools.lru_cache(maxsize=4)
def _known_calls(plan: Plan, transport: TransportProfile) -> tuple[Fabric, dict[Call, float]]:
    """Return a fabric, and a cache of the seconds of calls simulated on it."""
    return fabric_of(plan, transport), {}


def _work_s(parts: Sequence[Part], kind: TaskKind) -> float:
    """Return the seconds of all tasks of a kind."""
    return sum(
        part.repeat * float((part.timeline.end_s - part.timeline.start_s)[is_kind].sum())
        for part in parts
        for is_kind in [part.timeline.kind == kind]
    )


def _one_rank_for_all(plan: Plan, transport: TransportProfile) -> Simulation:
    """Simulate the segments of the plan's system, for a rank that stands for all."""
    system = system_of(plan)
    slowest = system.representative(plan)
    fabric, known = _kept(_known_calls, slowest, transport)

    def call_s(call: Call) -> float:
        if call not in known:
            groups = groups_of(call, plan.layout.num_ranks)
            algorithm = collectives.COLLECTIVES[call.library][call.op]
            known[call] = collectives.alone_s(fabric, groups, call.size_bytes, algorithm)
        return known[call]

    parts = []
    for segment in system.segments(slowest):
        timeline = time_segment(segment, fabric, call_s)
        end_s = float(timeline.end_s.max())
        parts.append(
            Part(
                name=segment.name, timeline=timeline, from_s=0.0, to_s=end_s, repeat=segment.repeat
            )
        )
    (stage,) = slowest.stages
    forward_s = plan.num_micro_batches * stage.forward_s
    backward_s = plan.num_micro_batches * stage.backward_s
    if system.has_peers:  # each computes another number of micro-batches
        forward_s, backward_s = _work_s(parts, TaskKind.FORWARD), _work_s(parts, TaskKind.BACKWARD)
    # A late update is in no phase: compute hides it.
    optimizer_s = 0.0 if plan.staleness else stage.optimizer_s
    rest_s = sum(part.total_s for part in parts) - forward_s - backward_s - optimizer_s
    phases = {
        "forward_s": forward_s,
        "backward_s": backward_s,
        "sync_s": rest_s,
        "optimizer_s": optimizer_s,
    }
    return Simulation(plan=plan, parts=tuple(parts), phases=phases, fabric=fabric)
