"""DT-FM's scheduler: an evolutionary search for the stage groups of the least communication cost.

A population of partitions of the devices into stage groups. An offspring takes alternate parts of
two parents (5-point crossover); devices of groups that are too large go to those that are too
small; then local search moves devices in cycles through all groups. It takes the place of its worse
parent, or else of the worst of all, if it costs less. The cost is `dtfm_cost`: exact shortest path
over bottleneck matchings, by threshold and assignment.

Local search (cyclic partitioning): a device leaves its group for the next, one of that group for
one after, until the last returns to the first group. Moved is the device, and to the group, of the
largest gain: the speed of its links (1 / hop seconds) to the group that it leaves, minus to the one
that it joins, since a fast link inside a group is lost to the pipelines. Every device moves once at
most. The cycles up to the largest sum of gains are kept.

Corrected against the release: the seed decides everything (its generator is never seeded), and the
test whether an offspring is accepted reads as it was meant (its parentheses are elsewhere).
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from netbench.placement.dtfm_cost import ordered
from netbench.placement.problem import Answer, Budget, Floats, Grid, Problem, Step
from netbench.placement.units import Units, assemble, closest, units_of

POPULATION = 100
OFFSPRING = 4900
NUM_CUTS = 5
"""Of a crossover. Source of all three: the paper's release."""


def dtfm(problem: Problem, seed: int, budget: Budget) -> Answer:
    """The published search; stops early where the budget says so. Step values are costs, seconds.

    Raises PlanError where devices are too few or a stage does not fit its devices.
    """
    started = time.perf_counter()
    units = units_of(problem)
    taken = closest(units.links, problem.dp * problem.pp)
    search = _Search(units, taken, seed)
    steps: list[Step] = []
    while search.num_evaluated < POPULATION + OFFSPRING:
        better = search.evolve()
        elapsed_s = time.perf_counter() - started
        if better is not None:
            step = Step(
                elapsed_s=elapsed_s,
                num_evaluated=search.num_evaluated,
                value=search.least_s,
                grid=assemble(units, better),
                stage_layers=problem.stage_layers,
            )
            steps.append(step)
            if budget.progress:
                budget.progress(step)
        if budget.over(elapsed_s, search.num_evaluated):
            break
    return Answer(
        grid=steps[-1].grid,
        stage_layers=problem.stage_layers,
        steps=tuple(steps),
        num_evaluated=search.num_evaluated,
        elapsed_s=time.perf_counter() - started,
    )


class _Search:
    """The population, and how it evolves. A partition, (num_units,), is the group of each unit."""

    def __init__(self, units: Units, taken: Grid, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._links, self._taken = units.links, taken
        self._shape = units.problem.pp, units.problem.dp
        hop_s = units.links.hop_s[np.ix_(taken, taken)]
        speeds = np.divide(1.0, hop_s, out=np.zeros_like(hop_s), where=hop_s > 0)
        self._speeds = speeds
        self._population: list[Grid] = []
        self._costs: list[float] = []
        self.num_evaluated = 0
        self.least_s = np.inf

    def evolve(self) -> Grid | None:
        """Evaluate one candidate more; its groups, (pp, dp), along their path if it is the best."""
        full = len(self._population) == POPULATION
        parents = self._rng.choice(POPULATION, 2, replace=False).tolist() if full else []
        candidate = self._offspring(*parents) if full else self._random()
        candidate = exchange(self._speeds, candidate, self._shape[0], self._rng)
        groups = self._taken[np.argsort(candidate, kind="stable").reshape(self._shape)]
        candidate_s, groups = ordered(self._links, groups)
        self.num_evaluated += 1
        if full:
            self._accept(candidate, candidate_s, parents)
        else:
            self._population.append(candidate)
            self._costs.append(candidate_s)
        if candidate_s >= self.least_s:
            return None
        self.least_s = candidate_s
        return groups

    def _random(self) -> Grid:
        pp, dp = self._shape
        return self._rng.permutation(np.repeat(np.arange(pp), dp))

    def _offspring(self, one: int, other: int) -> Grid:
        """The crossover of two of the population, all groups of the same size."""
        pp, dp = self._shape
        places = np.arange(pp * dp)
        cuts = np.sort(self._rng.integers(1, pp * dp, NUM_CUTS))
        from_one = np.searchsorted(cuts, places, side="right") % 2 == 0
        child = np.where(from_one, self._population[one], self._population[other])
        members = [self._rng.permutation(np.flatnonzero(child == group)) for group in range(pp)]
        spare = self._rng.permutation(np.concatenate([group[dp:] for group in members]))
        child[spare] = np.repeat(np.arange(pp), [max(dp - len(group), 0) for group in members])
        return child

    def _accept(self, candidate: Grid, candidate_s: float, parents: list[int]) -> None:
        worse_parent = max(parents, key=self._costs.__getitem__)
        for place in (worse_parent, int(np.argmax(self._costs))):
            if candidate_s < self._costs[place]:
                self._population[place], self._costs[place] = candidate, candidate_s
                return


def exchange(speeds: Floats, partition: Grid, num_groups: int, rng: np.random.Generator) -> Grid:
    """The local search: `partition`, (num_units,), after the cycles of moves that gain most.

    speeds: (num_units, num_units), 0 on the diagonal. Groups keep their sizes.
    """
    best, moved = partition, partition.copy()
    joined = speeds @ np.eye(num_groups)[partition]  # (num_units, num_groups)
    locked = np.zeros(len(partition), np.bool_)
    gain = best_gain = 0.0
    for _ in range(len(partition) // num_groups if num_groups > 1 else 0):
        gained = _cycle(speeds, moved, joined, locked, int(rng.integers(num_groups)))
        if gained is None:
            break
        gain += gained
        if gain > best_gain:
            best_gain, best = gain, moved.copy()
    return best


def _cycle(
    speeds: Floats, partition: Grid, joined: Floats, locked: NDArray[np.bool_], start: int
) -> float | None:
    """Move one unit of every group that is passed, in place; the gain of all, None if it is stuck.

    joined: (num_units, num_groups), the speeds between a unit and a group in sum.
    """
    targets = np.ones(joined.shape[1], np.bool_)
    group, gain = start, 0.0
    targets[start] = False
    while True:
        free = np.flatnonzero((partition == group) & ~locked)
        if not len(free):
            return None
        gains = np.where(targets, joined[free, group, None] - joined[free], -np.inf)
        chosen, target = (int(i) for i in np.unravel_index(gains.argmax(), gains.shape))
        unit = free[chosen]
        gain += float(gains[chosen, target])
        joined[:, group] -= speeds[:, unit]
        joined[:, target] += speeds[:, unit]
        partition[unit], locked[unit] = target, True
        if target == start:
            return gain
        targets[target], targets[start] = False, True
        group = target
