"""A quick search for the least communication cost of DT-FM, incremental where theirs is not.

Units that the cost cannot tell apart are one class, so the state is the classes of every group; see
`cost_kernel`. First come layouts without search: all units in a chain, from each class to the one
nearest to it, cut into runs along the pipelines; runs as long as a pipeline put each pipeline into
one region, runs of one unit each group. Then annealing starts again and again, from those, from
random groups and from the best so far, each time with more moves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from netbench.placement.cost_kernel import (
    Tables,
    all_hops,
    anneal,
    new_scratch,
    new_state,
    same_class,
    settle,
)
from netbench.placement.dtfm_cost import LinkTimes, greedy_path, length_s, shortest_path
from netbench.placement.problem import Answer, Budget, Grid, Problem, Step
from netbench.placement.units import Units, assemble, closest, units_of

FIRST_MOVES, GROWTH, MOST_MOVES = 1000, 1.5, 1 << 20
"""Of the first annealing, how many times more of each further one, and where that ends."""

HOT, COLD = 0.03, 0.0005
"""Temperatures at which annealing begins and ends, shares of the cost at its start."""

MAX_STARTS = 20
"""Annealings of a search, unless the budget ends it before."""

CHUNK = 1 << 13
"""Moves between two looks at the clock."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """What a layout or an annealing came to. groups: (pp, dp), units in the order of stages."""

    groups: Grid
    cost_s: float
    elapsed_s: float
    num_evaluated: int


def search_cost(problem: Problem, seed: int, budget: Budget) -> Answer:
    """The grid of the least cost found. Step values are costs, seconds.

    Raises PlanError where devices are too few or a stage does not fit its devices.
    """
    started = time.perf_counter()
    units = units_of(problem)
    steps: list[Step] = []
    num_evaluated = 0
    for found in search_groups(units, seed, budget, started):
        num_evaluated = found.num_evaluated
        if not steps or found.cost_s < steps[-1].value:
            step = Step(
                elapsed_s=found.elapsed_s,
                num_evaluated=num_evaluated,
                value=found.cost_s,
                grid=assemble(units, found.groups),
                stage_layers=problem.stage_layers,
            )
            steps.append(step)
            if budget.progress:
                budget.progress(step)
    return Answer(
        grid=steps[-1].grid,
        stage_layers=problem.stage_layers,
        steps=tuple(steps),
        num_evaluated=num_evaluated,
        elapsed_s=time.perf_counter() - started,
    )


def search_groups(units: Units, seed: int, budget: Budget, started: float) -> Iterator[Found]:
    """The layouts, then every annealing. started: `perf_counter` when the budget's time began."""
    search = _Search(units, seed, budget, started)
    layouts = search.layouts()
    ends = []
    for slots in layouts:
        ends.append((search.begin(slots), slots))
        yield search.found()
    for index in range(MAX_STARTS):
        if search.is_over():
            return
        best = min(ends, key=itemgetter(0))[1]
        search.begin((best, layouts[index // 3 % len(layouts)], search.shuffled())[index % 3])
        cost_s = search.anneal(int(min(FIRST_MOVES * GROWTH**index, MOST_MOVES)))
        ends.append((cost_s, search.state.slots))
        yield search.found()


class _Search:
    """The state, and what it takes to anneal it."""

    def __init__(self, units: Units, seed: int, budget: Budget, started: float) -> None:
        self._units, self._budget, self._started = units, budget, started
        self._pp, self._dp = units.problem.pp, units.problem.dp
        self._rng = np.random.default_rng(seed)
        self._classes = same_class(units.links.group_s, units.links.hop_s)
        self._tables = _tables_of(units.links, self._classes)
        self._work = new_scratch(len(self._tables.group_s), self._dp)
        self._evaluated = 0

    def layouts(self) -> list[Grid]:
        """Slots of units along a chain of classes, in every length of run that divides pp."""
        pp, dp = self._pp, self._dp
        idle = np.ones(len(self._classes), np.bool_)
        idle[closest(self._units.links, pp * dp)] = False
        hops_s = self._tables.levels_s[self._tables.level]
        place = np.argsort(greedy_path(hops_s, 0))[self._classes]
        chain = self._classes[np.lexsort((place, idle))]
        taken, left = chain[: pp * dp], chain[pp * dp :]
        runs = [taken.reshape(-1, dp, run) for run in range(pp, 0, -1) if pp % run == 0]
        return [np.concatenate([run.transpose(0, 2, 1).ravel(), left]) for run in runs]

    def shuffled(self) -> Grid:
        return self._rng.permutation(self._classes)

    def is_over(self) -> bool:
        return (
            self._evaluated >= self._budget.evaluations
            or time.perf_counter() - self._started >= self._budget.seconds
        )

    def begin(self, slots: Grid) -> float:
        """Take these slots; the cost along the shortest path, seconds."""
        self.state = new_state(slots, self._pp, self._dp)
        self._evaluated += 1
        return self._straighten()

    def anneal(self, num_moves: int) -> float:
        """Take the best that annealing meets from here; its cost, seconds."""
        cooling = (COLD / HOT) ** (1 / num_moves)
        hot_s = HOT * float(self.state.best_s[0])
        num_moves = int(min(num_moves, self._budget.evaluations - self._evaluated))
        for done in range(0, num_moves, CHUNK):
            chunk, warm_s = min(CHUNK, num_moves - done), hot_s * cooling**done
            anneal(self._tables, self._work, self.state, warm_s, cooling, chunk, self._rng)
            self._evaluated += chunk
            if self.is_over():
                break
        self.state.slots[:] = self.state.best_slots
        self.state.order[:] = self.state.best_order
        return self._straighten()

    def found(self) -> Found:
        """The state, told."""
        slots, order = self.state.slots, self.state.order
        units = np.empty(len(slots), np.int64)
        units[np.argsort(slots, kind="stable")] = np.argsort(self._classes, kind="stable")
        shape = self._pp, self._dp
        return Found(
            groups=units[: self._pp * self._dp].reshape(shape)[order],
            cost_s=settle(self._tables, self._work, self.state),
            elapsed_s=time.perf_counter() - self._started,
            num_evaluated=self._evaluated,
        )

    def _straighten(self) -> float:
        """Order the groups along the shortest path; the cost, seconds."""
        hops_s = self._tables.levels_s[all_hops(self._tables, self._work, self.state)]
        path_s, order = shortest_path(hops_s)
        if path_s < length_s(hops_s, self.state.order):
            self.state.order[:] = order
        return settle(self._tables, self._work, self.state)


def _tables_of(links: LinkTimes, classes: Grid) -> Tables:
    """Of two classes: the times of the first unit of one and another unit of the other."""
    _, firsts, sizes = np.unique(classes, return_index=True, return_counts=True)
    group_s, hop_s = links.group_s[np.ix_(firsts, firsts)], links.hop_s[np.ix_(firsts, firsts)]
    np.fill_diagonal(hop_s, hop_s.max())  # of classes of one unit, where it is never read
    for one in np.flatnonzero(sizes > 1):
        pair = firsts[one], np.flatnonzero(classes == one)[1]
        group_s[one, one], hop_s[one, one] = links.group_s[pair], links.hop_s[pair]
    levels_s, level = np.unique(hop_s, return_inverse=True)
    return Tables(group_s, level.reshape(hop_s.shape), levels_s)
