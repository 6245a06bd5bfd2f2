"""Prove a lower bound on the simulated iteration time of all placements of a problem.

`docs/placement.md` ("How far from optimal") has the argument. The bound is the least iteration time
X for which an integer programme of devices per site, stage and hop has a solution. For a given X,
no hop may be used whose pipeline takes longer than X (`pipeline_floors`), and no group may span
sites that make it end after X (`group_floors`). If the programme is infeasible, X is proved. The
use of the least value of every kind makes the bound lower than the optimum, never higher.

Sites may be merged into clusters with the least values of their sites; a lower bound for the
clusters is one for the sites. With tensor parallelism a stage has several groups, each inside some
set of sites. Only the group of the slowest pipeline waits for it; nothing is assumed of the others.
"""

import dataclasses
import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from netbench.errors import PlanError
from netbench.placement.bounds.floors import Floors
from netbench.placement.bounds.group_floors import Groups, closure, group_floors
from netbench.placement.bounds.pipeline_floors import Hops, hop_floors, round_trip_s
from netbench.placement.bounds.programme import DeviceProgramme, largest_sets
from netbench.placement.problem import Budget, Grid, Problem
from netbench.units import counted

SECONDS = 20.0
"""Default duration of the search for a proof."""

MAX_SITES = 12
"""Up to this number of sites, the time of a group is known for every set of sites (4,096 sets). A
larger number of sites is merged into this number of clusters."""

PRECISION = 0.004
"""Relative precision of the bound; levels that differ by less are merged."""

_ROUNDING = 1e-6
"""Relative margin for the simulator's ticks of 2**-30 s."""


_NO_FLOORS = (
    "no bound is known for a plan without a pipeline schedule; expected a variant of megatron or "
    "dtfm"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """No grid has a simulated iteration time below `seconds`.

    pipeline_s, group_s: the time of the slowest pipeline, and the rest of the iteration. proof: a
    sentence. stage_layers: for which it holds. proved: whether the search finished in time.
    """

    seconds: float
    pipeline_s: float
    group_s: float
    proof: str
    stage_layers: tuple[int, ...]
    proved: bool


def lower_bounds(
    problems: Sequence[Problem],
    budget: Budget | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[Bound, ...]:
    """Return the bound of each problem.

    The search raises the least of the bounds, which holds for all problems together; the others may
    be weaker than what a search for each would prove.

    budget: its seconds, `SECONDS` if unlimited, and its interruption; other limits are ignored.
    progress: called with the least bound so far. Raises PlanError for a plan without stages.
    """
    budget = budget or Budget()
    if budget.seconds == math.inf:
        budget = dataclasses.replace(budget, seconds=SECONDS)
    until = _Deadline(time.monotonic() + budget.seconds, budget.interrupted)
    searches = []
    for problem in problems:
        if problem.floors is None:
            raise PlanError(_NO_FLOORS)
        searches.append(_ProofSearch(problem, problem.floors, until))
    while until.left_s() > 0:
        search = min(searches, key=lambda search: search.least)
        if search.over:
            break
        search.step()
        if progress is not None:
            progress(min(search.least.seconds for search in searches))
    return tuple(search.bound() for search in searches)


def floor_s(problem: Problem, grid: Grid) -> float:
    """Return a lower bound of `grid`, (dp * tp, pp), from the same floors as the proof, seconds."""
    if problem.floors is None:
        raise PlanError(_NO_FLOORS)
    floors, hops = _merged(problem.floors)
    sites = floors.site[grid]
    stage, after = np.arange(max(1, problem.pp - 1)), np.minimum(1, problem.pp - 1)
    node, hop = problem.node[grid], (slice(None), stage, sites[:, stage], sites[:, stage + after])
    beside = node[:, stage] == node[:, stage + after]
    lanes_s = np.where(beside, hops.ready_s[hop], hops.across_s[hop]).max(axis=2)
    together = _runs(beside.all(axis=0)[: problem.pp - 1])
    groups = group_floors(floors, problem.dp, together)
    # Arrays of groups are by stage and tensor-parallel index.
    ready_s = lanes_s.reshape(problem.pp, problem.dp, problem.tp).max(axis=1)
    by_group = (1 << sites).reshape(problem.dp, problem.tp, problem.pp)
    of_group = np.arange(problem.pp)[:, None], np.bitwise_or.reduce(by_group, axis=0).T
    done_s = np.maximum(
        ready_s + groups.after_s[of_group], hops.least_s[:, None] + groups.full_s[of_group]
    )
    return float(done_s.max() + _barrier_s(problem.floors)) * (1 - _ROUNDING)


class _Deadline(NamedTuple):
    deadline: float
    interrupted: Callable[[], bool]

    def left_s(self) -> float:
        return 0.0 if self.interrupted() else self.deadline - time.monotonic()


@dataclass(frozen=True, slots=True, order=True)
class _Range:
    """No grid whose slowest pipeline has a level in first..last takes less than `seconds`.
    searched: whether the integer programme cannot prove more for these levels together."""

    seconds: float
    first: int
    last: int
    searched: bool = False


class _ProofSearch:
    """Raises the proved time of ranges of levels with the integer programme."""

    def __init__(self, problem: Problem, floors: Floors, until: _Deadline) -> None:
        self._problem, self._until = problem, until
        self._apart_s = _barrier_s(floors)
        self._floors, self._hops = _merged(floors)
        self._sizes = np.bincount(self._floors.site)
        self._groups_of: dict[bytes, Groups] = {}  # by stages per node
        self._programme = DeviceProgramme(problem.pp, problem.dp, problem.tp, self._sizes)
        every_s = np.stack([self._hops.whole_s, self._hops.across_whole_s])
        whole_s = every_s[np.isfinite(every_s)]
        steps = np.log(whole_s / whole_s.min()) // PRECISION
        levels = [whole_s[steps == step] for step in np.unique(steps)]
        self._least_s = np.array([level.min() for level in levels])
        self._most_s = np.array([level.max() for level in levels])
        groups = self._groups(np.ones(problem.pp, np.int64))
        least_s = self._hops.least_s[:, None] + np.maximum(groups.after_s, groups.full_s)
        floor_s = float(least_s[:, 1:].min(axis=1).max()) + self._apart_s
        self._ranges = [_Range(floor_s, 0, len(levels) - 1)]  # a heap

    @property
    def least(self) -> _Range:
        return self._ranges[0]

    @property
    def over(self) -> bool:
        """True if nothing more can be proved."""
        return self.least.searched and self.least.first == self.least.last

    def step(self) -> None:
        """Prove more for the range of the least proved time, or halve it if already searched."""
        seconds, first, last, searched = dataclasses.astuple(heapq.heappop(self._ranges))
        if searched:
            middle = (first + last) // 2
            heapq.heappush(self._ranges, _Range(seconds, first, middle))
            heapq.heappush(self._ranges, _Range(seconds, middle + 1, last))
        else:
            seconds = self._proved_s(first, last, seconds)
            heapq.heappush(self._ranges, _Range(seconds, first, last, searched=True))

    def bound(self) -> Bound:
        """Return the bound proved so far."""
        least = self.least
        seconds = least.seconds * (1 - _ROUNDING)
        pipeline_s = min(float(self._least_s[least.first]), seconds)
        return Bound(
            seconds=seconds,
            pipeline_s=pipeline_s,
            group_s=seconds - pipeline_s,
            proof=self._proof(pipeline_s, seconds - pipeline_s),
            stage_layers=self._problem.stage_layers,
            proved=self.over,
        )

    def _proof(self, pipeline_s: float, group_s: float) -> str:
        return (
            f"{counted(self._sizes.sum(), 'device')} at {counted(len(self._sizes), 'site')} do "
            f"not suffice for less: where the slowest pipeline takes {pipeline_s:.3g} s, some "
            f"group's members are so far apart that it ends {group_s:.3g} s later, or some members "
            "have no device"
        )

    def _groups(self, together: Grid) -> Groups:
        key = together.tobytes()
        if key not in self._groups_of:
            self._groups_of[key] = group_floors(self._floors, self._problem.dp, together)
        return self._groups_of[key]

    def _proved_s(self, first: int, last: int, known_s: float) -> float:
        """Return a lower bound of grids whose slowest pipeline has one of these levels, seconds."""
        low_s = max(known_s, float(self._least_s[first]) + self._apart_s)
        if self._possible(first, last, low_s * (1 + PRECISION)):
            return low_s
        if not self._possible(first, last, math.inf):
            return math.inf  # no grid exists
        high_s = low_s * 2
        while not self._possible(first, last, high_s):
            low_s, high_s = high_s, high_s * 2
        while high_s > low_s * (1 + PRECISION) and self._until.left_s() > 0:
            middle_s = math.sqrt(low_s * high_s)
            if self._possible(first, last, middle_s):
                high_s = middle_s
            else:
                low_s = middle_s
        return low_s

    def _possible(self, first: int, last: int, seconds: float) -> bool:
        """Return False if it is proved that no grid takes less than `seconds`."""
        hops, tp = self._hops, self._problem.tp
        most_s = min(self._most_s[last], seconds - self._apart_s)
        usable = hops.whole_s <= most_s
        # Stages whose hops between nodes are all too slow: their hops stay inside nodes.
        inside = (hops.across_whole_s > most_s).all(axis=(1, 2))[: self._problem.pp - 1]
        together = _runs(inside)
        for hop in np.flatnonzero(inside):
            usable[hop] &= self._floors.width >= together[hop]
        # With tensor parallelism, only one of several groups waits for the slowest pipeline.
        slowest_s = hops.least_s
        if tp == 1:  # when each stage is ready if a hop has at least this level
            pairs = (hops.ready_s, hops.whole_s), (hops.across_s, hops.across_whole_s)
            least_s = self._least_s[first]
            slow = (
                each_s[:, whole_s >= least_s].min(axis=1, initial=np.inf)
                for each_s, whole_s in pairs
            )
            slowest_s = np.minimum(*slow)
        groups = self._groups(together)
        group_s = np.maximum(
            slowest_s[:, None] + groups.after_s, hops.least_s[:, None] + groups.full_s
        )
        allowed = np.isfinite(group_s) & (group_s + self._apart_s <= seconds)
        left_s = self._until.left_s()
        return left_s <= 0 or self._programme.possible(
            usable, [largest_sets(s) for s in allowed], left_s
        )


def _runs(inside: NDArray[np.bool_]) -> Grid:
    """Return, for every stage, the least number of stages that share its node in every pipeline.
    inside: (pp - 1,), whether a hop stays inside nodes."""
    run = np.cumsum(np.concatenate([[True], ~inside]))
    return np.asarray(np.bincount(run)[run])


def _merged(floors: Floors) -> tuple[Floors, Hops]:
    """Return the floors, merged to at most `MAX_SITES` sites, and those of their hops."""
    hops = hop_floors(floors)
    if floors.num_sites <= MAX_SITES:
        return floors, hops
    cluster = _clusters(floors)
    return floors.merged(cluster), hops.between(cluster)


def _clusters(floors: Floors) -> Grid:
    """Return the cluster of each site, (S,); sites with the best links share one."""
    there_s = floors.links.all_s + floors.links.delay_s
    apart_s = np.maximum(there_s, there_s.T)
    np.fill_diagonal(apart_s, 0.0)
    tree = linkage(squareform(apart_s), "average")
    return np.unique(fcluster(tree, MAX_SITES, "maxclust"), return_inverse=True)[1]


def _barrier_s(floors: Floors) -> float:
    """Return the least time of the final barrier: a round trip per step; and, if all devices are in
    use, the time for the last rank's message to reach every site."""
    if not floors.gpipe:
        return 0.0
    steps_s = floors.barrier_steps * round_trip_s(floors)
    delay_s = floors.links.delay_s.copy()
    np.fill_diagonal(delay_s, 0.0)
    best_s = closure(delay_s, np.add)
    return steps_s if floors.may_idle else max(steps_s, float(best_s.max(axis=1).min()))
