"""Rank what makes an iteration longer than its compute, with a sentence for each loss."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netbench.explain.breakdown import EQUAL, GROUPS, account, busiest_ranks, nodes_of_ranks
from netbench.explain.causes import Cause
from netbench.plan.collectives import double_tree
from netbench.plan.model import Plan
from netbench.scenario.sharing import nic_caps_bps
from netbench.simulator.iteration import Simulation
from netbench.systems import sums_losses, system_of
from netbench.units import counted, format_bandwidth, format_time

Floats = NDArray[np.float64]

NUM_LOSSES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A loss: time by which the iteration exceeds its compute bound.

    group: of `GROUPS`. share: fraction of the iteration. text: a sentence.
    """

    group: str
    seconds: float
    share: float
    text: str


def losses(simulation: Simulation) -> tuple[Loss, ...]:
    """Return the largest losses against `bound_s`, at most three, largest first.

    They are the mean over the busiest ranks, whose compute is the bound. All losses together are
    exactly the difference between the iteration and the bound.
    """
    iteration_s = simulation.iteration_s
    mean, places = _account(simulation)
    ranked = []
    for group, lost_s in _by_group(mean).items():
        if lost_s <= EQUAL * iteration_s:
            continue
        fraction = lost_s / iteration_s
        what = _SENTENCES[group](simulation, mean, places)
        of_all = f"{seconds_words(lost_s)} of {seconds_words(iteration_s)}"
        text = f"{of_all} ({fraction:.{fraction < 0.01:d}%}): {what}"
        ranked.append(Loss(group=group, seconds=lost_s, share=fraction, text=text))
    return tuple(sorted(ranked, key=lambda loss: -loss.seconds)[:NUM_LOSSES])


def lost_seconds(simulation: Simulation) -> dict[str, float]:
    """Return the seconds of every group that can be a loss, mean over the busiest ranks."""
    return _by_group(_account(simulation)[0])


def _account(simulation: Simulation) -> tuple[Floats, Floats]:
    """Return the mean over the busiest ranks by cause, (num_causes,), and by cause and place."""
    seconds, places = account(simulation)
    return seconds[busiest_ranks(simulation.plan)].mean(axis=0), places


def _by_group(mean: Floats) -> dict[str, float]:
    groups = ("optimizer", "bubble", "point_to_point", "collective")
    return {group: float(mean[list(GROUPS[group])].sum()) for group in groups}


def _bubble_text(simulation: Simulation, mean: Floats, places: Floats) -> str:
    plan = simulation.plan
    rounds = f"{plan.num_rounds} rounds of " if plan.num_rounds > 1 else ""
    return (
        f"stages wait for other stages' compute while the pipeline fills and drains "
        f"({counted(plan.layout.pp, 'stage')}, {rounds}"
        f"{counted(plan.num_micro_batches, 'micro-batch', 'micro-batches')})"
    )


def _message_text(simulation: Simulation, mean: Floats, places: Floats) -> str:
    causes = {"bytes": Cause.TRANSFER, "delay": Cause.DELAY, "hosts' copies": Cause.COPY}
    order = sorted((n for n in causes if mean[causes[n]] > 0), key=lambda n: -mean[causes[n]])
    split = ", ".join(f"{name} {seconds_words(float(mean[causes[name]]))}" for name in order)
    text = f"activations and gradients between stages ({split})"
    if causes[order[0]] is Cause.COPY:
        return text
    where, seconds, _, _ = _busiest_link(simulation, places[[Cause.TRANSFER, Cause.DELAY]])
    return f"{text}, {seconds_words(seconds)} {where}"


def _collective_text(simulation: Simulation, mean: Floats, places: Floats) -> str:
    plan = simulation.plan
    if mean[Cause.TENSOR_PARALLEL] > mean[list(GROUPS["collective"])].sum() / 2:
        return f"all-reduces inside every layer between {plan.layout.tp} tensor-parallel ranks"
    if not plan.has_pipelines:
        if plan.layout.dp == 1:
            return "host overhead of collectives, although a single rank sends nothing"
        what = system_of(plan).describe_collectives(plan)
        return f"{what}, whose slowest hop goes {_slowest_hop(simulation)}"
    causes = [Cause.COLLECTIVE, Cause.COLLECTIVE_DELAY]
    where, seconds, stage, most_s = _busiest_link(simulation, places[causes])
    if plan.layout.dp == 1:
        return f"the barrier between forward and backward passes, {seconds_words(seconds)} {where}"
    sums = " and sums of losses" if sums_losses(plan) else ""
    return (
        f"gradients of data parallelism{sums}, {seconds_words(seconds)} {where} "
        f"({seconds_words(most_s)} for those of stage {stage})"
    )


_SENTENCES = {
    "optimizer": lambda *_: "the optimizer's update",
    "bubble": _bubble_text,
    "point_to_point": _message_text,
    "collective": _collective_text,
}


def _busiest_link(simulation: Simulation, places: Floats) -> tuple[str, float, int, float]:
    """Return the link between regions with most seconds, as text; its seconds; the stage with most
    of them; and the seconds of that stage. places: (num_causes, num_places)."""
    num_regions = len(simulation.plan.network.regions)
    by_stage = places.sum(axis=0).reshape(-1, num_regions * (num_regions + 1))
    index = int(by_stage.sum(axis=0).argmax())
    stage = int(by_stage[:, index].argmax())
    source, target = divmod(index, num_regions + 1)
    seconds = float(by_stage[:, index].sum())
    where = "inside nodes" if target == num_regions else _link_text(simulation.plan, source, target)
    return where, seconds, stage, float(by_stage[stage, index])


def _link_text(plan: Plan, source: int, target: int) -> str:
    """Describe a link, e.g. `from Ohio to Virginia at 1.12Gbit, 11ms one way`."""
    network = plan.network
    link, ends = network.links[source][target], np.isin(network.node_regions, (source, target))
    nic_bps = np.asarray(nic_caps_bps(network))[ends]
    rate_bps = min(link.bandwidth_bps, float(nic_bps.min(initial=np.inf)))
    a, b = network.regions[source], network.regions[target]
    where = f"inside {a}" if source == target else f"from {a} to {b}"
    delay = format_time(link.one_way_delay_s, 4)
    return f"{where} at {format_bandwidth(rate_bps, 4)}, {delay} one way"


def _slowest_hop(simulation: Simulation) -> str:
    plan, fabric, nodes = simulation.plan, simulation.fabric, nodes_of_ranks(simulation.plan)
    ranks = np.arange(plan.layout.num_ranks)
    sources, targets = ranks, np.roll(ranks, -1)
    if plan.data_parallel == "tree":
        parents = np.array(double_tree(len(ranks)))
        sources = np.concatenate([ranks[parent >= 0] for parent in parents])
        targets = np.concatenate([parent[parent >= 0] for parent in parents])
    paths = fabric.paths(sources, targets)
    hop = int(np.lexsort((-fabric.delay_s[paths], fabric.rate[paths]))[0])
    source, target = nodes[sources[hop]], nodes[targets[hop]]
    if source == target:
        return "inside a node"
    regions = plan.network.node_regions
    return _link_text(plan, regions[source], regions[target])


def seconds_words(seconds: float) -> str:
    """Format seconds with about three digits."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
