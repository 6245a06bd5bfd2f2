"""Place pipelines greedily, region after region, as a careful engineer would.

Each region fills as many whole pipelines as it can. The remaining devices are joined into pipelines
over the best links: first the largest remainder, then the region with the best link from the
pipeline's end. Where kinds of devices differ, stages get layers by their slowest device.

Regions are taken in listed order and by size; the nodes of a region in listed order or larger
first; its kinds one after another, or dealt out evenly to its pipelines. The variant with the
shortest simulated iteration wins.
"""

import itertools

import numpy as np
from scipy.optimize import linear_sum_assignment

from netbench.errors import PlanError
from netbench.placement.problem import Answer, Budget, Grid, Problem
from netbench.placement.search.incumbent import Incumbent
from netbench.placement.search.layers import Layers, balanced, find_layers
from netbench.placement.search.sites import Sites, find_sites
from netbench.units import counted

LISTED, BY_NODE, BY_KIND, DEALT = "listed", "by node", "by kind", "dealt"
"""Orders of a region's devices: listed, larger nodes first, kind after kind, or kinds in turn."""


def region_aligned(problem: Problem, seed: int, budget: Budget) -> Answer:
    """Return the best greedy placement; the seed has no effect. Raises PlanError where no greedy
    placement fits its devices' memory with any layers."""
    sites, layers = find_sites(problem), find_layers(problem)
    incumbent = Incumbent(budget)
    for blocks, choice in aligned_starts(problem, sites, layers):
        placed = layers.problem(choice)
        if placed is not None:
            incumbent.offer(placed, sites.expanded(blocks)[None])
        if incumbent.over:
            break
    if incumbent.value == np.inf:
        raise unfit(problem)
    return incumbent.answer()


def unfit(problem: Problem) -> PlanError:
    """Return the error for a problem whose stages fit no devices."""
    unfit_kinds = np.isinf(problem.stage_s).sum(axis=1)
    kinds = ", ".join(
        f"{count} of kind {kind} for {counted(unfit_kinds[kind], 'stage')} too small"
        for kind, count in enumerate(np.bincount(problem.kind).tolist())
    )
    return PlanError(
        f"{counted(problem.dp, 'pipeline')} of {counted(problem.pp, 'stage')} with "
        f"{counted(sum(problem.stage_layers), 'layer')} do not fit the memory of any "
        f"{problem.dp * problem.pp * problem.tp} of {counted(problem.num_devices, 'device')} "
        f"({kinds}); choose more stages, tensor-parallel ranks, or devices with more memory"
    )


def aligned_starts(problem: Problem, sites: Sites, layers: Layers) -> list[tuple[Grid, Grid]]:
    """Return the distinct greedy placements: blocks (dp, pp) and layers of the stages (pp,)."""
    starts: dict[bytes, tuple[Grid, Grid]] = {}
    kinds = sites.kind[sites.site]
    orders = [LISTED, BY_NODE]
    if len(np.unique(kinds)) > 1:
        orders += [BY_KIND, DEALT]
    for order, by_size in itertools.product(orders, (False, True)):
        blocks = _filled(problem, sites, _pieces(problem, sites, order, by_size=by_size))
        choices: list[Grid | None] = [layers.start]
        if len(np.unique(kinds)) > 1 or np.isinf(problem.stage_s).any():
            choices.append(balanced(layers, kinds[blocks]))
        for choice in choices:
            if choice is None:
                continue
            fitting = fit(layers, kinds, blocks, choice)
            if fitting is not None:
                starts.setdefault(fitting.tobytes() + choice.tobytes(), (fitting, choice))
    return list(starts.values())


def fit(layers: Layers, kinds: Grid, blocks: Grid, choice: Grid) -> Grid | None:
    """Return `blocks` with the fewest exchanged so that all stages fit their devices, or None.
    kinds: (num_blocks,), of every block."""
    dp, pp = blocks.shape
    stage_s = layers.compute_s[:, np.arange(pp), choice]  # (num_kinds, pp)
    if np.isfinite(stage_s[kinds[blocks], np.arange(pp)]).all():
        return blocks
    changed = np.ones((len(kinds), dp * pp))
    changed[blocks.ravel(), np.arange(dp * pp)] = 0.0
    fits = np.isfinite(stage_s)[kinds][:, np.tile(np.arange(pp), dp)]
    never = float(dp * pp + 1)
    chosen, cells = linear_sum_assignment(np.where(fits, changed, never))
    if not fits[chosen, cells].all():
        return None
    fitting = np.empty(dp * pp, np.int64)
    fitting[cells] = chosen
    return fitting.reshape(dp, pp)


def _pieces(problem: Problem, sites: Sites, order: str, *, by_size: bool) -> list[list[int]]:
    """Return the blocks of every region, in the order in which pipelines take them."""
    region, kinds = sites.region[sites.site], sites.kind[sites.site]
    width = np.bincount(sites.node)[sites.node]
    stage_s = problem.stage_s.min(axis=1)[kinds]
    regions, first = np.unique(region, return_index=True)
    regions = regions[np.argsort(first)]
    if by_size:
        regions = regions[np.argsort(-np.bincount(region)[regions], kind="stable")]
    pieces = []
    for which in regions:
        members = np.flatnonzero(region == which)
        keys = [members]
        if order != LISTED:
            keys += [sites.node[members], -width[members]]
        if order == BY_KIND:
            keys.append(stage_s[members])
        members = members[np.lexsort(keys)]
        if order == DEALT:
            turn = np.empty(len(members))
            for kind in np.unique(kinds[members]):
                of_kind = np.flatnonzero(kinds[members] == kind)
                turn[of_kind] = (np.arange(len(of_kind)) + 0.5) / len(of_kind)
            members = members[np.argsort(turn, kind="stable")]
        pieces.append(members.tolist())
    return pieces


def _filled(problem: Problem, sites: Sites, pieces: list[list[int]]) -> Grid:
    """Return blocks (dp, pp): whole pipelines of each piece, then the joined remainders."""
    rows: list[list[int]] = []
    left = []
    for piece in pieces:
        whole = len(piece) // problem.pp * problem.pp
        rows += [piece[at : at + problem.pp] for at in range(0, whole, problem.pp)]
        left.append(piece[whole:])
    rows = rows[: problem.dp]
    while len(rows) < problem.dp:
        row: list[int] = []
        while len(row) < problem.pp:
            open_pieces, room = [piece for piece in left if piece], problem.pp - len(row)
            best = max(open_pieces, key=lambda piece: _affinity(sites, row, piece, room))
            taken = best[:room]
            del best[: len(taken)]
            row += taken
        rows.append(row)
    return np.array(rows, np.int64)


def _affinity(
    sites: Sites, row: list[int], piece: list[int], room: int
) -> tuple[float, float, bool, int]:
    """Return a key of how well a piece continues a pipeline: bandwidth, delay, whether all of it
    fits there, and size."""
    if not row:
        return 0.0, 0.0, True, len(piece)
    here, there = sites.site[row[-1]], sites.site[piece[0]]
    pace = max(sites.seconds_per_byte[here, there], sites.seconds_per_byte[there, here])
    return -pace, -float(sites.delay_s[here, there]), len(piece) <= room, len(piece)
