"""Why an iteration takes as long as it does: who waited for what, along which chain, over which
links, and what that costs against a network that costs nothing.

A rank's time is its own work and its waits. What ends a wait is followed back (`trail`), and each
stretch counts as what was under way: another rank's compute (bubble), a message between stages,
its delay or the communicator's copies (point to point), or a collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netbench.plan.model import Plan
from netbench.plan.timeline import name_of_all, name_of_rank
from netbench.simulator.collectives import double_tree
from netbench.simulator.graph import Ids, Kind, Timeline
from netbench.simulator.simulate import Part, Simulation, rank_lanes, rank_seconds
from netbench.simulator.trail import NONE, OWN, WORK, Cause, Trail
from netbench.simulator.usage import LinkUse, links, num_simulated
from netbench.units import format_bandwidth, format_time

__all__ = [
    "Breakdown",
    "LinkUse",
    "Loss",
    "Step",
    "activity",
    "bound_s",
    "breakdown",
    "critical_path",
    "links",
    "losses",
    "seconds_by_kind",
    "seconds_by_link",
]

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

NUM_LOSSES = 3
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """Something that makes an iteration longer than its bound.

    group: of `GROUPS`. share: of the iteration. text: a sentence.
    """

    group: str
    seconds: float
    share: float
    text: str


def breakdown(simulation: Simulation) -> Breakdown:
    """Seconds of every rank's iteration by cause."""
    return Breakdown(seconds=_account(simulation)[0])


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
    nodes = _nodes(plan)
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


def losses(simulation: Simulation) -> tuple[Loss, ...]:
    """The largest losses against `bound_s`, at most three, largest first.

    They are those of the busiest ranks (their mean, where there are several), whose own
    compute is the bound: all losses together are exactly what the iteration takes more.
    """
    plan, iteration_s = simulation.plan, simulation.iteration_s
    seconds, places = _account(simulation)
    mean = seconds[_busiest(plan)].mean(axis=0)
    found = []
    for group in ("optimizer", "bubble", "point_to_point", "collective"):
        lost_s = float(mean[list(GROUPS[group])].sum())
        if lost_s <= EQUAL * iteration_s:
            continue
        share = lost_s / iteration_s
        what = _SENTENCES[group](simulation, mean, places)
        text = f"{_text(lost_s)} of {_text(iteration_s)} ({share:.{share < 0.01:d}%}): {what}"
        found.append(Loss(group=group, seconds=lost_s, share=share, text=text))
    return tuple(sorted(found, key=lambda loss: -loss.seconds)[:NUM_LOSSES])


def activity(simulation: Simulation, max_rows: int = 24) -> dict[str, dict[str, Floats]]:
    """What ranks do, for a picture: name -> kind -> (num_stretches, 2), from and to in seconds.

    The time is that of the parts one after the other, each once. Kinds: forward, backward,
    optimizer, collective (bytes that a rank sends or gets), waiting for compute, waiting for
    network.
    At most `max_rows` ranks: whole pipelines, of every region first.
    """
    shown = _shown_ranks(simulation.plan, max_rows)
    rows: dict[str, dict[str, list[Floats]]] = {
        rank_name(simulation.plan, rank): {} for rank in shown
    }
    names = dict(zip(shown, rows, strict=True))
    for trail, offset_s, parts in timelines(simulation):
        timeline = trail.timeline
        for kind in (*WORK, Kind.COLLECTIVE):
            found = np.flatnonzero((timeline.kind == kind) & (timeline.end_s > timeline.start_s))
            for rank in shown:
                mine = found[(timeline.rank[found] == rank) | (timeline.peer[found] == rank)]
                stretches = np.stack([timeline.start_s[mine], timeline.end_s[mine]], axis=1)
                rows[names[rank]].setdefault(kind.name.lower(), []).append(stretches + offset_s)
        waits = trail.waits(parts[0].from_s, parts[-1].to_s)
        columns = (waits.rank, waits.from_s, waits.to_s, waits.task, waits.edge, waits.ended_s)
        for rank, from_s, to_s, task, edge, ended_s in zip(*columns, strict=True):
            if rank not in names:
                continue
            for piece in trail.walk(task, edge, ended_s, from_s):
                kind_name = "waiting for " + (
                    "compute" if piece.cause in (Cause.BUBBLE, Cause.OPTIMIZER) else "network"
                )
                stretch = np.array([[piece.from_s, min(piece.to_s, to_s)]]) + offset_s
                rows[names[rank]].setdefault(kind_name, []).append(stretch)
    return {
        name: {kind: _merged(np.concatenate(parts)) for kind, parts in kinds.items()}
        for name, kinds in rows.items()
    }


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


def rank_name(plan: Plan, rank: int) -> str:
    """Region, node, rank and stage, for a person; `every rank`, or `slowest rank` where devices
    differ, where one stands for all."""
    return name_of_all(plan) if plan.schedule == "none" else name_of_rank(plan, rank)


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


def _account(simulation: Simulation) -> tuple[Floats, Floats]:
    """Seconds by rank and cause, (num_ranks, num_causes), and of the busiest stage's ranks (their
    mean) by cause and place, (num_causes, num_places)."""
    plan = simulation.plan
    num_ranks = plan.layout.num_ranks
    weight = np.zeros(num_ranks)
    busiest = _busiest(plan)
    weight[busiest] = 1 / len(busiest)
    nodes, num_regions = _nodes(plan), len(plan.network.regions)
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


def _busiest(plan: Plan) -> Ids:
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


def _nodes(plan: Plan) -> Ids:
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


def _merged(stretches: Floats) -> Floats:
    """Sorted, those that touch or overlap joined."""
    ordered = stretches[np.argsort(stretches[:, 0], kind="stable")]
    if not len(ordered):
        return ordered
    reach = np.maximum.accumulate(ordered[:, 1])
    apart = np.append(True, ordered[1:, 0] > reach[:-1] + 1e-9)
    firsts = np.flatnonzero(apart)
    return np.stack([ordered[firsts, 0], reach[np.append(firsts[1:], len(ordered)) - 1]], axis=1)


def _shown_ranks(plan: Plan, max_rows: int) -> list[int]:
    """Whole pipelines, the first of every region, then more; some stages of a very deep one."""
    if plan.schedule == "none":
        return [0]
    lanes = rank_lanes(plan)
    regions = np.asarray(plan.network.node_regions)[_nodes(plan)][lanes[:, 0]]
    firsts = [int(np.flatnonzero(regions == region)[0]) for region in dict.fromkeys(regions)]
    order = firsts + [lane for lane in range(len(lanes)) if lane not in firsts]
    stages = np.unique(
        np.linspace(0, lanes.shape[1] - 1, min(max_rows, lanes.shape[1])).astype(int)
    )
    chosen = np.sort(order[: max(1, max_rows // len(stages))])
    return [int(rank) for rank in lanes[chosen[:, None], stages].ravel()]


def _bubble_text(simulation: Simulation, mean: Floats, places: Floats) -> str:
    plan = simulation.plan
    rounds = f"{plan.num_rounds} rounds of " if plan.num_rounds > 1 else ""
    return (
        f"stages wait for other stages' compute while the pipeline fills and drains "
        f"({plan.layout.pp} stages, {rounds}{plan.num_micro_batches} micro-batches)"
    )


def _message_text(simulation: Simulation, mean: Floats, places: Floats) -> str:
    causes = {"bytes": Cause.TRANSFER, "delay": Cause.DELAY, "hosts' copies": Cause.COPY}
    order = sorted((n for n in causes if mean[causes[n]] > 0), key=lambda n: -mean[causes[n]])
    split = ", ".join(f"{name} {_text(float(mean[causes[name]]))}" for name in order)
    text = f"activations and gradients between stages ({split})"
    if causes[order[0]] is Cause.COPY:
        return text
    where, seconds, _, _ = _busiest_link(simulation, places[[Cause.TRANSFER, Cause.DELAY]])
    return f"{text}, {_text(seconds)} {where}"


def _collective_text(simulation: Simulation, mean: Floats, places: Floats) -> str:
    plan = simulation.plan
    if mean[Cause.TENSOR_PARALLEL] > mean[list(GROUPS["collective"])].sum() / 2:
        return f"all-reduces inside every layer between {plan.layout.tp} tensor-parallel ranks"
    if plan.schedule == "none":
        if plan.layout.dp == 1:
            return "what collectives cost a host, though its one rank has nobody to send to"
        what = f"gradients of {plan.layout.dp} ranks ({plan.data_parallel})"
        if plan.system == "zero3":
            ring = plan.shard_ranks or plan.layout.dp
            what = f"parameters and gradients round a ring of {ring} ranks"
        return f"{what}, whose slowest hop goes {_slowest_hop(simulation)}"
    causes = [Cause.COLLECTIVE, Cause.COLLECTIVE_DELAY]
    where, seconds, stage, most_s = _busiest_link(simulation, places[causes])
    if plan.layout.dp == 1:
        return f"the barrier between forward and backward passes, {_text(seconds)} {where}"
    return (
        f"gradients of data parallelism, {_text(seconds)} {where} "
        f"({_text(most_s)} for those of stage {stage})"
    )


def _optimizer_text(simulation: Simulation, mean: Floats, places: Floats) -> str:
    return "the optimizer's update"


_SENTENCES = {
    "optimizer": _optimizer_text,
    "bubble": _bubble_text,
    "point_to_point": _message_text,
    "collective": _collective_text,
}


def _busiest_link(simulation: Simulation, places: Floats) -> tuple[str, float, int, float]:
    """The link between regions on which most seconds went, in words, and how many; and for which
    stage most of them. places: (num_causes, num_places)."""
    num_regions = len(simulation.plan.network.regions)
    by_stage = places.sum(axis=0).reshape(-1, num_regions * (num_regions + 1))
    index = int(by_stage.sum(axis=0).argmax())
    stage = int(by_stage[:, index].argmax())
    source, target = divmod(index, num_regions + 1)
    seconds = float(by_stage[:, index].sum())
    where = "inside nodes" if target == num_regions else _link_text(simulation.plan, source, target)
    return where, seconds, stage, float(by_stage[stage, index])


def _link_text(plan: Plan, source: int, target: int) -> str:
    """e.g. `from Ohio to Virginia at 1.12Gbit, 11ms one way`."""
    network = plan.network
    link, nic_bps = network.links[source][target], np.asarray(network.nic_bps)
    if network.sharing == "nic":
        ends = np.isin(network.node_regions, (source, target))
        rate_bps = min(link.bandwidth_bps, float(nic_bps[ends].min()))
    else:
        rate_bps = link.bandwidth_bps
    a, b = network.regions[source], network.regions[target]
    where = f"inside {a}" if source == target else f"from {a} to {b}"
    delay = format_time(link.one_way_delay_s, 4)
    return f"{where} at {format_bandwidth(rate_bps, 4)}, {delay} one way"


def _slowest_hop(simulation: Simulation) -> str:
    """Of the ring or tree, in words."""
    plan, fabric, nodes = simulation.plan, simulation.fabric, _nodes(simulation.plan)
    ranks = np.arange(plan.layout.num_ranks)
    sources, targets = ranks, np.roll(ranks, -1)
    if plan.data_parallel == "tree":
        parents = double_tree(len(ranks))
        sources = np.concatenate([ranks[parent >= 0] for parent in parents])
        targets = np.concatenate([parent[parent >= 0] for parent in parents])
    paths = fabric.paths(sources, targets)
    hop = int(np.lexsort((-fabric.delay_s[paths], fabric.rate[paths]))[0])
    source, target = nodes[sources[hop]], nodes[targets[hop]]
    if source == target:
        return "inside a node"
    regions = plan.network.node_regions
    return _link_text(plan, regions[source], regions[target])


def _text(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
