"""Reduce a problem to the units that DT-FM's cost places, one per cell of a (dp, pp) grid.

A unit is a block (`search.sites`) that can hold a stage. The time between two units is that of the
slowest of their links, lane by lane.
"""

from dataclasses import dataclass

import numpy as np

from netbench.errors import PlanError
from netbench.placement.dtfm.cost import LinkTimes, grid_of, link_times
from netbench.placement.problem import Floats, Grid, Problem
from netbench.placement.search.sites import cut_blocks, expand_blocks
from netbench.units import counted


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Units:
    """The units of `problem`, at least dp * pp. devices: (num_units, tp). links: between units."""

    devices: Grid
    links: LinkTimes
    problem: Problem


def units_of(problem: Problem) -> Units:
    """Return the units of a problem. Raises PlanError where they are too few.

    The cost uses the largest gradients of any stage, and the activations of a pipeline's batch.
    """
    devices = _cut(problem)
    bandwidth_bps = _shared_bps(problem)
    group_s = hop_s = np.zeros((len(devices), len(devices)))
    for lane in devices.T:
        times = link_times(
            problem.delay_s,
            bandwidth_bps,
            dp=problem.dp,
            gradient_bytes=float(problem.gradient_bytes.max()),
            activation_bytes=problem.message_bytes * problem.num_micro_batches,
            devices=lane,
        )
        group_s, hop_s = np.maximum(group_s, times.group_s), np.maximum(hop_s, times.hop_s)
    return Units(devices=devices, links=LinkTimes(group_s=group_s, hop_s=hop_s), problem=problem)


def _shared_bps(problem: Problem) -> Floats:
    """Return the bandwidth between devices, the NIC of a node shared equally by its devices."""
    if np.isinf(problem.nic_bps).all():
        return problem.bandwidth_bps
    _, node, num_beside = np.unique(problem.node, return_inverse=True, return_counts=True)
    nic_bps = problem.nic_bps / num_beside[node]
    apart_bps = np.minimum(nic_bps[:, None], nic_bps)
    apart_bps[node[:, None] == node] = np.inf
    return np.minimum(problem.bandwidth_bps, apart_bps)


def _cut(problem: Problem) -> Grid:
    """Return the units' devices, (num_units, tp): those that can hold every stage if they suffice,
    else all that can hold any."""
    wanted = problem.dp * problem.pp
    fits = np.isfinite(problem.stage_s)
    units = np.empty((0, problem.tp), np.int64)
    for able in (np.all(fits, axis=1), np.any(fits, axis=1)):
        units = cut_blocks(problem, np.flatnonzero(np.take(able, problem.kind)))
        if len(units) >= wanted:
            return units
    raise PlanError(
        f"dp {problem.dp} x pp {problem.pp} needs {wanted} blocks of "
        f"{counted(problem.tp, 'device')} that can hold a stage; found {len(units)} among "
        f"{counted(problem.num_devices, 'device')}; lower dp, pp or tp"
    )


def closest(links: LinkTimes, count: int) -> Grid:
    """Return `count` units: repeatedly drop the one with the largest sum of hops to the others."""
    if count == len(links.hop_s):
        return np.arange(count)
    hop_s = links.hop_s.copy()
    np.fill_diagonal(hop_s, 0.0)
    far_s = hop_s.sum(axis=1)
    for _ in range(len(far_s) - count):
        farthest = len(far_s) - 1 - int(far_s[::-1].argmax())  # the last of equals
        far_s -= hop_s[farthest]
        far_s[farthest] = -np.inf
    return np.flatnonzero(np.isfinite(far_s))


def assemble(units: Units, groups: Grid) -> Grid:
    """Return the grid, (dp * tp, pp), of stage groups (pp, dp) of units in the order of a path.

    The cost is the same in both directions of the path. The direction in which every stage fits its
    devices wins, then the one that gives larger gradients to faster groups.
    Raises PlanError where neither fits.
    """
    problem = units.problem
    ahead = expand_blocks(units.devices, grid_of(units.links, groups))
    both = (ahead, ahead[:, ::-1])
    overfull = [int(np.sum(~problem.fits(grid))) for grid in both]
    if min(overfull) > 0:
        raise PlanError(
            f"the communication cost ignores memory: {counted(min(overfull), 'device')} of its "
            "placement cannot hold their stage; use scheduler netbench, or more stages"
        )
    group_s = units.links.group_s[groups[:, :, None], groups[:, None, :]].sum(axis=2).max(axis=1)
    slowest_s = [
        float((path_s * problem.gradient_bytes).max()) for path_s in (group_s, group_s[::-1])
    ]
    return min(zip(overfull, slowest_s, (0, 1), both, strict=True))[3]
