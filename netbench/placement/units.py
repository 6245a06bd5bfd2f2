"""A problem as DT-FM's cost sees it: units, of which each takes one cell of a (dp, pp) grid.

A unit is a block of `blocks` that can hold a stage. Units are joined lane by lane, by the slowest
of their links.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netbench.errors import PlanError
from netbench.placement.blocks import cut_blocks, expand_blocks
from netbench.placement.dtfm_cost import LinkTimes, grid_of, link_times
from netbench.placement.problem import Floats, Grid, Problem
from netbench.units import counted


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Units:
    """devices: (num_units, tp). links: between units. problem: whose they are.

    There are dp * pp units or more.
    """

    devices: Grid
    links: LinkTimes
    problem: Problem


def units_of(problem: Problem) -> Units:
    """The units of a problem. Raises PlanError where they are too few.

    Counts the gradients of the stage that has most of them, and the activations of a pipeline's
    whole batch.
    """
    devices = _cut(problem)
    bandwidth_bps = _shared_bps(problem)
    first, *lanes = (_between(problem, bandwidth_bps, lane) for lane in devices.T)
    group_s, hop_s = first.group_s, first.hop_s
    for lane in lanes:
        group_s, hop_s = np.maximum(group_s, lane.group_s), np.maximum(hop_s, lane.hop_s)
    return Units(devices=devices, links=LinkTimes(group_s=group_s, hop_s=hop_s), problem=problem)


def _between(problem: Problem, bandwidth_bps: Floats, devices: Grid) -> LinkTimes:
    """Of one lane's devices."""
    return link_times(
        problem.delay_s,
        bandwidth_bps,
        dp=problem.dp,
        gradient_bytes=float(problem.gradient_bytes.max()),
        activation_bytes=problem.message_bytes * problem.num_micro_batches,
        devices=devices,
    )


def _shared_bps(problem: Problem) -> Floats:
    """Between devices, where the devices of a node share its NIC equally."""
    if np.isinf(problem.nic_bps).all():
        return problem.bandwidth_bps
    _, node, num_beside = np.unique(problem.node, return_inverse=True, return_counts=True)
    share_bps = problem.nic_bps / num_beside[node]
    apart_bps = np.minimum(share_bps[:, None], share_bps)
    apart_bps[node[:, None] == node] = np.inf
    return np.minimum(problem.bandwidth_bps, apart_bps)


def _cut(problem: Problem) -> Grid:
    """The units' devices, (num_units, tp): those that can hold every stage, if they are enough,
    else all that can hold one."""
    wanted = problem.dp * problem.pp
    fits = np.isfinite(problem.stage_s)
    units = np.empty((0, problem.tp), np.int64)
    for able in (np.all(fits, axis=1), np.any(fits, axis=1)):
        units = cut_blocks(problem, np.flatnonzero(np.take(able, problem.kind)))
        if len(units) >= wanted:
            return units
    raise PlanError(
        f"dp {problem.dp} x pp {problem.pp} needs {wanted} times {counted(problem.tp, 'device')} "
        f"that can hold a stage; found {len(units)} times as many among "
        f"{counted(problem.num_devices, 'device')}; lower dp, pp or tp"
    )


def closest(links: LinkTimes, count: int) -> Grid:
    """`count` units, those that are left when always the one farthest from all others goes."""
    if count == len(links.hop_s):
        return np.arange(count)
    hop_s = links.hop_s.copy()
    np.fill_diagonal(hop_s, 0.0)
    far_s = hop_s.sum(axis=1)
    for _ in range(len(far_s) - count):
        farthest = len(far_s) - 1 - int(far_s[::-1].argmax())  # of equals the last
        far_s -= hop_s[farthest]
        far_s[farthest] = -np.inf
    return np.flatnonzero(np.isfinite(far_s))


def assemble(units: Units, groups: Grid) -> Grid:
    """The grid, (dp * tp, pp), of stage groups (pp, dp) of units in the order of a path.

    The cost does not tell in which direction stages go along it. Taken is the one in which every
    stage fits its devices, then the one that gives most gradients to the groups that are fast.
    Raises PlanError where neither fits.
    """
    problem = units.problem
    ahead = expand_blocks(units.devices, grid_of(units.links, groups))
    both = (ahead, ahead[:, ::-1])
    overfull = [int(np.sum(~problem.fits(grid))) for grid in both]
    if min(overfull) > 0:
        raise PlanError(
            f"the communication cost looks at links alone, and in its placement "
            f"{counted(min(overfull), 'device')} cannot hold their stage in memory; take "
            "scheduler netbench, or more stages"
        )
    group_s = units.links.group_s[groups[:, :, None], groups[:, None, :]].sum(axis=2).max(axis=1)
    slowest_s = [
        float((path_s * problem.gradient_bytes).max()) for path_s in (group_s, group_s[::-1])
    ]
    return min(zip(overfull, slowest_s, (0, 1), both, strict=True))[3]
