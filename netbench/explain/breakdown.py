"""Attribute the time of an iteration to causes, and follow its critical path.

A rank's time consists of work and waits. A wait is followed back from the task that ended it
(`causes`), and each stretch counts as what was under way: another rank's compute (bubble), a
message between stages, its delay or the communicator's copies (point to point), or a collective.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netbench.explain.causes import NONE, OWN, Cause, CauseTracer
from netbench.explain.usage import num_simulated
from netbench.plan.model import Plan
from netbench.simulator.graph import Ids, TaskKind, TaskTimeline
from netbench.simulator.iteration import Part, Simulation, rank_seconds
from netbench.systems import rank_lanes

Floats = NDArray[np.float64]

GROUPS: Mapping[str, tuple[Cause, ...]] = {
    "forward": (Cause.FORWARD,),
    "backward": (Cause.BACKWARD,),
    "optimizer": (Cause.OPTIMIZER,),
    "bubble": (Cause.BUBBLE,),
    "point_to_point": (Cause.TRANSFER, Cause.DELAY, Cause.COPY),
    "collective": (Cause.COLLECTIVE, Cause.COLLECTIVE_DELAY, Cause.TENSOR_PARALLEL),
}
"""The groups of a breakdown and their causes."""

EQUAL = 1e-9
"""Relative difference, due to rounding, up to which ranks count as equally busy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Time of every rank by cause.

    seconds: (num_ranks, num_causes), by `Cause`; each row sums to the iteration.
    """

    seconds: Floats

    def of(self, group: str) -> Floats:
        """Return the seconds of one of `GROUPS`, (num_ranks,)."""
        return np.asarray(self.seconds[:, list(GROUPS[group])].sum(axis=1))

    def mean_s(self) -> dict[str, float]:
        """Return the seconds of every group, mean over the ranks."""
        return {group: float(self.of(group).mean()) for group in GROUPS}

    @property
    def worst_rank(self) -> int:
        """The rank that waits longest."""
        waits = [self.of(group) for group in ("bubble", "point_to_point", "collective")]
        return int(np.sum(waits, axis=0).argmax())


@dataclass(frozen=True, kw_only=True, slots=True)
class PathStep:
    """A stretch of the critical path.

    part: name. kind: forward, backward, optimizer, copy, transfer, delay, collective, collective
    delay. rank, peer: the rank that works, or source and target; peer is NONE if all take part.
    seconds: in the whole iteration, counting repetitions of the part.
    """

    part: str
    kind: str
    rank: int
    peer: int
    seconds: float


def breakdown(simulation: Simulation) -> Breakdown:
    """Return the seconds of every rank's iteration by cause."""
    return Breakdown(seconds=account(simulation)[0])


def critical_path(simulation: Simulation) -> tuple[PathStep, ...]:
    """Return the chain of work, transfers and delays that decides when each part ends, in order.

    Neighbours of the same kind and ranks are one step. The seconds sum to the iteration. Forward
    and backward include tensor-parallel communication.
    """
    steps: list[PathStep] = []
    for part, tracer, weight, restart_s in _stretches(simulation):
        last_s = tracer.end_s if restart_s is None else restart_s
        task = tracer.last_before(last_s)
        for piece in reversed(tracer.walk(task, NONE, last_s, part.from_s)):
            seconds = (min(piece.to_s, part.to_s) - piece.from_s) * weight
            if seconds <= 0:
                continue
            kind = _path_kind(tracer.timeline, piece.cause, piece.task)
            if steps and (part.name, kind, piece.source, piece.target) == (
                steps[-1].part, steps[-1].kind, steps[-1].rank, steps[-1].peer
            ):  # fmt: skip
                seconds += steps.pop().seconds
            steps.append(
                PathStep(
                    part=part.name, kind=kind, rank=piece.source, peer=piece.target, seconds=seconds
                )
            )
    return tuple(steps)


def seconds_by_kind(steps: tuple[PathStep, ...]) -> dict[str, float]:
    """Return the seconds of a path by kind, most first."""
    return _ranked((step.kind, step.seconds) for step in steps)


def seconds_by_link(steps: tuple[PathStep, ...], plan: Plan) -> dict[str, float]:
    """Return the seconds of a path on the network by regions, most first: `Ohio -> Virginia`."""
    nodes = nodes_of_ranks(plan)
    regions = np.asarray(plan.network.node_regions)[nodes]

    def name(step: PathStep) -> str:
        if step.peer == NONE:
            return "all ranks"
        source, target = (plan.network.regions[regions[rank]] for rank in (step.rank, step.peer))
        if nodes[step.rank] == nodes[step.peer]:
            return "inside nodes"
        return f"inside {source}" if source == target else f"{source} -> {target}"

    network = ("transfer", "delay", "collective", "collective delay")
    return _ranked((name(step), step.seconds) for step in steps if step.kind in network)


def bound_s(plan: Plan) -> float:
    """Return the compute of the busiest rank, seconds: the iteration time on an ideal network."""
    return float(_compute_s(plan).max())


def timelines(simulation: Simulation) -> Iterator[tuple[CauseTracer, float, tuple[Part, ...]]]:
    """Yield every timeline once, the offset at which it starts when all parts are laid end to end,
    seconds, and its parts."""
    groups: list[list[Part]] = []
    for part in simulation.parts:
        if groups and groups[-1][-1].timeline is part.timeline:
            groups[-1].append(part)
        elif part.repeat > 0:
            groups.append([part])
    offset_s = 0.0
    for group in groups:
        yield CauseTracer(group[0].timeline), offset_s - group[0].from_s, tuple(group)
        offset_s += group[-1].to_s - group[0].from_s


def _stretches(simulation: Simulation) -> Iterator[tuple[Part, CauseTracer, float, float | None]]:
    """Yield every part with its tracer, its number of repetitions, and the start of the next round.

    After the last round, None takes the place of that start: the timeline goes on.
    """
    rounds = simulation.plan.num_rounds
    for tracer, _, parts in timelines(simulation):
        for part in parts:
            if rounds > 1 and part is not parts[-1]:
                yield part, tracer, part.repeat * (rounds - 1) / rounds, parts[-1].from_s
                yield part, tracer, part.repeat / rounds, None
            else:
                yield part, tracer, part.repeat, None


def account(simulation: Simulation) -> tuple[Floats, Floats]:
    """Return seconds by rank and cause, (num_ranks, num_causes), and the mean over the busiest
    ranks by cause and place, (num_causes, num_places)."""
    plan = simulation.plan
    num_ranks = plan.layout.num_ranks
    weight = np.zeros(num_ranks)
    busiest = busiest_ranks(plan)
    weight[busiest] = 1 / len(busiest)
    nodes, num_regions = nodes_of_ranks(plan), len(plan.network.regions)
    place_of = (_stage_of(plan), np.asarray(plan.network.node_regions)[nodes], nodes)
    alone = not plan.has_pipelines  # rank 0 represents all
    seconds: Floats = np.zeros((1 if alone else num_ranks, len(Cause)))
    places: Floats = np.zeros((len(Cause), plan.layout.pp * num_regions * (num_regions + 1)))
    for part, tracer, count, restart_s in _stretches(simulation):
        waits = tracer.waits(part.from_s, part.to_s, restart_s)
        weights = np.ones(num_ranks) if alone else weight
        waited, where = tracer.attribute(waits, weights, place_of, num_regions)
        seconds += count * waited
        places += count * where
        seconds += count * _own_s(tracer, part, len(seconds))
    if alone:
        return _of_each_rank(plan, seconds[0]), places
    timeline = simulation.parts[0].timeline
    _count_all_passes(plan, timeline, seconds)
    if plan.layout.tp > 1:
        for own in (TaskKind.FORWARD, TaskKind.BACKWARD):
            tensor_s = seconds[:, OWN[own]] * _tensor_fraction(plan, timeline, own)
            seconds[:, OWN[own]] -= tensor_s
            seconds[:, Cause.TENSOR_PARALLEL] += tensor_s
    return seconds, places


def _of_each_rank(plan: Plan, seconds: Floats) -> Floats:
    """Return (num_ranks, num_causes) from the seconds of the rank that represents all. A rank on a
    faster device waits while that one computes."""
    by_rank = np.repeat(seconds[None], plan.layout.num_ranks, axis=0)
    costs = {
        "forward_s": Cause.FORWARD,
        "backward_s": Cause.BACKWARD,
        "optimizer_s": Cause.OPTIMIZER,
    }
    for cost, cause in costs.items() if plan.type_stages else ():
        own_s = _of_ranks(plan, cost)
        by_rank[:, cause] *= own_s / own_s.max() if own_s.any() else 1.0
        by_rank[:, Cause.BUBBLE] += seconds[cause] - by_rank[:, cause]
    return by_rank


def _count_all_passes(plan: Plan, timeline: TaskTimeline, seconds: Floats) -> None:
    """Turn waits into passes where a rank's passes fall outside the repeated steady state.

    For example, a first stage computes ahead of the steady state.
    """
    waits = [Cause.BUBBLE, Cause.COPY, Cause.TRANSFER, Cause.DELAY]
    times = plan.num_rounds * plan.num_micro_batches / num_simulated(plan, timeline)
    for own in (TaskKind.FORWARD, TaskKind.BACKWARD):
        taken_s = _taken_s(timeline, own, len(seconds))
        waited_s = seconds[:, waits].sum(axis=1)
        missing_s = np.minimum(times * taken_s - seconds[:, OWN[own]], waited_s)
        some = waited_s > 0
        seconds[some, OWN[own]] += missing_s[some]
        kept = 1 - missing_s[some] / waited_s[some]
        seconds[np.ix_(some, waits)] *= kept[:, None]


def _own_s(tracer: CauseTracer, part: Part, num_ranks: int) -> Floats:
    """Return the seconds of every rank's own work in a part, (num_ranks, num_causes)."""
    timeline, work = tracer.timeline, tracer.work
    starts = np.maximum(timeline.start_s[work], part.from_s)
    lengths = np.maximum(0.0, np.minimum(timeline.end_s[work], part.to_s) - starts)
    seconds = np.zeros((num_ranks, len(Cause)))
    rank, kind = timeline.rank[work], timeline.kind[work]
    for own, cause in OWN.items():
        same = kind == own
        seconds[:, cause] = np.bincount(rank[same], weights=lengths[same], minlength=num_ranks)
    return seconds


def _tensor_fraction(plan: Plan, timeline: TaskTimeline, kind: TaskKind) -> Floats:
    """Return the fraction of every rank's passes in all-reduces inside layers, (num_ranks,)."""
    num_ranks = plan.layout.num_ranks
    taken_s = _taken_s(timeline, kind, num_ranks)
    forward = timeline.rank[timeline.kind == TaskKind.FORWARD]
    micro_batches = np.bincount(forward, minlength=num_ranks) / plan.num_chunks
    each_s = _of_ranks(plan, "forward_s" if kind is TaskKind.FORWARD else "backward_s")
    fraction: Floats = 1 - micro_batches * each_s / taken_s
    return np.clip(fraction, 0.0, 1.0)


def _taken_s(timeline: TaskTimeline, kind: TaskKind, num_ranks: int) -> Floats:
    passes = timeline.kind == kind
    taken_s = np.bincount(timeline.rank[passes], timeline.amount[passes], minlength=num_ranks)
    return taken_s.astype(np.float64)


def _of_ranks(plan: Plan, cost: str) -> Floats:
    seconds = np.empty(plan.layout.num_ranks)
    seconds[rank_lanes(plan)] = rank_seconds(plan, cost)
    return seconds


def _compute_s(plan: Plan) -> Floats:
    """Return the forward and backward seconds of an iteration by rank, (num_ranks,)."""
    count = plan.num_rounds * plan.num_micro_batches
    return count * (_of_ranks(plan, "forward_s") + _of_ranks(plan, "backward_s"))


def busiest_ranks(plan: Plan) -> Ids:
    """Return the ranks that compute most."""
    compute_s = _compute_s(plan)
    return np.flatnonzero(compute_s >= compute_s.max() * (1 - EQUAL))


def _stage_of(plan: Plan) -> Ids:
    stage = np.zeros(plan.layout.num_ranks, np.int64)
    if plan.has_pipelines:
        lanes = rank_lanes(plan)
        stage[lanes] = np.arange(lanes.shape[1])
    return stage


def nodes_of_ranks(plan: Plan) -> Ids:
    """Return the node of every rank, (num_ranks,)."""
    return np.take(plan.device_nodes, plan.placement)


def _path_kind(timeline: TaskTimeline, cause: int, task: int) -> str:
    kind = TaskKind(timeline.kind[task])
    known = OWN[kind] if cause == Cause.BUBBLE and kind in OWN else Cause(cause)
    return known.name.lower().replace("_", " ")


def _ranked(pairs: Iterator[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, seconds in pairs:
        sums[name] = sums.get(name, 0.0) + seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
