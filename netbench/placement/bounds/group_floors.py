"""Least times of a data-parallel group with members in certain sites.

A set of sites is a number with a bit per site. The value of a set is the least over all sets that
contain it, so a bound for a set also holds for groups that span more of them.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from netbench.placement.bounds.floors import CHAIN, RING, SCATTERED, SHARDED, Floors
from netbench.placement.problem import Floats, Grid

Make = Callable[[Floors, int, int], tuple[Floats, Floats]]
"""(floors, number of members, stage) -> `after_s` and `full_s` of all sets."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Groups:
    """Seconds by stage and set of sites, (pp, num_sets). after_s: since the last member is ready.
    full_s: since the first one is."""

    after_s: Floats
    full_s: Floats


def group_floors(floors: Floors, num_members: int, together: Grid | None = None) -> Groups:
    """Return the least times of a plan's groups, for all 2 ** num_sites sets of sites.

    together: (pp,), least number of stages that each pipeline has on the node of a stage; None = 1.
    More stages per node leave room for fewer members of a group, and the updates of more first
    members share its cores.
    """
    depth = len(floors.gradient_bytes)
    together = np.ones(depth, np.int64) if together is None else together
    if floors.shared_updates and floors.data_parallel == CHAIN:
        floors = dataclasses.replace(floors, update_s=floors.update_s * together)
    update_s = floors.update_s[:, None] * np.ones(1 << floors.num_sites)
    make = {CHAIN: _chain, RING: _ring, SHARDED: _sharded, SCATTERED: _scattered}.get(
        floors.data_parallel
    )
    if make is None or num_members < 2:
        return Groups(after_s=update_s, full_s=update_s)
    after_s, full_s = (np.empty_like(update_s) for _ in range(2))
    alike: dict[tuple[float, float, int], int] = {}
    for stage in range(depth):
        key = floors.gradient_bytes[stage], floors.update_s[stage], int(together[stage])
        of = alike.setdefault(key, stage)
        if of == stage:
            times = _of_sets(make, floors, num_members, stage, floors.width // together[stage])
            after_s[stage], full_s[stage] = map(_inherited, times)
        after_s[stage], full_s[stage] = after_s[of], full_s[of]
    return Groups(after_s=after_s, full_s=full_s)


def _of_sets(make: Make, floors: Floors, n: int, stage: int, room: Grid) -> tuple[Floats, Floats]:
    """Return the values of sets, not yet the least over supersets. room: (S,), members that fit on
    a node; a group at a site with less room is on two nodes, as if they were two sites."""
    after_s, full_s = make(floors, n, stage)
    for site in np.flatnonzero(room < n):
        number = 1 << site
        if np.isinf(floors.apart.delay_s[site, site]):
            after_s[number] = full_s[number] = np.inf  # there is one node
            continue
        after, full = make(floors.twins(np.array([site])), n, stage)
        after_s[number], full_s[number] = after[-1], full[-1]
    return after_s, full_s


def _chain(floors: Floors, n: int, stage: int) -> tuple[Floats, Floats]:
    """Bound a reduction along a path to the first member, and the broadcast along it again.

    The hops to and from the first member count once, all others twice. When the last member is
    ready, the last hop to the first one still has to carry all but a slice.
    """
    size, update_s = floors.gradient_bytes[stage], floors.update_s[stage]
    rest = 1 - floors.slice_bytes[stage] / size if size else 0.0
    path_s = _along(floors.links.delay_s, n)
    after, full = _there_and_back(floors.links.byte_s, n, rest)
    after_s = size * after + path_s + float(floors.links.delay_s.min())
    # Over a new connection, then not.
    apart_s = _narrowest(size * floors.links.byte_s + floors.links.slow_s, n)
    apart_s = apart_s + size * _narrowest(floors.links.byte_s, n)
    full_s = np.maximum(size * full + float(floors.links.slow_s.min()), apart_s) + 2 * path_s
    return after_s + update_s, full_s + update_s


def _there_and_back(byte_s: Floats, n: int, rest: float) -> tuple[Floats, Floats]:
    """Return seconds per byte of a chain through every set, after the last and the first member are
    ready: the slowest hop of the broadcast, plus `rest` of the last hop of the reduction or its
    slowest hop."""
    num_sites = len(byte_s)
    bits = 1 << np.arange(num_sites)
    ways = {once: byte_s if once else closure(byte_s, np.maximum) for once in (True, False)}
    paths = {once: _paths(hop_s, np.maximum) for once, hop_s in ways.items()}
    size = _num_sites(num_sites)
    least = _least_hop(byte_s)
    after, full = rest * least + least, 2 * least
    for number in np.flatnonzero((size > 1) & (size <= n)):
        once = bool(size[number] == n)
        options_s = []
        for first in np.flatnonzero(number & bits):
            others = paths[once][number & ~bits[first]]  # [begin, end]
            there_s = np.maximum(others, ways[once][:, first])
            back_s = np.maximum(others, ways[once][first][:, None])
            last_s = ways[once][:, first] if once else least[number]  # possibly from its own site
            last_s = np.where(np.isfinite(others), rest * last_s, np.inf)
            options_s.append(((last_s + back_s).min(), (there_s + back_s).min()))
        best = np.min(options_s, axis=0)
        after[number], full[number] = np.maximum((after[number], full[number]), best)
    after[size > n] = full[size > n] = np.inf
    return after, full


def _num_sites(num_sites: int) -> Grid:
    return np.array([number.bit_count() for number in range(1 << num_sites)])


def _paths(hop_s: Floats, join: np.ufunc) -> Floats:
    """Return the cheapest path through all sites of every set, by its ends (Held, Karp),
    (2 ** num_sites, S, S); inf where there is none."""
    num_sites = len(hop_s)
    bits = 1 << np.arange(num_sites)
    best = np.full((1 << num_sites, num_sites, num_sites), np.inf)
    best[bits, np.arange(num_sites), np.arange(num_sites)] = 0.0
    for number in range(1, 1 << num_sites):
        for site in np.flatnonzero((number & bits) == 0):
            reached = join(best[number], hop_s[:, site]).min(axis=1)
            longer = best[number | bits[site], :, site]
            np.minimum(longer, reached, out=longer)
    return best


def _ring(floors: Floors, n: int, stage: int) -> tuple[Floats, Floats]:
    after_s, full_s = _round(floors, n, stage, 2 * (n - 1), floors.ring_steps[0])
    return after_s + floors.update_s[stage], full_s + floors.update_s[stage]


def _sharded(floors: Floors, n: int, stage: int) -> tuple[Floats, Floats]:
    """Bound an exchange of all with all, the update of a shard each, and a ring of the shards. The
    ring starts only when all have sent."""
    piece_s = floors.gradient_bytes[stage] / n * floors.links.byte_s + floors.links.delay_s
    _, gathered_s = _round(floors, n, stage, n - 1, floors.ring_steps[1])
    gathered_s = gathered_s + floors.update_s[stage] / n
    bits = 1 << np.arange(floors.num_sites)
    sets = [np.flatnonzero(number & bits) for number in range(1 << floors.num_sites)]
    off = np.where(np.eye(len(piece_s), dtype=np.bool_), 0.0, piece_s)  # a member may be alone
    reach_s = np.array([off[np.ix_(sites, sites)].max(initial=0.0) for sites in sets])
    first_s = np.array([off[:, sites].max(axis=1, initial=0.0).min() for sites in sets])
    return first_s + gathered_s, reach_s + gathered_s


def _scattered(floors: Floors, n: int, stage: int) -> tuple[Floats, Floats]:
    """Bound a ring that scatters sums, the update of a shard each, and a ring that gathers. No
    member gathers before the last one is ready, because every sum has a part of each member."""
    _, gathered_s = _round(floors, n, stage, n - 1, floors.ring_steps[1])
    gathered_s = gathered_s + floors.update_s[stage] / n
    return gathered_s, gathered_s


def _round(
    floors: Floors, n: int, stage: int, num_steps: int, simulated: int
) -> tuple[Floats, Floats]:
    """Return seconds of `num_steps` steps round a ring, after the last and the first are ready.

    What the last member sends first travels for all steps, with a hop and a delay each. The
    slowest hop carries one part per step; in an all-reduce at least half of them after the last
    member is ready.
    """
    size, passes = floors.gradient_bytes[stage], floors.ring_passes[stage]
    delays = (num_steps * passes - simulated) / n
    hop_s = delays * floors.links.delay_s
    if simulated >= n:  # it completes a round
        slice_bytes = size / n * num_steps / simulated / 2
        hop_s = hop_s + floors.links.delay_s + slice_bytes * floors.links.byte_s
    relayed_s = _along(hop_s, n, closed=True)
    # A lone ring warms up later.
    new_s = floors.links.slow_s / num_steps if num_steps > n - 1 else 0.0
    narrow_s = _narrowest(size / n * floors.links.byte_s + new_s, n, closed=True)
    remaining = max(0, simulated - (n - 1)) * num_steps / simulated
    full_s = np.maximum(relayed_s, num_steps * narrow_s)
    return (np.maximum(relayed_s, remaining * narrow_s) if remaining else relayed_s), full_s


def _inherited(of_sets: Floats) -> Floats:
    """Return the least of every set and all its supersets."""
    least = of_sets.copy()
    for bit in range((len(of_sets) - 1).bit_length()):
        by_bit = least.reshape(-1, 2, 1 << bit)
        by_bit[:, 0] = np.minimum(by_bit[:, 0], by_bit[:, 1])
    return least


def _least_hop(hop_s: Floats) -> Floats:
    least = np.full(1 << len(hop_s), np.inf)
    for (source, target), seconds in np.ndenumerate(hop_s):
        both = 1 << source | 1 << target
        least[both] = min(least[both], seconds)
    for bit in range(len(hop_s)):
        by_bit = least.reshape(-1, 2, 1 << bit)
        by_bit[:, 1] = np.minimum(by_bit[:, 0], by_bit[:, 1])
    return np.where(np.isfinite(least), least, 0.0)


def _along(hop_s: Floats, n: int, *, closed: bool = False) -> Floats:
    """Return the least sum of the hops of a path, or circle, through n members of every set: n
    times the least hop, plus the excess of a tour of the sites."""
    num_hops = n if closed else n - 1
    floor = float(np.min(hop_s))
    tour = num_hops * floor + _tours(hop_s - floor, np.add, n, closed=closed)
    return np.maximum(tour, num_hops * _least_hop(hop_s))


def _narrowest(hop_s: Floats, n: int, *, closed: bool = False) -> Floats:
    """Return the least that the slowest hop can be."""
    return np.maximum(_tours(hop_s, np.maximum, n, closed=closed), _least_hop(hop_s))


def closure(hop_s: Floats, join: np.ufunc) -> Floats:
    """Return hops by way of any other site (Floyd, Warshall)."""
    best = hop_s.copy()
    for middle in range(len(best)):
        best = np.minimum(best, join(best[:, middle, None], best[None, middle]))
    return best


def _tours(hop_s: Floats, join: np.ufunc, n: int, *, closed: bool) -> Floats:
    """Return the cheapest order of n members that visits the sites of every set,
    (2 ** num_sites,); 0 s for up to one site, inf for more than n. closed: back to the first.

    With as many sites as members each site is visited once, otherwise possibly more often.
    """
    size = _num_sites(len(hop_s))
    options = []
    for way_s in (hop_s, closure(hop_s, join)):
        paths = _paths(way_s, join)
        options.append((join(paths, way_s.T) if closed else paths).min(axis=(1, 2)))
    tours: Floats = np.where(size == n, options[0], options[1])
    tours[size <= 1], tours[size > n] = 0.0, np.inf
    return tours
