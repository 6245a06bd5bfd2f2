"""The best of all grids, where they are few enough to simulate every one.

Grids that differ only in devices nobody can tell apart take the same time, so one of them stands
for all: nodes are alike that have a region, a NIC and as many devices of each kind in common, and
so are a node's devices of one kind. The order of pipelines is not given away: it is the order of
the members of a ring or chain, which may go well round the regions or badly.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from netbench.errors import PlanError
from netbench.placement.problem import Grid, Problem

MAX_GRIDS = 100_000
"""Simulated at most: at about 2 ms each, minutes."""

_AT_ONCE = 1024
"""Grids given to the objective together."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Optimum:
    """The least simulated iteration time, a grid that has it, and how many were simulated."""

    seconds: float
    grid: Grid
    num_grids: int


def optimum(problem: Problem, max_grids: int = MAX_GRIDS) -> Optimum:
    """The best grid that fits its devices' memory, for the problem's own layers. Of equals, the
    first.

    Raises PlanError where there are more than `max_grids`, where none fits, or where a grid needs
    more devices than there are.
    """
    needed = problem.dp * problem.tp * problem.pp
    if needed > problem.num_devices:
        raise PlanError(
            f"{problem.dp} pipelines of {problem.pp} stages on {problem.tp} devices each need "
            f"{needed}, but there are {problem.num_devices}; choose fewer"
        )
    grids = few_grids(problem, max_grids)
    if not grids:
        raise PlanError(
            f"{needed} of {problem.num_devices} devices can be placed in more than {max_grids} "
            "ways that differ; expected fewer, e.g. 12 devices in 2 regions: search for a good one"
        )
    fitting = [grid for grid in grids if problem.fits(grid).all()]
    if not fitting:
        raise PlanError(f"none of the {len(grids)} placements that differ fits its devices' memory")
    best, seconds = fitting[0], np.inf
    for begin in range(0, len(fitting), _AT_ONCE):
        some = np.stack(fitting[begin : begin + _AT_ONCE])
        times_s = problem.objective.times_s(some)
        index = int(np.argmin(times_s))
        if times_s[index] < seconds:
            best, seconds = some[index], float(times_s[index])
    return Optimum(seconds=seconds, grid=best, num_grids=len(fitting))


def few_grids(problem: Problem, max_grids: int) -> list[Grid]:
    """All that differ; none where they are more than `max_grids`."""
    if max_grids < 1 or _log_least(problem) > math.log(max_grids) + 1e-6:
        return []
    grids = list(itertools.islice(distinct_grids(problem), max_grids + 1))
    return grids if len(grids) <= max_grids else []


def _log_least(problem: Problem) -> float:
    """Logarithm of a number of grids that differ at least: the orders of the first devices, where
    only regions, NICs and kinds are told apart."""
    told = np.stack([problem.region, problem.kind, problem.nic_bps])[:, : problem.ranks.size]
    counts = np.unique(told, axis=1, return_counts=True)[1]
    return math.lgamma(problem.ranks.size + 1) - sum(math.lgamma(n + 1) for n in counts.tolist())


def distinct_grids(problem: Problem) -> Iterator[Grid]:
    """All grids that devices can be told apart by, (dp * tp, pp) each; the first device of those
    that are alike stands for them."""
    nodes, alike = _nodes(problem)
    num_cells = problem.dp * problem.tp * problem.pp
    opened = Counter[int]()  # of each sort of nodes, how many have been taken from
    chosen: list[int] = []
    undo: list[tuple[list[int], int, bool]] = []

    def choices() -> Iterator[tuple[list[int], int, bool]]:
        """For the next cell: devices, of which the last is meant, the sort of their node, and
        whether it is the first taken from there."""
        for sort, members in enumerate(alike):
            for place, node in enumerate(members[: opened[sort] + 1]):
                for devices in nodes[node]:
                    if devices:
                        yield devices, sort, place == opened[sort]

    cells = [choices()]  # a stack, as there may be more cells than calls can be nested
    while cells:
        if len(chosen) == num_cells:
            yield np.array(chosen).reshape(problem.shape)
        step = next(cells[-1], None) if len(chosen) < num_cells else None
        if step is not None:
            devices, sort, new = step
            chosen.append(devices.pop())
            opened[sort] += new
            undo.append(step)
            cells.append(choices())
            continue
        cells.pop()
        if undo:
            devices, sort, new = undo.pop()
            devices.append(chosen.pop())
            opened[sort] -= new


def _nodes(problem: Problem) -> tuple[list[list[list[int]]], list[list[int]]]:
    """Devices of every node, by kind, the next one last; and nodes that are alike, together."""
    num_kinds = int(problem.kind.max()) + 1
    nodes: list[list[list[int]]] = []
    sorts: dict[tuple[object, ...], list[int]] = {}
    for index, node in enumerate(np.unique(problem.node)):
        devices = np.flatnonzero(problem.node == node)
        by_kind = [devices[problem.kind[devices] == kind][::-1] for kind in range(num_kinds)]
        nodes.append([some.tolist() for some in by_kind])
        counts = tuple(len(some) for some in by_kind)
        first = devices[0]
        sort = (int(problem.region[first]), float(problem.nic_bps[first]), counts)
        sorts.setdefault(sort, []).append(index)
    return nodes, list(sorts.values())
