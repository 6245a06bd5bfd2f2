"""A guess at simulated seconds that takes a microsecond, so that a search can try millions.

What a pipeline or a group takes is guessed as a weighted sum of what may bound it: sums and maxima
of computation, delays and transfers along it. The weights are fitted to parts that the simulator
has timed, none of them negative, so they are of the plan's schedule and of its collectives.

Flows that would share a NIC, class, pair or trunk in the same phase are counted, and each is
guessed to have an even share.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from scipy.optimize import nnls

from netbench.placement.problem import Floats, Grid, Problem
from netbench.placement.sites import Sites

NUM_BOUNDS, NUM_GROUP_BOUNDS = 10, 8
"""What may bound a phase of a pipeline, and a group: the columns of `_bound_pipeline`,
`_bound_group`."""

FORWARD, BACKWARD, BOTH = range(3)
"""Phases of a pipeline: up to a barrier, from there, or all at once."""

MAX_PAIRED_NODES = 1024
"""Up to so many nodes, pairs of nodes are counted; else a node and the region it sends to."""

UNFIT = 1e3
"""What does not fit a device's memory counts as so many times the slowest that does."""


class Model(NamedTuple):
    """What the compiled code reads.

    where: (num_blocks, 4), node, site, region and kind. links: (num_sites, num_sites, 2), delay and
    seconds per byte between two nodes, one way. paces: (num_sites + 1,), seconds per byte of a
    node's NIC, at last of what joins the blocks of one node.
    compute_s: (num_kinds, pp, num_choices), of a micro-batch, by the choice of layers of a stage;
    gradient_bytes: (pp, num_choices). shares: of compute_s, by phase.
    counts: of flows under way, zeros between two guesses: on the NICs of every node outwards, then
    inwards, then on links; one zero where no two flows can meet. keys: (6,), whether they can; how
    many nodes there are; by which column of `where` a link's source is counted, times what, and its
    target; whether only flows between regions are. phases: of a pipeline, FORWARD
    and BACKWARD, or BOTH. bound_weights: (3, NUM_BOUNDS), by phase; group_weights:
    (NUM_GROUP_BOUNDS,).
    """

    where: Grid
    links: Floats
    paces: Floats
    compute_s: Floats
    gradient_bytes: Floats
    message_bytes: float
    shares: Floats
    keys: Grid
    counts: Grid
    phases: Grid
    bound_weights: Floats
    group_weights: Floats


_NODE, _SITE, _REGION, _KIND = range(4)
"""Columns of `Model.where`."""


def make_model(problem: Problem, sites: Sites, compute_s: Floats, gradient_bytes: Floats) -> Model:
    """A model with weights of what is plain: a pipeline fills, then goes at the pace of what is
    slowest in it. compute_s, gradient_bytes: as in `Model`, inf where a stage does not fit."""
    keys, counts = _keys(problem, sites)
    finite = np.where(np.isfinite(compute_s), compute_s, 0.0)
    worst_s = UNFIT * max(float(finite.max()), 1e-3) * problem.num_micro_batches
    repeats = problem.num_micro_batches - 1.0
    weights = np.zeros((3, NUM_BOUNDS))
    weights[:, [0, 2, 3]] = 1.0
    weights[:, 5] = repeats
    share = problem.forward_share
    return Model(
        where=np.stack(
            [sites.node, sites.site, sites.region[sites.site], sites.kind[sites.site]], axis=1
        ).astype(np.int64),
        links=np.stack([sites.delay_s, sites.seconds_per_byte], axis=2),
        paces=np.append(sites.nic_seconds_per_byte, sites.inside_seconds_per_byte),
        compute_s=np.where(np.isfinite(compute_s), compute_s, worst_s),
        gradient_bytes=gradient_bytes,
        message_bytes=problem.message_bytes,
        shares=np.array([share, 1 - share, 1.0]),
        keys=keys,
        counts=counts,
        phases=np.array([FORWARD, BACKWARD]),
        bound_weights=weights,
        group_weights=np.array([0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    )


def _keys(problem: Problem, sites: Sites) -> tuple[Grid, Grid]:
    """`Model.keys` and `Model.counts`. A class is counted by the region that it leads to, and so
    are pairs of nodes where there are too many."""
    num_nodes, num_regions = int(sites.node.max()) + 1, int(sites.region.max()) + 1
    trunk = problem.sharing == "trunk"
    if sites.single and not trunk:
        return np.array([0, num_nodes, _NODE, 1, _NODE, 0]), np.zeros(1, np.int64)
    source, target = _NODE, _NODE
    if trunk:
        source = target = _REGION
    elif problem.sharing == "class" or num_nodes > MAX_PAIRED_NODES:
        target = _REGION
    num_sources = num_regions if source == _REGION else num_nodes
    num_targets = num_regions if target == _REGION else num_nodes
    keys = np.array([1, num_nodes, source, num_targets, target, int(trunk)])
    return keys, np.zeros(2 * num_nodes + num_sources * num_targets, np.int64)


def fitted(
    model: Model,
    pipelines: tuple[Grid, Grid, Floats],
    groups: tuple[Grid, Grid, Grid, Floats],
) -> Model:
    """`model` with weights fitted to simulated seconds: all errors relative.

    pipelines: blocks (n, pp), choices of layers (n, pp), seconds (n, 2). groups: stages (n,),
    choices of layers (n,), blocks (n, dp), seconds (n,).
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
    """Least squares of relative errors, no weight negative."""
    known = np.isfinite(seconds) & (seconds > 0)
    if not known.any():
        return otherwise
    scale = np.maximum(bounds[known].max(axis=0), 1e-12)
    relative = bounds[known] / scale / seconds[known, None]
    found: Floats = nnls(relative, np.ones(int(known.sum())))[0] / scale
    return found


@njit(cache=True, error_model="numpy")
def bound_pipelines(rows: Grid, choices: Grid, phase: int, model: Model) -> Floats:
    """What may bound a phase of pipelines that are alone, (n, pp) -> (n, NUM_BOUNDS)."""
    bounds = np.zeros((len(rows), NUM_BOUNDS))
    where, keys, counts = model.where, model.keys, model.counts
    for row in range(len(rows)):
        _count_rows(rows, row, row + 1, phase, 1, where, keys, counts)
        _bound_pipeline(
            rows,
            row,
            choices[row],
            phase,
            where,
            model.links,
            model.paces,
            keys,
            counts,
            model.compute_s,
            model.message_bytes,
            model.shares,
            bounds[row],
        )
        _count_rows(rows, row, row + 1, phase, -1, where, keys, counts)
    return bounds


@njit(cache=True, error_model="numpy")
def bound_groups(columns: Grid, sizes_bytes: Floats, model: Model) -> Floats:
    """What may bound groups that are alone, (dp, n) -> (n, NUM_GROUP_BOUNDS)."""
    bounds = np.zeros((columns.shape[1], NUM_GROUP_BOUNDS))
    where, keys, counts = model.where, model.keys, model.counts
    for column in range(columns.shape[1]):
        _count_rings(columns, column, column + 1, 1, where, keys, counts)
        _bound_group(
            columns,
            column,
            sizes_bytes[column],
            True,
            where,
            model.links,
            model.paces,
            keys,
            counts,
            bounds[column],
        )
        _count_rings(columns, column, column + 1, -1, where, keys, counts)
    return bounds


@njit(cache=True, error_model="numpy")
def row_s(blocks: Grid, row: int, choice: Grid, phase: int, model: Model, bounds: Floats) -> float:
    """Guessed seconds of a phase of a pipeline."""
    _bound_pipeline(
        blocks,
        row,
        choice,
        phase,
        model.where,
        model.links,
        model.paces,
        model.keys,
        model.counts,
        model.compute_s,
        model.message_bytes,
        model.shares,
        bounds,
    )
    weights, total = model.bound_weights, 0.0
    for index in range(NUM_BOUNDS):
        total += weights[phase, index] * bounds[index]
    return total


@njit(cache=True, error_model="numpy")
def column_s(blocks: Grid, column: int, size_bytes: float, model: Model, bounds: Floats) -> float:
    """Guessed seconds of a group."""
    weights, total = model.group_weights, 0.0
    _bound_group(
        blocks,
        column,
        size_bytes,
        weights[6] > 0.0 or weights[7] > 0.0,
        model.where,
        model.links,
        model.paces,
        model.keys,
        model.counts,
        bounds,
    )
    for index in range(NUM_GROUP_BOUNDS):
        total += weights[index] * bounds[index]
    return total


@njit(cache=True, error_model="numpy")
def guess(blocks: Grid, choice: Grid, model: Model, rows: Floats, columns: Floats) -> None:
    """Fill guessed seconds of every phase and pipeline, (num_phases, dp), and group, (pp,)."""
    dp, pp = blocks.shape
    bounds = np.zeros(NUM_BOUNDS)
    for index in range(len(model.phases)):
        phase = model.phases[index]
        _count_rows(blocks, 0, dp, phase, 1, model.where, model.keys, model.counts)
        for row in range(dp):
            rows[index, row] = row_s(blocks, row, choice, phase, model, bounds)
        _count_rows(blocks, 0, dp, phase, -1, model.where, model.keys, model.counts)
    _count_rings(blocks, 0, pp, 1, model.where, model.keys, model.counts)
    for column in range(pp):
        size = model.gradient_bytes[column, choice[column]]
        columns[column] = column_s(blocks, column, size, model, bounds)
    _count_rings(blocks, 0, pp, -1, model.where, model.keys, model.counts)


@njit(cache=True, error_model="numpy")
def _count(a: int, b: int, by: int, where: Grid, keys: Grid, counts: Grid) -> None:
    """Count a flow from block a to b on what it shares, or take it off."""
    if where[a, 0] != where[b, 0]:
        counts[where[a, 0]] += by
        counts[keys[1] + where[b, 0]] += by
        if keys[5] == 0 or where[a, 2] != where[b, 2]:
            counts[2 * keys[1] + where[a, keys[2]] * keys[3] + where[b, keys[4]]] += by


@njit(cache=True, error_model="numpy")
def _count_rows(
    blocks: Grid,
    first: int,
    end: int,
    phase: int,
    by: int,
    where: Grid,
    keys: Grid,
    counts: Grid,
) -> None:
    if keys[0] == 0:
        return
    for row in range(first, end):
        for stage in range(blocks.shape[1] - 1):
            if phase != BACKWARD:
                _count(blocks[row, stage], blocks[row, stage + 1], by, where, keys, counts)
            if phase != FORWARD:
                _count(blocks[row, stage + 1], blocks[row, stage], by, where, keys, counts)


@njit(cache=True, error_model="numpy")
def _count_rings(
    blocks: Grid, first: int, end: int, by: int, where: Grid, keys: Grid, counts: Grid
) -> None:
    if keys[0] == 0:
        return
    n = blocks.shape[0]
    for column in range(first, end):
        for place in range(n):
            here, there = blocks[place, column], blocks[(place + 1) % n, column]
            _count(here, there, by, where, keys, counts)


@njit(cache=True, error_model="numpy")
def _hop(
    a: int, b: int, where: Grid, links: Floats, paces: Floats, keys: Grid, counts: Grid
) -> tuple[float, float]:
    """Delay and seconds per byte from block a to b, with those that share the way.

    Without a branch, for compiled code counts references to arrays where there is one, which takes
    longer than all the rest. Where no flows meet, counts[0] = 0 stands for all.
    """
    source, target, met = where[a, 1], where[b, 1], keys[0]
    inside = where[a, 0] == where[b, 0]
    link = 2 * keys[1] + where[a, keys[2]] * keys[3] + where[b, keys[4]]
    pace = links[source, target, 1] * max(1, counts[link * met])
    egress = paces[source] * max(1, counts[where[a, 0] * met])
    ingress = paces[target] * max(1, counts[(keys[1] + where[b, 0]) * met])
    slowest = max(pace, max(egress, ingress))
    return (
        0.0 if inside else links[source, target, 0],
        paces[len(paces) - 1] if inside else slowest,
    )


@njit(cache=True, error_model="numpy")
def _bound_pipeline(
    blocks: Grid,
    row: int,
    choice: Grid,
    phase: int,
    where: Grid,
    links: Floats,
    paces: Floats,
    keys: Grid,
    counts: Grid,
    compute_s: Floats,
    message_bytes: float,
    shares: Floats,
    bounds: Floats,
) -> None:
    """Fill, seconds: all computation, the slowest; all delays; all transfers, the slowest; the
    slowest of both; the slowest stage with its slower transfer, with both, and with delays, too;
    and the round trip from a stage to the end, by the micro-batches that are under way there."""
    share, pp = shares[phase], blocks.shape[1]
    # Variables of their own, since compiled code would reload what it has just stored.
    all_work_s = work_most_s = all_delay_s = all_sent_s = sent_most_s = 0.0
    either_s = both_s = late_s = round_most_s = 0.0
    after_s = after_delay_s = 0.0  # of the hop to the next stage
    for stage in range(pp - 1, -1, -1):
        here = blocks[row, stage]
        work_s = share * compute_s[where[here, 3], stage, choice[stage]]
        before_s = before_delay_s = 0.0
        if stage > 0:
            last = blocks[row, stage - 1]
            if phase != BACKWARD:
                delay_s, pace = _hop(last, here, where, links, paces, keys, counts)
                before_s, before_delay_s = message_bytes * pace, delay_s
            if phase != FORWARD:
                delay_s, pace = _hop(here, last, where, links, paces, keys, counts)
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
    blocks: Grid,
    column: int,
    size_bytes: float,
    every: bool,
    where: Grid,
    links: Floats,
    paces: Floats,
    keys: Grid,
    counts: Grid,
    bounds: Floats,
) -> None:
    """Fill, seconds: 1 per gigabyte (the update); delays of a chain that ends at the first and of
    one that starts there, the slowest transfers of both, and of a megabyte along both; the slowest
    transfer and the longest delay of a ring; and, if `every` pair counts, what a member sends to
    all others, and the longest delay of all."""
    for index in range(NUM_GROUP_BOUNDS):
        bounds[index] = 0.0
    n = blocks.shape[0]
    bounds[0] = size_bytes / 1e9
    if n < 2:
        return
    reduce_pace = broadcast_pace = all_delay_s = all_pace = delay_most_s = 0.0
    here = blocks[n - 1, column]
    for place in range(n):  # the hop to it from the one before
        there = blocks[place, column]
        delay_s, pace = _hop(here, there, where, links, paces, keys, counts)
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
    if every:
        _bound_exchange(blocks, column, size_bytes / n, where, links, paces, bounds)


@njit(cache=True, error_model="numpy")
def _bound_exchange(
    blocks: Grid,
    column: int,
    size_bytes: float,
    where: Grid,
    links: Floats,
    paces: Floats,
    bounds: Floats,
) -> None:
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
