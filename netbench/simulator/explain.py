"""Where the time of an iteration goes: what ranks did or waited for, and the chain that decides.

A rank's time is its own work and its waits. What ends a wait is followed back (`trail`), and each
stretch counts as what was under way: another rank's compute (bubble), a message between stages, its
delay or the communicator's copies (point to point), or a collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netbench.plan.model import Plan
from netbench.simulator.graph import Ids, Kind, Timeline
from netbench.simulator.simulate import Part, Simulation, rank_lanes, rank_seconds
from netbench.simulator.trail import NONE, OWN, Cause, Trail
from netbench.simulator.usage import num_simulated

Floats = NDArray[np.float64]

GROUPS: Mapping[str, tuple[Cause, ...]] = {
    "forward": (Cause.FORWARD,),
    "backward": (Cause.BACKWARD,),
    "optimizer": (Cause.OPTIMIZER,),
    "bubble": (Cause.BUBBLE,),
    "point_to_point": (Cause.TRANSFER, Cause.DELAY, Cause.COPY),
    "collective": (Cause.COLLECTIVE, Cause.COLLECTIVE_DELAY, Cause.TENSOR_PARALLEL),
}
"""The kinds of a breakdown, and what each consists of."""

EQUAL = 1e-9
"""Relative difference up to which ranks count as equally busy: rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Where the iteration went.

    seconds: (num_ranks, num_causes), by `Cause`; each row sums to the iteration.
    """

    seconds: Floats

    def of(self, group: str) -> Floats:
        """(num_ranks,), seconds of one of `GROUPS`."""
        total: Floats = self.seconds[:, list(GROUPS[group])].sum(axis=1)
        return total

    def mean_s(self) -> dict[str, float]:
        """Seconds of every group, mean over the ranks."""
        return {group: float(self.of(group).mean()) for group in GROUPS}

    def total_s(self) -> dict[str, float]:
        """Seconds of every group, all ranks together."""
        return {group: float(self.of(group).sum()) for group in GROUPS}

    @property
    def worst_rank(self) -> int:
        """The rank that waits longest."""
        waits = [self.of(group) for group in ("bubble", "point_to_point", "collective")]
        return int(np.sum(waits, axis=0).argmax())


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A stretch of the chain that decides when the iteration ends.

    part: name. kind: forward, backward, optimizer, copy, transfer, delay, collective, collective
    delay. rank, peer: whose work, or from where to where; peer NONE where all take part. seconds:
    of the whole iteration, so as often as the part is repeated.
    """

    part: str
    kind: str
    rank: int
    peer: int
    seconds: float


def breakdown(simulation: Simulation) -> Breakdown:
    """Seconds of every rank's iteration by cause."""
    return Breakdown(seconds=account(simulation)[0])


def critical_path(simulation: Simulation) -> tuple[Step, ...]:
    """The chain of work, transfers and delays that decides when each part ends, in order of time.

    Neighbours of the same kind and ranks are one step. The seconds sum to the iteration. Forward
    and backward include what tensor parallelism adds to them.
    """
    steps: list[Step] = []
    for part, trail, weight, restart_s in _stretches(simulation):
        last_s = trail.end_s if restart_s is None else restart_s
        task = trail.last_before(last_s)
        for piece in reversed(trail.walk(task, NONE, last_s, part.from_s)):
            seconds = (min(piece.to_s, part.to_s) - piece.from_s) * weight
            if seconds <= 0:
                continue
            kind = _path_kind(trail.timeline, piece.cause, piece.task)
            if steps and (part.name, kind, piece.source, piece.target) == (
                steps[-1].part, steps[-1].kind, steps[-1].rank, steps[-1].peer
            ):  # fmt: skip
                seconds += steps.pop().seconds
            steps.append(
                Step(
                    part=part.name,
                    kind=kind,
                    rank=piece.source,
                    peer=piece.target,
                    seconds=seconds,
                )
            )
    return tuple(steps)


def seconds_by_kind(steps: tuple[Step, ...]) -> dict[str, float]:
    """Seconds of a path by kind, most first."""
    return _ranked((step.kind, step.seconds) for step in steps)


def seconds_by_link(steps: tuple[Step, ...], plan: Plan) -> dict[str, float]:
    """Seconds of a path on the network by regions, e.g. `Ohio -> Virginia`, most first."""
    nodes = nodes_of_ranks(plan)
    regions = np.asarray(plan.network.node_regions)[nodes]

    def name(step: Step) -> str:
        if step.peer == NONE:
            return "all ranks"
        source, target = (plan.network.regions[regions[rank]] for rank in (step.rank, step.peer))
        if nodes[step.rank] == nodes[step.peer]:
            return "inside nodes"
        return f"inside {source}" if source == target else f"{source} -> {target}"

    network = ("transfer", "delay", "collective", "collective delay")
    return _ranked((name(step), step.seconds) for step in steps if step.kind in network)


def bound_s(plan: Plan) -> float:
    """What no network can beat: the forward and backward passes of the busiest rank, seconds."""
    return float(_compute_s(plan).max())


def timelines(simulation: Simulation) -> Iterator[tuple[Trail, float, tuple[Part, ...]]]:
    """Every timeline once, with the parts cut from it, and where it starts when the parts are laid
    one after the other, seconds."""
    groups: list[list[Part]] = []
    for part in simulation.parts:
        if groups and groups[-1][-1].timeline is part.timeline:
            groups[-1].append(part)
        elif part.repeat > 0:
            groups.append([part])
    offset_s = 0.0
    for group in groups:
        yield Trail(group[0].timeline), offset_s - group[0].from_s, tuple(group)
        offset_s += group[-1].to_s - group[0].from_s


def _stretches(simulation: Simulation) -> Iterator[tuple[Part, Trail, float, float | None]]:
    """Every part with its trail, how often it counts, and when all starts again after it.

    A round starts again when it is over; the last one is followed by what follows it.
    """
    rounds = simulation.plan.num_rounds
    for trail, _, parts in timelines(simulation):
        for part in parts:
            if rounds > 1 and part is not parts[-1]:
                yield part, trail, part.repeat * (rounds - 1) / rounds, parts[-1].from_s
                yield part, trail, part.repeat / rounds, None
            else:
                yield part, trail, part.repeat, None


def account(simulation: Simulation) -> tuple[Floats, Floats]:
    """Seconds by rank and cause, (num_ranks, num_causes), and of the busiest stage's ranks (their
    mean) by cause and place, (num_causes, num_places)."""
    plan = simulation.plan
    num_ranks = plan.layout.num_ranks
    weight = np.zeros(num_ranks)
    busiest = busiest_ranks(plan)
    weight[busiest] = 1 / len(busiest)
    nodes, num_regions = nodes_of_ranks(plan), len(plan.network.regions)
    place_of = (_stage_of(plan), np.asarray(plan.network.node_regions)[nodes], nodes)
    alone = plan.schedule == "none"  # rank 0 stands for all
    seconds: Floats = np.zeros((1 if alone else num_ranks, len(Cause)))
    places: Floats = np.zeros((len(Cause), plan.layout.pp * num_regions * (num_regions + 1)))
    for part, trail, count, restart_s in _stretches(simulation):
        waits = trail.waits(part.from_s, part.to_s, restart_s)
        shares = np.ones(num_ranks) if alone else weight
        waited, where = trail.attribute(waits, shares, place_of, num_regions)
        seconds += count * waited
        places += count * where
        seconds += count * _own_s(trail, part, len(seconds))
    if alone:
        return _of_each_rank(plan, seconds[0]), places
    timeline = simulation.parts[0].timeline
    _count_all_passes(plan, timeline, seconds)
    if plan.layout.tp > 1:
        for own in (Kind.FORWARD, Kind.BACKWARD):
            shared = seconds[:, OWN[own]] * _tensor_share(plan, timeline, own)
            seconds[:, OWN[own]] -= shared
            seconds[:, Cause.TENSOR_PARALLEL] += shared
    return seconds, places


def _of_each_rank(plan: Plan, seconds: Floats) -> Floats:
    """(num_ranks, num_causes), of one rank's seconds that stand for all: a rank on a faster device
    waits where that one computes."""
    found = np.repeat(seconds[None], plan.layout.num_ranks, axis=0)
    costs = {
        "forward_s": Cause.FORWARD,
        "backward_s": Cause.BACKWARD,
        "optimizer_s": Cause.OPTIMIZER,
    }
    for cost, cause in costs.items() if plan.type_stages else ():
        own_s = _of_ranks(plan, cost)
        found[:, cause] *= own_s / own_s.max() if own_s.any() else 1.0
        found[:, Cause.BUBBLE] += seconds[cause] - found[:, cause]
    return found


def _count_all_passes(plan: Plan, timeline: Timeline, seconds: Floats) -> None:
    """Exchange waits of the pipeline for passes where a rank's fall outside the steady state that
    stands for all others: a first stage computes ahead of it, for example."""
    waits = [Cause.BUBBLE, Cause.COPY, Cause.TRANSFER, Cause.DELAY]
    times = plan.num_rounds * plan.num_micro_batches / num_simulated(plan, timeline)
    for own in (Kind.FORWARD, Kind.BACKWARD):
        passes = timeline.kind == own
        taken_s = np.bincount(
            timeline.rank[passes], weights=timeline.amount[passes], minlength=len(seconds)
        )
        waited_s = seconds[:, waits].sum(axis=1)
        missing_s = np.minimum(times * taken_s - seconds[:, OWN[own]], waited_s)
        some = waited_s > 0
        seconds[some, OWN[own]] += missing_s[some]
        kept = 1 - missing_s[some] / waited_s[some]
        seconds[np.ix_(some, waits)] *= kept[:, None]


def _own_s(trail: Trail, part: Part, num_ranks: int) -> Floats:
    """Seconds of every rank's own work in a part by cause, (num_ranks, num_causes)."""
    timeline, work = trail.timeline, trail.work
    starts = np.maximum(timeline.start_s[work], part.from_s)
    lengths = np.maximum(0.0, np.minimum(timeline.end_s[work], part.to_s) - starts)
    seconds = np.zeros((num_ranks, len(Cause)))
    rank, kind = timeline.rank[work], timeline.kind[work]
    for own, cause in OWN.items():
        mine = kind == own
        seconds[:, cause] = np.bincount(rank[mine], weights=lengths[mine], minlength=num_ranks)
    return seconds


def _tensor_share(plan: Plan, timeline: Timeline, kind: Kind) -> Floats:
    """How much of every rank's passes is all-reduces inside the layers, (num_ranks,)."""
    num_ranks = plan.layout.num_ranks
    passes = timeline.kind == kind
    taken_s = np.bincount(
        timeline.rank[passes], weights=timeline.amount[passes], minlength=num_ranks
    )
    forward = timeline.rank[timeline.kind == Kind.FORWARD]
    micro_batches = np.bincount(forward, minlength=num_ranks) / plan.num_chunks
    each_s = _of_ranks(plan, "forward_s" if kind is Kind.FORWARD else "backward_s")
    share: Floats = 1 - micro_batches * each_s / taken_s
    return np.clip(share, 0.0, 1.0)


def _of_ranks(plan: Plan, cost: str) -> Floats:
    """`simulate.rank_seconds` in the order of ranks, (num_ranks,)."""
    seconds = np.empty(plan.layout.num_ranks)
    seconds[rank_lanes(plan)] = rank_seconds(plan, cost)
    return seconds


def _compute_s(plan: Plan) -> Floats:
    """Forward and backward passes of an iteration by rank, (num_ranks,)."""
    count = plan.num_rounds * plan.num_micro_batches
    seconds: Floats = count * (_of_ranks(plan, "forward_s") + _of_ranks(plan, "backward_s"))
    return seconds


def busiest_ranks(plan: Plan) -> Ids:
    """Ranks that compute most."""
    compute_s = _compute_s(plan)
    return np.flatnonzero(compute_s >= compute_s.max() * (1 - EQUAL))


def _stage_of(plan: Plan) -> Ids:
    """Stage of every rank, (num_ranks,)."""
    stage = np.zeros(plan.layout.num_ranks, np.int64)
    if plan.schedule != "none":
        lanes = rank_lanes(plan)
        stage[lanes] = np.arange(lanes.shape[1])
    return stage


def nodes_of_ranks(plan: Plan) -> Ids:
    """Node of every rank, (num_ranks,)."""
    nodes: Ids = np.asarray(plan.device_nodes, dtype=np.int64)[np.asarray(plan.placement)]
    return nodes


def _path_kind(timeline: Timeline, cause: int, task: int) -> str:
    kind = Kind(timeline.kind[task])
    found = OWN[kind] if cause == Cause.BUBBLE and kind in OWN else Cause(cause)
    return found.name.lower().replace("_", " ")


def _ranked(pairs: Iterator[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, seconds in pairs:
        sums[name] = sums.get(name, 0.0) + seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
