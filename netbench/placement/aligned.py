"""The greedy that a careful engineer would follow: pipelines region after region.

A region fills as many pipelines as it can. What regions have left over is joined by the best links:
the largest piece, then whichever region has the best link to where the pipeline ends. Where kinds
of devices differ, stages get layers by their slowest device. Regions are taken in listed order and
by size, their nodes in listed order or the larger first; a region's kinds one after the other, or
dealt out to all of its pipelines alike; of these, the best when simulated.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.optimize import linear_sum_assignment

from netbench.errors import PlanError
from netbench.placement.incumbent import Incumbent
from netbench.placement.layers import Layers, balanced, find_layers
from netbench.placement.problem import Answer, Budget, Grid, Problem
from netbench.placement.sites import Sites, find_sites
from netbench.units import counted

LISTED, BY_NODE, BY_KIND, DEALT = "listed", "by node", "by kind", "dealt"
"""Orders of a region's devices: as nodes come, larger nodes first, kind after kind, or kinds in
turn."""


def region_aligned(problem: Problem, seed: int, budget: Budget) -> Answer:
    """The best of the greedy placements; the seed changes nothing. Raises PlanError where no stage
    layers make one that fits its devices' memory."""
    sites, layers = find_sites(problem), find_layers(problem)
    incumbent = Incumbent(problem, budget)
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
    """The error of a problem whose stages fit no devices."""
    unfit_kinds = np.isinf(problem.stage_s).sum(axis=1)
    found = ", ".join(
        f"{count} of kind {kind} for {counted(unfit_kinds[kind], 'stage')} too small"
        for kind, count in enumerate(np.bincount(problem.kind).tolist())
    )
    return PlanError(
        f"{counted(problem.dp, 'pipeline')} of {counted(problem.pp, 'stage')} with "
        f"{counted(sum(problem.stage_layers), 'layer')} cannot be in the memory of any "
        f"{problem.dp * problem.pp * problem.tp} of {counted(problem.num_devices, 'device')} "
        f"({found}); choose more stages, tensor-parallel ranks, or devices with more memory"
    )


def aligned_starts(problem: Problem, sites: Sites, layers: Layers) -> list[tuple[Grid, Grid]]:
    """Greedy placements as blocks (dp, pp) with choices of layers (pp,), each once."""
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
    """`blocks` with as few as possible changed so that all stages fit; None where they cannot.
    kinds: of every block."""
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
    """The blocks of every region, in the order in which they are to be used."""
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
                own = np.flatnonzero(kinds[members] == kind)
                turn[own] = (np.arange(len(own)) + 0.5) / len(own)
            members = members[np.argsort(turn, kind="stable")]
        pieces.append(members.tolist())
    return pieces


def _filled(problem: Problem, sites: Sites, pieces: list[list[int]]) -> Grid:
    """(dp, pp) blocks: whole pipelines of each piece, then what is left over, joined."""
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
    """How well a piece continues a pipeline: by bandwidth, delay, whether all of it goes there, and
    size."""
    if not row:
        return 0.0, 0.0, True, len(piece)
    here, there = sites.site[row[-1]], sites.site[piece[0]]
    pace = max(sites.seconds_per_byte[here, there], sites.seconds_per_byte[there, here])
    return -pace, -float(sites.delay_s[here, there]), len(piece) <= room, len(piece)
