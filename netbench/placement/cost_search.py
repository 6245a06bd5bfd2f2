"""A quick search for the least communication cost of DT-FM, incremental where theirs is not.

Units that the cost cannot tell apart are one class, so the state is the classes of every group; see
`cost_kernel`. First come layouts without search: all units in a chain, from each class to the one
nearest to it, cut into runs along the pipelines; runs as long as a pipeline put each pipeline into
one region, runs of one unit each group. Then annealing starts again and again, from the best so far
and from random groups in turn, each time with more moves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from netbench.placement.cost_kernel import (
    all_hops,
    anneal,
    by_class,
    new_scratch,
    new_state,
    same_class,
    settle,
)
from netbench.placement.dtfm_cost import (
    MAX_EXACT_STAGES,
    greedy_path,
    length_s,
    shortest_path,
)
from netbench.placement.problem import Answer, Budget, Grid, Problem, Step
from netbench.placement.units import Units, assemble, closest, units_of

FIRST_MOVES, GROWTH, MOST_MOVES = 1000, 1.5, 1 << 20
"""Of the first annealing, how many times more of each further one, and where that ends."""

HOT, COLD = 0.015, 0.0005
"""Temperatures at which annealing begins and ends, shares of the cost at its start."""

MAX_STARTS = 25
"""Annealings of a search, unless the budget ends it before."""

CHUNK = 1 << 11
"""Moves between two looks at the clock, and at what they found."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Found:
    """Groups that cost less than all before: (pp, dp), units in the order of stages."""

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
    search = _Search(units, seed, budget, started)
    steps: list[Step] = []
    for found in search.run():
        step = Step(
            elapsed_s=found.elapsed_s,
            num_evaluated=found.num_evaluated,
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
        num_evaluated=search.num_evaluated,
        elapsed_s=time.perf_counter() - started,
    )


class _Search:
    """What it takes to anneal a state, and the best so far.

    started: `perf_counter` when the budget's time began.
    """

    def __init__(self, units: Units, seed: int, budget: Budget, started: float) -> None:
        self._links, self._seed = units.links, seed
        self._budget, self._started = budget, started
        self._pp, self._dp = units.problem.pp, units.problem.dp
        self._classes = same_class(self._links.group_s, self._links.hop_s)
        self._tables = by_class(self._links.group_s, self._links.hop_s, self._classes)
        self._work = new_scratch(len(self._tables.hop_s), self._dp)
        self._best_s, self._best_slots = np.inf, self._classes
        self.num_evaluated = 0

    def run(self) -> Iterator[Found]:
        """Whatever is better than all before, of the layouts, then of every annealing."""
        for slots in self._layouts():
            self.num_evaluated += 1
            yield from self._told(slots, np.arange(self._pp))
        rng = np.random.default_rng(self._seed)
        for index in range(MAX_STARTS):
            if self._is_over():
                return
            slots = rng.permutation(self._classes) if index % 2 else self._best_slots
            num_moves = int(min(FIRST_MOVES * GROWTH**index, MOST_MOVES))
            yield from self._anneal(slots, num_moves, rng)

    def _layouts(self) -> Iterator[Grid]:
        """Slots of units along a chain of classes, in every length of run that divides pp."""
        pp, dp = self._pp, self._dp
        idle = np.ones(len(self._classes), np.bool_)
        idle[closest(self._links, pp * dp)] = False
        path = greedy_path(self._tables.hop_s, 0)
        num_taken = np.bincount(self._classes[~idle], minlength=len(path))
        chain = np.repeat(path, num_taken[path])
        for length in range(pp, 0, -1):
            if pp % length == 0:
                runs = chain.reshape(-1, dp, length).transpose(0, 2, 1)
                yield np.concatenate([runs.ravel(), self._classes[idle]])

    def _anneal(self, slots: Grid, num_moves: int, rng: np.random.Generator) -> Iterator[Found]:
        """From these slots, with a look at the best of the state from time to time."""
        self.num_evaluated += 1
        state = new_state(slots, self._shortest(slots, np.arange(self._pp)), self._dp)
        told_s = settle(self._tables, self._work, state)
        hot_s, cooling = HOT * told_s, (COLD / HOT) ** (1 / num_moves)
        done = 0
        while done < num_moves and not self._is_over():
            ahead = int(min(CHUNK, num_moves - done, self._budget.evaluations - self.num_evaluated))
            warm_s = hot_s * cooling**done
            anneal(self._tables, self._work, state, warm_s, cooling, ahead, rng)
            done += ahead
            self.num_evaluated += ahead
            # A path through more groups than are solved exactly may take longer than the moves.
            soon = self._pp <= MAX_EXACT_STAGES or done == num_moves or self._is_over()
            if soon and state.best_s[0] < told_s:
                told_s = float(state.best_s[0])
                yield from self._told(state.best_slots, state.best_order)

    def _is_over(self) -> bool:
        return self._budget.over(time.perf_counter() - self._started, self.num_evaluated)

    def _told(self, slots: Grid, order: Grid) -> Iterator[Found]:
        """These, along the shortest path, if they are better than all before."""
        state = new_state(slots, self._shortest(slots, order), self._dp)
        cost_s = settle(self._tables, self._work, state)
        if cost_s < self._best_s:
            self._best_s, self._best_slots = cost_s, state.slots
            yield Found(
                groups=self._units_at(slots)[state.order],
                cost_s=cost_s,
                elapsed_s=time.perf_counter() - self._started,
                num_evaluated=self.num_evaluated,
            )

    def _shortest(self, slots: Grid, order: Grid) -> Grid:
        """The groups along the shortest path, or in the order given if that is as short."""
        hops_s = all_hops(self._tables, self._work, slots, self._pp, self._dp)
        path_s, shortest = shortest_path(hops_s)
        return shortest if path_s < length_s(hops_s, order) else order

    def _units_at(self, slots: Grid) -> Grid:
        """Units of the classes at these slots, group by group: (pp, dp)."""
        units = np.empty(len(slots), np.int64)
        units[np.argsort(slots, kind="stable")] = np.argsort(self._classes, kind="stable")
        return units[: self._pp * self._dp].reshape(self._pp, self._dp)
