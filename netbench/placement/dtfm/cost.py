"""DT-FM's communication cost of stage groups: DP + 2 PP, in seconds.

    DP = max over groups, max over members d, sum over the other members d' of
         2 (alpha + c_dp / (D_dp beta))
    PP = the shortest open path through all groups; a hop between two groups is the bottleneck
         perfect matching of their members, min max of alpha + c_pp / beta

alpha is the delay one way and beta the bandwidth between two devices, c_dp the gradients of a stage
and c_pp the activations of a pipeline's whole batch, D_dp the members of a group.

Where a link differs by direction, its time is the mean of both, which the formula leaves open. The
mean is exact for sums, because all counted bytes go both ways: activations and their gradients over
a hop (2 PP), and a shard of the gradients between two members (the 2 in DP).

Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments",
NeurIPS 2022, section 3.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from scipy.optimize import linear_sum_assignment

from netbench.placement.problem import Floats, Grid

MAX_EXACT_STAGES = 12
"""Up to this number of groups the shortest path is exact; its table has 2^groups rows."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LinkTimes:
    """Seconds between two devices in the cost: (num_devices, num_devices), symmetric.

    group_s: as members of a group, 2 (alpha + c_dp / (D_dp beta)).
    hop_s: in neighbouring groups of a pipeline, alpha + c_pp / beta. The diagonals are 0.
    """

    group_s: Floats
    hop_s: Floats


def link_times(
    delay_s: Floats,
    bandwidth_bps: Floats,
    *,
    dp: int,
    gradient_bytes: float,
    activation_bytes: float,
    devices: Grid | None = None,
) -> LinkTimes:
    """Return the link times of `devices`, (num_devices,); None = all.

    delay_s, bandwidth_bps: (n, n), [src][dst], one way. dp: D_dp.
    """
    chosen = np.arange(len(delay_s)) if devices is None else devices
    sizes_bits = 8 * gradient_bytes / dp, 8 * activation_bytes
    group_s, hop_s = _mean_times(delay_s, bandwidth_bps, chosen, *sizes_bits)
    return LinkTimes(group_s=group_s, hop_s=hop_s)


@njit(cache=True)
def _mean_times(
    delay_s: Floats, bandwidth_bps: Floats, devices: Grid, shard_bits: float, hop_bits: float
) -> tuple[Floats, Floats]:
    """Compute both in one pass over all pairs, of which there may be millions."""
    group_s = np.zeros((len(devices), len(devices)))
    hop_s = np.zeros((len(devices), len(devices)))
    for row, one in enumerate(devices):
        for column, other in enumerate(devices[:row]):
            delays_s = delay_s[one, other] + delay_s[other, one]
            bit_s = 1 / bandwidth_bps[one, other] + 1 / bandwidth_bps[other, one]
            group_s[row, column] = group_s[column, row] = delays_s + shard_bits * bit_s
            hop_s[row, column] = hop_s[column, row] = (delays_s + hop_bits * bit_s) / 2
    return group_s, hop_s


def ordered(links: LinkTimes, groups: Grid) -> tuple[float, Grid]:
    """Return DP + 2 PP of groups, (pp, dp), and the groups in the order of the path. The order of
    the given groups and of their members has no effect."""
    path_s, order = shortest_path(hops_s(links, groups))
    return data_parallel_s(links, groups) + 2 * path_s, groups[order]


def grid_cost_s(links: LinkTimes, grid: Grid) -> float:
    """Return DP + 2 PP of a grid, (dp, pp), with its own path and matchings."""
    path_s = float(links.hop_s[grid[:, :-1], grid[:, 1:]].max(axis=0).sum())
    return data_parallel_s(links, grid.T) + 2 * path_s


def data_parallel_s(links: LinkTimes, groups: Grid) -> float:
    """Return DP of groups, (pp, dp)."""
    members_s = links.group_s[groups[:, :, None], groups[:, None, :]].sum(axis=2)
    return float(members_s.max())


def hops_s(links: LinkTimes, groups: Grid) -> Floats:
    """Return the bottleneck matching of every two groups: (pp, dp) -> (pp, pp), diagonal 0."""
    hops = np.zeros((len(groups), len(groups)))
    for one in range(len(groups)):
        for other in range(one):
            pairs_s = links.hop_s[np.ix_(groups[one], groups[other])]
            hops[one, other] = hops[other, one] = bottleneck_s(pairs_s)
    return hops


def bottleneck_s(pairs_s: Floats) -> float:
    """Return the least threshold that allows a perfect matching; pairs_s: (n, n)."""
    levels = np.unique(pairs_s)
    every_one_s = max(pairs_s.min(axis=0).max(), pairs_s.min(axis=1).max())
    low, high = int(np.searchsorted(levels, every_one_s)), len(levels) - 1
    tried = low  # usually the lower bound is enough
    while low < high:
        allowed = pairs_s <= levels[tried]
        if allowed[linear_sum_assignment(allowed, maximize=True)].all():
            high = tried
        else:
            low = tried + 1
        tried = (low + high) // 2
    return float(levels[low])


def matching(pairs_s: Floats) -> Grid:
    """Return the partner of every row, (n,): the bottleneck matching of the least sum."""
    within_s = np.where(pairs_s <= bottleneck_s(pairs_s), pairs_s, np.inf)
    _, partners = linear_sum_assignment(within_s)
    return np.asarray(partners, np.int64)


def grid_of(links: LinkTimes, groups: Grid) -> Grid:
    """Return pipelines, (dp, pp), that connect groups in the order of stages, (pp, dp)."""
    stages = [groups[0]]
    for group in groups[1:]:
        stages.append(group[matching(links.hop_s[np.ix_(stages[-1], group)])])
    return np.array(stages, np.int64).T


def shortest_path(hops: Floats) -> tuple[float, Grid]:
    """Return seconds and order of the shortest open path through groups; hops: (pp, pp), symmetric.

    Exact up to `MAX_EXACT_STAGES` groups (Held and Karp, 1962). Above, the best of one greedy path
    from every group, each improved until no reversal of a part helps.
    """
    num_groups = len(hops)
    if num_groups <= MAX_EXACT_STAGES:
        order = _exact_path(hops)
    else:
        paths = [_without_crossings(hops, greedy_path(hops, i)) for i in range(num_groups)]
        order = min(paths, key=lambda path: length_s(hops, path))
    return length_s(hops, order), order


def length_s(hops: Floats, order: Grid) -> float:
    """Return the length of a path through groups in this order."""
    return float(hops[order[:-1], order[1:]].sum())


@njit(cache=True)
def _exact_path(hops: Floats) -> Grid:
    """Compute the shortest path through every subset of groups, by its last member."""
    num_groups = len(hops)
    least_s = np.full((1 << num_groups, num_groups), np.inf)
    before = np.zeros((1 << num_groups, num_groups), np.int64)
    for subset in range(1, 1 << num_groups):
        for last in range(num_groups):
            rest = subset ^ (1 << last)
            if rest > subset:
                continue  # not a member
            if rest == 0:
                least_s[subset, last] = 0.0
            for group in range(num_groups):
                path_s = least_s[rest, group] + hops[group, last]
                if path_s < least_s[subset, last]:
                    least_s[subset, last] = path_s
                    before[subset, last] = group
    order = np.empty(num_groups, np.int64)
    subset = (1 << num_groups) - 1
    order[0] = least_s[subset].argmin()
    for place in range(1, num_groups):
        last = order[place - 1]
        order[place] = before[subset, last]
        subset ^= 1 << last
    return order


@njit(cache=True)
def greedy_path(hops: Floats, start: int) -> Grid:
    """Return the order of groups from `start`, each followed by the nearest group left."""
    order, left = np.empty(len(hops), np.int64), np.ones(len(hops), np.bool_)
    nearest = start
    for place in range(len(hops)):
        order[place] = nearest
        left[nearest] = False
        nearest = int(np.where(left, hops[nearest], np.inf).argmin())
    return order


def _without_crossings(hops: Floats, order: Grid) -> Grid:
    """Apply 2-opt: reverse the part of the path that gains most, until none does."""
    num_groups = len(order)
    # A dummy group at both ends, so that reversing a part at an end changes one hop only.
    padded = np.zeros((num_groups + 1, num_groups + 1))
    padded[:num_groups, :num_groups] = hops
    first, last = np.triu_indices(num_groups, k=1)
    while True:
        path = np.concatenate([[num_groups], order, [num_groups]])
        before, start, end, after = path[first], path[first + 1], path[last + 1], path[last + 2]
        gains = padded[before, start] + padded[end, after]
        gains -= padded[before, end] + padded[start, after]
        best = int(gains.argmax())
        if gains[best] <= 1e-12 * hops.max():
            return order
        part = slice(first[best], last[best] + 1)
        order[part] = order[part][::-1].copy()
