"""DT-FM's scheduler: an evolutionary search for stage groups of the least communication cost.

The population consists of partitions of the devices into stage groups. An offspring takes alternate
parts of two parents (5-point crossover). Devices of groups that are too large go to groups that are
too small; then a local search moves devices in cycles through all groups. The offspring replaces
its worse parent, or else the worst of all, if it costs less. `dtfm.cost` has the cost.

Local search (cyclic partitioning): a device leaves its group for the next group, a device of that
one for another, and so on until the last returns to the first group. Each step takes the device and
target group of the largest gain: the speed of its links (1 / hop seconds) to the group that it
leaves, minus those to the group that it joins, because a fast link inside a group is lost to the
pipelines. Every device moves at most once. The cycles up to the largest sum of gains are kept.

Two corrections to the release: the seed decides everything (the release never seeds its generator),
and the acceptance test has its parentheses where they were meant.
"""

import numpy as np
from numpy.typing import NDArray

from netbench.placement.dtfm.cost import ordered
from netbench.placement.dtfm.units import Units, assemble, closest, units_of
from netbench.placement.problem import Answer, Budget, Floats, Grid, Problem
from netbench.placement.search.incumbent import Incumbent

POPULATION = 100
OFFSPRING = 4900
NUM_CUTS = 5
"""Cuts of a crossover. Source of all three: the paper's release."""


def dtfm(problem: Problem, seed: int, budget: Budget) -> Answer:
    """Run the published search; the budget may end it early. Improvements have costs, seconds.

    Raises PlanError where devices are too few or a stage does not fit its devices.
    """
    incumbent, units = Incumbent(budget), units_of(problem)
    search = _Evolution(units, closest(units.links, problem.dp * problem.pp), seed)
    while incumbent.num_evaluated < POPULATION + OFFSPRING:
        candidate_s, groups = search.evolve()
        incumbent.num_evaluated += 1
        if candidate_s < incumbent.value:
            incumbent.keep(candidate_s, assemble(units, groups), problem.stage_layers)
        if incumbent.over:
            break
    return incumbent.answer()


class _Evolution:
    """A population of partitions. A partition, (num_units,), is the group of each unit."""

    def __init__(self, units: Units, taken: Grid, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._links, self._taken = units.links, taken
        self._shape = units.problem.pp, units.problem.dp
        hop_s = units.links.hop_s[np.ix_(taken, taken)]
        self._speeds = np.divide(1.0, hop_s, out=np.zeros_like(hop_s), where=hop_s > 0)
        self._population: list[Grid] = []
        self._costs: list[float] = []

    def evolve(self) -> tuple[float, Grid]:
        """Evaluate one candidate; return its cost and its groups, (pp, dp), in path order."""
        full, (pp, dp) = len(self._population) == POPULATION, self._shape
        if full:
            parents = self._rng.choice(POPULATION, 2, replace=False).tolist()
            candidate = self._offspring(*parents)
        else:
            candidate = self._rng.permutation(np.repeat(np.arange(pp), dp))
        candidate = exchange(self._speeds, candidate, pp, self._rng)
        groups = self._taken[np.argsort(candidate, kind="stable").reshape(self._shape)]
        candidate_s, groups = ordered(self._links, groups)
        if full:
            self._accept(candidate, candidate_s, parents)
        else:
            self._population.append(candidate)
            self._costs.append(candidate_s)
        return candidate_s, groups

    def _offspring(self, one: int, other: int) -> Grid:
        """Return the crossover of two of the population, with groups of equal size."""
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
    """Improve `partition`, (num_units,), by the cycles of moves with the largest total gain.

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
    """Move one unit out of each group of a cycle, in place; return the total gain, None if stuck.

    joined: (num_units, num_groups), the sum of speeds between a unit and a group.
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
