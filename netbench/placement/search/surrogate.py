"""Estimate simulated seconds in about a microsecond, so that a search can try millions of moves.

The time of a pipeline or a group is estimated as a weighted sum of its possible bottlenecks: sums
and maxima of compute, delays and transfers along it. The weights are fitted to parts that were
simulated, and none is negative. So they reflect the plan's schedule and its collectives.

Flows of the same phase that share a NIC, class, pair or trunk are counted; each is assumed to get
an equal share.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from scipy.optimize import nnls

from netbench.placement.problem import Floats, Grid, Problem
from netbench.placement.search.sites import Sites
from netbench.scenario.sharing import SHARING

NUM_BOUNDS, NUM_GROUP_BOUNDS = 10, 8
"""Possible bottlenecks of a pipeline's phase and of a group: the entries that `_bound_pipeline`
and `_bound_group` fill."""

FORWARD, BACKWARD, BOTH = range(3)
"""Phases of a pipeline: before a barrier, after it, or both where there is no barrier."""

MAX_PAIRED_NODES = 1024
"""Up to this number of nodes, flows are counted per pair of nodes; above, per node and target
region."""

UNFIT = 1e3
"""Compute time of a stage that does not fit its device, as a multiple of the slowest that fits."""


class Model(NamedTuple):
    """Inputs of the compiled code.

    where: (num_blocks, 4), node, site, region and kind of each block.
    links: (num_sites, num_sites, 2), one-way delay and seconds per byte between two nodes.
    paces: (num_sites + 1,), seconds per byte of a node's NIC; the last entry is for blocks of one
    node.
    compute_s: (num_kinds, pp, num_choices), of a micro-batch, by the number of layers of a stage.
    gradient_bytes: (pp, num_choices). message_bytes: of a micro-batch.
    fractions: (3,), of compute_s, by phase.
    counts: flows under way: per node's outgoing NIC, per node's incoming NIC, then per link. All
    zero between two estimates; a single zero where flows never share anything.
    keys: (6,), whether flows can share anything; the number of nodes; the column of `where` that
    counts a link's source, and its multiplier; the column that counts its target; whether only
    flows between regions count.
    phases: FORWARD and BACKWARD, or BOTH. bound_weights: (3, NUM_BOUNDS), by phase.
    group_weights: (NUM_GROUP_BOUNDS,).
    """

    where: Grid
    links: Floats
    paces: Floats
    compute_s: Floats
    gradient_bytes: Floats
    message_bytes: float
    fractions: Floats
    keys: Grid
    counts: Grid
    phases: Grid
    bound_weights: Floats
    group_weights: Floats


_NODE, _SITE, _REGION, _KIND = range(4)
"""Columns of `Model.where`."""


def make_model(problem: Problem, sites: Sites, compute_s: Floats, gradient_bytes: Floats) -> Model:
    """Return a model with initial weights: a pipeline fills, then runs at the pace of its slowest
    part. compute_s, gradient_bytes: as in `Model`, inf where a stage does not fit."""
    keys, counts = _keys(problem, sites)
    finite = np.where(np.isfinite(compute_s), compute_s, 0.0)
    worst_s = UNFIT * max(float(finite.max()), 1e-3) * problem.num_micro_batches
    repeats = problem.num_micro_batches - 1.0
    weights = np.zeros((3, NUM_BOUNDS))
    weights[:, [0, 2, 3]] = 1.0
    weights[:, 5] = repeats
    forward = problem.forward_fraction
    return Model(
        where=np.stack(
            [sites.node, sites.site, sites.region[sites.site], sites.kind[sites.site]], axis=1
        ).astype(np.int64),
        links=np.stack([sites.delay_s, sites.seconds_per_byte], axis=2),
        paces=np.append(sites.nic_seconds_per_byte, sites.inside_seconds_per_byte),
        compute_s=np.where(np.isfinite(compute_s), compute_s, worst_s),
        gradient_bytes=gradient_bytes,
        message_bytes=problem.message_bytes,
        fractions=np.array([forward, 1 - forward, 1.0]),
        keys=keys,
        counts=counts,
        phases=np.array([FORWARD, BACKWARD]),
        bound_weights=weights,
        group_weights=np.array([0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    )


def _keys(problem: Problem, sites: Sites) -> tuple[Grid, Grid]:
    """Return `Model.keys` and `Model.counts`, of the last queue with a link's rate. Targets are
    counted by region where they share one, or where there are more than `MAX_PAIRED_NODES` nodes.
    """
    num_nodes, num_regions = int(sites.node.max()) + 1, int(sites.region.max()) + 1
    queue = [kind for kind in SHARING[problem.sharing].queues if not kind.is_cap][-1]
    source = _NODE if "src" in queue.by else _REGION
    if sites.single and source == _NODE:
        return np.array([0, num_nodes, _NODE, 1, _NODE, 0]), np.zeros(1, np.int64)
    target = _NODE if "dst" in queue.by and num_nodes <= MAX_PAIRED_NODES else _REGION
    num_sources = num_regions if source == _REGION else num_nodes
    num_targets = num_regions if target == _REGION else num_nodes
    keys = np.array([1, num_nodes, source, num_targets, target, int(queue.across is True)])
    return keys, np.zeros(2 * num_nodes + num_sources * num_targets, np.int64)


def fitted(
    model: Model, pipelines: tuple[Grid, Grid, Floats], groups: tuple[Grid, Grid, Grid, Floats]
) -> Model:
    """Return `model` with weights fitted to simulated seconds by relative error.

    pipelines: blocks (n, pp), layers of the stages (n, pp), seconds (n, 2).
    groups: stages (n,), layers (n,), blocks (n, dp), seconds (n,).
    """
    rows, choices, seconds = pipelines
    barrier = bool((seconds[:, 0] > 0).any())
    phases = np.array([FORWARD, BACKWARD] if barrier else [BOTH])
    weights = model.bound_weights.copy()
    for phase, column in zip(phases.tolist(), (0, 1) if barrier else (1,), strict=True):
        bounds = bound_pipelines(rows, choices, phase, model)
        weights[phase] = _weights(bounds, seconds[:, column], weights[phase])
    stages, of_stage, members, group_s = groups
    sizes_bytes = model.gradient_bytes[stages, of_stage]
    bounds = bound_groups(np.ascontiguousarray(members.T), sizes_bytes, model)
    return model._replace(
        phases=phases,
        bound_weights=weights,
        group_weights=_weights(bounds, group_s, model.group_weights),
    )


def _weights(bounds: Floats, seconds: Floats, otherwise: Floats) -> Floats:
    """Return the non-negative least-squares weights of the relative errors."""
    known = np.isfinite(seconds) & (seconds > 0)
    if not known.any():
        return otherwise
    scale = np.maximum(bounds[known].max(axis=0), 1e-12)
    relative = bounds[known] / scale / seconds[known, None]
    return np.asarray(nnls(relative, np.ones(int(known.sum())))[0] / scale)


@njit(cache=True, error_model="numpy")
def bound_pipelines(rows: Grid, choices: Grid, phase: int, model: Model) -> Floats:
    """Return the bottlenecks of a phase of pipelines, each alone: (n, pp) -> (n, NUM_BOUNDS)."""
    bounds = np.zeros((len(rows), NUM_BOUNDS))
    for row in range(len(rows)):
        _count_rows(rows, row, row + 1, phase, 1, model)
        _bound_pipeline(rows, row, choices[row], phase, model, bounds[row])
        _count_rows(rows, row, row + 1, phase, -1, model)
    return bounds


@njit(cache=True, error_model="numpy")
def bound_groups(columns: Grid, sizes_bytes: Floats, model: Model) -> Floats:
    """Return the bottlenecks of groups, each alone: (dp, n) -> (n, NUM_GROUP_BOUNDS)."""
    bounds = np.zeros((columns.shape[1], NUM_GROUP_BOUNDS))
    for column in range(columns.shape[1]):
        _count_rings(columns, column, column + 1, 1, model)
        _bound_group(columns, column, sizes_bytes[column], True, model, bounds[column])
        _count_rings(columns, column, column + 1, -1, model)
    return bounds


@njit(cache=True, error_model="numpy")
def row_s(blocks: Grid, row: int, choice: Grid, phase: int, model: Model, bounds: Floats) -> float:
    """Return the estimated seconds of a phase of a pipeline."""
    _bound_pipeline(blocks, row, choice, phase, model, bounds)
    weights, total = model.bound_weights, 0.0
    for index in range(NUM_BOUNDS):
        total += weights[phase, index] * bounds[index]
    return total


@njit(cache=True, error_model="numpy")
def column_s(blocks: Grid, column: int, size_bytes: float, model: Model, bounds: Floats) -> float:
    """Return the estimated seconds of a group."""
    weights, total = model.group_weights, 0.0
    exchanges = weights[6] > 0.0 or weights[7] > 0.0
    _bound_group(blocks, column, size_bytes, exchanges, model, bounds)
    for index in range(NUM_GROUP_BOUNDS):
        total += weights[index] * bounds[index]
    return total


@njit(cache=True, error_model="numpy")
def estimate(blocks: Grid, choice: Grid, model: Model, rows: Floats, columns: Floats) -> None:
    """Fill `rows`, (num_phases, dp), and `columns`, (pp,), with estimated seconds."""
    dp, pp = blocks.shape
    bounds = np.zeros(NUM_BOUNDS)
    for index in range(len(model.phases)):
        phase = model.phases[index]
        _count_rows(blocks, 0, dp, phase, 1, model)
        for row in range(dp):
            rows[index, row] = row_s(blocks, row, choice, phase, model, bounds)
        _count_rows(blocks, 0, dp, phase, -1, model)
    _count_rings(blocks, 0, pp, 1, model)
    for column in range(pp):
        size = model.gradient_bytes[column, choice[column]]
        columns[column] = column_s(blocks, column, size, model, bounds)
    _count_rings(blocks, 0, pp, -1, model)


@njit(cache=True, error_model="numpy")
def _count(a: int, b: int, by: int, model: Model) -> None:
    """Add `by` to the counts of everything that a flow from block a to b shares."""
    where, keys, counts = model.where, model.keys, model.counts
    if where[a, 0] != where[b, 0]:
        counts[where[a, 0]] += by
        counts[keys[1] + where[b, 0]] += by
        if keys[5] == 0 or where[a, 2] != where[b, 2]:
            counts[2 * keys[1] + where[a, keys[2]] * keys[3] + where[b, keys[4]]] += by


@njit(cache=True, error_model="numpy")
def _count_rows(blocks: Grid, first: int, end: int, phase: int, by: int, model: Model) -> None:
    if model.keys[0] == 0:
        return
    for row in range(first, end):
        for stage in range(blocks.shape[1] - 1):
            if phase != BACKWARD:
                _count(blocks[row, stage], blocks[row, stage + 1], by, model)
            if phase != FORWARD:
                _count(blocks[row, stage + 1], blocks[row, stage], by, model)


@njit(cache=True, error_model="numpy")
def _count_rings(blocks: Grid, first: int, end: int, by: int, model: Model) -> None:
    if model.keys[0] == 0:
        return
    n = blocks.shape[0]
    for column in range(first, end):
        for place in range(n):
            here, there = blocks[place, column], blocks[(place + 1) % n, column]
            _count(here, there, by, model)


@njit(cache=True, error_model="numpy")
def _hop(a: int, b: int, model: Model) -> tuple[float, float]:
    """Return delay and seconds per byte from block a to b, given the flows that share the path.

    The code has no branch: numba would count references to arrays in each, which takes longer than
    everything else. Where flows share nothing, counts[0] = 0 is read for every count.
    """
    where, links, paces = model.where, model.links, model.paces
    keys, counts = model.keys, model.counts
    source, target, shared = where[a, _SITE], where[b, _SITE], keys[0]
    inside = where[a, 0] == where[b, 0]
    link = 2 * keys[1] + where[a, keys[2]] * keys[3] + where[b, keys[4]]
    pace = links[source, target, 1] * max(1, counts[link * shared])
    egress = paces[source] * max(1, counts[where[a, 0] * shared])
    ingress = paces[target] * max(1, counts[(keys[1] + where[b, 0]) * shared])
    slowest = max(pace, max(egress, ingress))
    return (
        0.0 if inside else links[source, target, 0],
        paces[len(paces) - 1] if inside else slowest,
    )


@njit(cache=True, error_model="numpy")
def _bound_pipeline(
    blocks: Grid, row: int, choice: Grid, phase: int, model: Model, bounds: Floats
) -> None:
    """Fill `bounds`, seconds, in this order: total compute, slowest compute; total delay; total
    transfer, slowest transfer; the slower of slowest compute and transfer; the slowest stage with
    its slower transfer, with both transfers, and with both and their delays; and the longest round
    trip from a stage to the last one, divided by the micro-batches under way there."""
    compute_s, message_bytes = model.compute_s, model.message_bytes
    fraction, pp = model.fractions[phase], blocks.shape[1]
    # Local variables: compiled code would reload array entries that it has just stored.
    all_work_s = work_most_s = all_delay_s = all_sent_s = sent_most_s = 0.0
    either_s = both_s = late_s = round_most_s = 0.0
    after_s = after_delay_s = 0.0  # of the hop to the next stage
    for stage in range(pp - 1, -1, -1):
        here = blocks[row, stage]
        work_s = fraction * compute_s[model.where[here, _KIND], stage, choice[stage]]
        before_s = before_delay_s = 0.0
        if stage > 0:
            last = blocks[row, stage - 1]
            if phase != BACKWARD:
                delay_s, pace = _hop(last, here, model)
                before_s, before_delay_s = message_bytes * pace, delay_s
            if phase != FORWARD:
                delay_s, pace = _hop(here, last, model)
                before_s, before_delay_s = before_s + message_bytes * pace, before_delay_s + delay_s
        all_work_s += work_s
        work_most_s = max(work_most_s, work_s)
        either_s = max(either_s, work_s + max(before_s, after_s))
        both_s = max(both_s, work_s + before_s + after_s)
        late_s = max(late_s, work_s + before_s + after_s + before_delay_s + after_delay_s)
        round_most_s = max(round_most_s, (all_work_s + all_delay_s + all_sent_s) / (pp - stage))
        all_delay_s += before_delay_s
        all_sent_s += before_s
        sent_most_s = max(sent_most_s, before_s)
        after_s, after_delay_s = before_s, before_delay_s
    bounds[0], bounds[1], bounds[2], bounds[3] = all_work_s, work_most_s, all_delay_s, all_sent_s
    bounds[4], bounds[5] = sent_most_s, max(work_most_s, sent_most_s)
    bounds[6], bounds[7], bounds[8], bounds[9] = either_s, both_s, late_s, round_most_s


@njit(cache=True, error_model="numpy")
def _bound_group(
    blocks: Grid, column: int, size_bytes: float, exchanges: bool, model: Model, bounds: Floats
) -> None:
    """Fill `bounds`, seconds, in this order: gigabytes (the update); total delay of a chain that
    ends at the first member and one that starts there; the slowest transfers of both chains; a
    megabyte along both chains; the slowest transfer and the longest delay of a ring; and with
    `exchanges` the most that a member sends to all others and the longest delay of any pair."""
    for index in range(NUM_GROUP_BOUNDS):
        bounds[index] = 0.0
    n = blocks.shape[0]
    bounds[0] = size_bytes / 1e9
    if n < 2:
        return
    reduce_pace = broadcast_pace = all_delay_s = all_pace = delay_most_s = 0.0
    here = blocks[n - 1, column]
    for place in range(n):  # the hop from the previous member
        there = blocks[place, column]
        delay_s, pace = _hop(here, there, model)
        num = 0
        if place != 1:
            reduce_pace = max(reduce_pace, pace)
            num += 1
        if place != 0:
            broadcast_pace = max(broadcast_pace, pace)
            num += 1
        all_delay_s += delay_s * num
        all_pace += pace * num
        delay_most_s = max(delay_most_s, delay_s)
        here = there
    bounds[1], bounds[3], bounds[5] = all_delay_s, 1e6 * all_pace, delay_most_s
    bounds[4] = size_bytes * max(reduce_pace, broadcast_pace)
    bounds[2] = size_bytes * (reduce_pace + broadcast_pace)
    if exchanges:
        _bound_exchange(blocks, column, size_bytes / n, model, bounds)


@njit(cache=True, error_model="numpy")
def _bound_exchange(
    blocks: Grid, column: int, size_bytes: float, model: Model, bounds: Floats
) -> None:
    """Fill bounds 6 and 7 of `_bound_group`, `size_bytes` from each member to each other."""
    where, links, paces = model.where, model.links, model.paces
    num_sites = links.shape[0]
    present = np.zeros(num_sites, np.int64)
    for place in range(blocks.shape[0]):
        present[where[blocks[place, column], 1]] += 1
    for source in range(num_sites):
        if present[source] == 0:
            continue
        total_s = 0.0
        for target in range(num_sites):
            num = present[target] - (source == target)
            if num > 0:
                pace = max(links[source, target, 1], paces[source])
                total_s += num * size_bytes * pace
                bounds[7] = max(bounds[7], links[source, target, 0])
        bounds[6] = max(bounds[6], total_s)
