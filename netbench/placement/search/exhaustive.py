"""List every placement, where there are few enough to simulate them all.

Grids that differ only by interchangeable devices take the same time, so only one of them is tried.
Two nodes are interchangeable if they share a region, a NIC rate and the number of devices of each
kind; so are the devices of one kind on a node. Grids that differ in the order of pipelines are all
tried: it is the order of the members of a ring or chain, and affects its time.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from netbench.placement.problem import Grid, Problem

MAX_GRIDS = 100_000
"""Largest number of grids to simulate; at about 2 ms each that takes minutes."""


def few_grids(problem: Problem, max_grids: int) -> list[Grid]:
    """Return all distinct grids; an empty list where there are more than `max_grids`."""
    # At least the orders of the first devices, distinguished by region, kind, NIC and host only.
    size = problem.ranks.size
    traits = [problem.region, problem.kind, problem.nic_bps, problem.host_bps]
    distinct = np.stack(traits)[:, :size]
    counts = np.unique(distinct, axis=1, return_counts=True)[1]
    log_least = math.lgamma(size + 1) - sum(math.lgamma(n + 1) for n in counts.tolist())
    if max_grids < 1 or log_least > math.log(max_grids) + 1e-6:
        return []
    grids = list(itertools.islice(distinct_grids(problem), max_grids + 1))
    return grids if len(grids) <= max_grids else []


def distinct_grids(problem: Problem) -> Iterator[Grid]:
    """Yield all distinct grids, (dp * tp, pp) each, with the first of interchangeable devices."""
    nodes, alike = _nodes(problem)
    num_cells = problem.dp * problem.tp * problem.pp
    opened = Counter[int]()  # by sort of nodes, how many have been used
    chosen: list[int] = []
    undo: list[tuple[list[int], int, bool]] = []

    def choices() -> Iterator[tuple[list[int], int, bool]]:
        """Yield the choices for the next cell: a list of devices whose last one is meant, the sort
        of its node, and whether the node is unused so far."""
        for sort, members in enumerate(alike):
            for place, node in enumerate(members[: opened[sort] + 1]):
                for devices in nodes[node]:
                    if devices:
                        yield devices, sort, place == opened[sort]

    cells = [choices()]  # a stack: there may be more cells than the recursion limit
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
    """Return the devices of every node, by kind, in reverse order; and interchangeable nodes."""
    num_kinds = int(problem.kind.max()) + 1
    nodes: list[list[list[int]]] = []
    sorts: dict[tuple[object, ...], list[int]] = {}
    for index, node in enumerate(np.unique(problem.node)):
        devices = np.flatnonzero(problem.node == node)
        by_kind = [devices[problem.kind[devices] == kind][::-1] for kind in range(num_kinds)]
        nodes.append([some.tolist() for some in by_kind])
        counts = tuple(len(some) for some in by_kind)
        first = devices[0]
        rates = float(problem.nic_bps[first]), float(problem.host_bps[first])
        sort = (int(problem.region[first]), *rates, counts)
        sorts.setdefault(sort, []).append(index)
    return nodes, list(sorts.values())
