"""What a data-parallel group takes at least that has members in certain sites.

A set of sites is a number with a bit per site. Figures of a set are the least of all sets that
contain it, so that what holds for a set holds for its subsets, and members may be anywhere in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from netbench.placement.floors import CHAIN, RING, SHARDED, Floors
from netbench.placement.problem import Floats, Grid

Make = Callable[[Floors, int, int], tuple[Floats, Floats]]
"""(floors, number of members, stage) -> `after_s` and `full_s` of all sets."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Groups:
    """Seconds by stage and set of sites, (pp, num_sets). after_s: from when the last member is
    ready. full_s: from when the first one is."""

    after_s: Floats
    full_s: Floats


def group_floors(floors: Floors, num_members: int, together: Grid | None = None) -> Groups:
    """Of a plan's groups, for all 2 ** num_sites sets of sites.

    together: (pp,), how many stages each pipeline has on the node of a stage, that one included, at
    least; None = 1. A node has the fewer members of a group, and the more of the first members,
    whose updates share its cores.
    """
    depth = len(floors.gradient_bytes)
    together = np.ones(depth, np.int64) if together is None else together
    if floors.shared_updates and floors.data_parallel == CHAIN:
        floors = dataclasses.replace(floors, update_s=floors.update_s * together)
    update_s = floors.update_s[:, None] * np.ones(1 << floors.num_sites)
    make = {CHAIN: _chain, RING: _ring, SHARDED: _sharded}.get(floors.data_parallel)
    if make is None or num_members < 2:
        return Groups(after_s=update_s, full_s=update_s)
    after_s, full_s = (np.empty_like(update_s) for _ in range(2))
    alike: dict[tuple[float, float, int], int] = {}
    for stage in range(depth):
        key = floors.gradient_bytes[stage], floors.update_s[stage], int(together[stage])
        of = alike.setdefault(key, stage)
        if of == stage:
            figures = _of_sets(make, floors, num_members, stage, floors.width // together[stage])
            after_s[stage], full_s[stage] = map(_inherited, figures)
        after_s[stage], full_s[stage] = after_s[of], full_s[of]
    return Groups(after_s=after_s, full_s=full_s)


def _of_sets(make: Make, floors: Floors, n: int, stage: int, room: Grid) -> tuple[Floats, Floats]:
    """Figures of sets by themselves. room: (S,), members that a node has room for: a group at a
    site whose nodes have less room is on two of them, as if they were two sites."""
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
    """Reduced along a path to its end, the first member, and from there to the path's begin and
    along it again. So the hops to the first member and from it count once, all others twice.

    When the last member is ready, the last hop to the first one still has to carry all but a slice.
    """
    size, update_s = floors.gradient_bytes[stage], floors.update_s[stage]
    rest = 1 - floors.slice_bytes[stage] / size if size else 0.0
    path_s = _along(floors.links.delay_s, n)
    after, full = _there_and_back(floors.links.byte_s, n, rest)
    after_s = size * after + path_s + float(floors.links.delay_s.min())
    apart_s = _narrowest(
        size * floors.links.byte_s + floors.links.slow_s, n
    )  # a new connection, then not
    apart_s = apart_s + size * _narrowest(floors.links.byte_s, n)
    full_s = np.maximum(size * full + float(floors.links.slow_s.min()), apart_s) + 2 * path_s
    return after_s + update_s, full_s + update_s


def _there_and_back(byte_s: Floats, n: int, rest: float) -> tuple[Floats, Floats]:
    """Of a chain through every set, seconds per byte: the narrowest hop on the way back beside
    `rest` of the last one on the way there; and beside the narrowest on the way there."""
    num_sites = len(byte_s)
    bits = 1 << np.arange(num_sites)
    ways = {once: byte_s if once else _closed(byte_s, np.maximum) for once in (True, False)}
    paths = {once: _paths(hop_s, np.maximum) for once, hop_s in ways.items()}
    size = _num_sites(num_sites)
    least = _least_hop(byte_s)
    after, full = rest * least + least, 2 * least
    for number in np.flatnonzero((size > 1) & (size <= n)):
        once = bool(size[number] == n)
        found_s = []
        for first in np.flatnonzero(number & bits):
            others = paths[once][number & ~bits[first]]  # [begin, end]
            there_s = np.maximum(others, ways[once][:, first])
            back_s = np.maximum(others, ways[once][first][:, None])
            last_s = ways[once][:, first] if once else least[number]  # from its own site, maybe
            last_s = np.where(np.isfinite(others), rest * last_s, np.inf)
            found_s.append(((last_s + back_s).min(), (there_s + back_s).min()))
        best = np.min(found_s, axis=0)
        after[number], full[number] = np.maximum((after[number], full[number]), best)
    after[size > n] = full[size > n] = np.inf
    return after, full


def _num_sites(num_sites: int) -> Grid:
    """Of every set."""
    return np.array([number.bit_count() for number in range(1 << num_sites)])


def _paths(hop_s: Floats, join: np.ufunc) -> Floats:
    """The cheapest path through all sites of every set, by where it begins and ends (Held, Karp),
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
    """All send to all, update their share, and pass it round; nobody starts that last part before
    everybody has sent."""
    piece_s = floors.gradient_bytes[stage] / n * floors.links.byte_s + floors.links.delay_s
    _, gathered_s = _round(floors, n, stage, n - 1, floors.ring_steps[1])
    gathered_s = gathered_s + floors.update_s[stage] / n
    sets = _sets(floors.num_sites)
    off = np.where(np.eye(floors.num_sites, dtype=np.bool_), 0.0, piece_s)  # one may be alone there
    reach_s = np.array([off[np.ix_(sites, sites)].max() for sites in sets[1:]])
    first_s = np.array([off[:, sites].max(axis=1).min() for sites in sets[1:]])
    return _with_none(first_s) + gathered_s, _with_none(reach_s) + gathered_s


def _round(
    floors: Floors, n: int, stage: int, num_steps: int, simulated: int
) -> tuple[Floats, Floats]:
    """Seconds of `num_steps` steps round a ring, after the last member is ready, and in all.

    What the last member sends first has to go on for all steps, over as many hops and delays. The
    narrowest hop has to carry as many parts; half of a whole all-reduce's, or more, when the last
    member is ready.
    """
    size, passes = floors.gradient_bytes[stage], floors.ring_passes[stage]
    delays = (num_steps * passes - simulated) / n
    hop_s = delays * floors.links.delay_s
    if simulated >= n:  # it comes round
        slice_bytes = size / n * num_steps / simulated / 2
        hop_s = hop_s + floors.links.delay_s + slice_bytes * floors.links.byte_s
    relayed_s = _around(hop_s, n)
    new_s = (
        floors.links.slow_s / num_steps if num_steps > n - 1 else 0.0
    )  # a ring alone is warm later
    narrow_s = _narrowest(size / n * floors.links.byte_s + new_s, n, closed=True)
    remaining = max(0, simulated - (n - 1)) * num_steps / simulated
    full_s = np.maximum(relayed_s, num_steps * narrow_s)
    return (np.maximum(relayed_s, remaining * narrow_s) if remaining else relayed_s), full_s


def _sets(num_sites: int) -> list[Grid]:
    return [
        np.flatnonzero([number >> bit & 1 for bit in range(num_sites)])
        for number in range(1 << num_sites)
    ]


def _with_none(of_sets: Floats) -> Floats:
    return np.concatenate([[0.0], of_sets])


def _inherited(of_sets: Floats) -> Floats:
    """The least of a set and of all that contain it."""
    least = of_sets.copy()
    for bit in range((len(of_sets) - 1).bit_length()):
        by_bit = least.reshape(-1, 2, 1 << bit)
        by_bit[:, 0] = np.minimum(by_bit[:, 0], by_bit[:, 1])
    return least


def _least_hop(hop_s: Floats) -> Floats:
    """The least hop inside every set."""
    least = np.full(1 << len(hop_s), np.inf)
    for (source, target), seconds in np.ndenumerate(hop_s):
        both = 1 << source | 1 << target
        least[both] = min(least[both], seconds)
    for bit in range(len(hop_s)):
        by_bit = least.reshape(-1, 2, 1 << bit)
        by_bit[:, 1] = np.minimum(by_bit[:, 0], by_bit[:, 1])
    return np.where(np.isfinite(least), least, 0.0)


def _along(hop_s: Floats, n: int, *, closed: bool = False) -> Floats:
    """The least sum over the hops of a path through n members of every set, or of a circle: as many
    times the least hop, and what a tour of the sites has beside."""
    num_hops = n if closed else n - 1
    floor = float(np.min(hop_s))
    tour = num_hops * floor + _tours(hop_s - floor, np.add, n, closed=closed)
    return np.maximum(tour, num_hops * _least_hop(hop_s))


def _around(hop_s: Floats, n: int) -> Floats:
    return _along(hop_s, n, closed=True)


def _narrowest(hop_s: Floats, n: int, *, closed: bool = False) -> Floats:
    """The least that the dearest hop can be."""
    return np.maximum(_tours(hop_s, np.maximum, n, closed=closed), _least_hop(hop_s))


def _closed(hop_s: Floats, join: np.ufunc) -> Floats:
    """Hops by way of any other site (Floyd, Warshall); none from a site to itself."""
    best = hop_s.copy()
    for middle in range(len(best)):
        best = np.minimum(best, join(best[:, middle, None], best[None, middle]))
    return best


def _tours(hop_s: Floats, join: np.ufunc, n: int, *, closed: bool) -> Floats:
    """The cheapest order of n members that visits the sites of every set, (2 ** num_sites,); 0 s
    for none and for one, inf for more than n. closed: and back to the first.

    Where there are as many sites as members each is visited once; else some more often, maybe.
    """
    size = _num_sites(len(hop_s))
    found = []
    for way_s in (hop_s, _closed(hop_s, join)):
        paths = _paths(way_s, join)
        found.append((join(paths, way_s.T) if closed else paths).min(axis=(1, 2)))
    tours: Floats = np.where(size == n, found[0], found[1])
    tours[size <= 1], tours[size > n] = 0.0, np.inf
    return tours
