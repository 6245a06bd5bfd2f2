"""A lower bound on the simulated iteration time of all placements of a problem.

Two things are true of every grid. Its slowest pipeline takes at least what the dearest hop or stage
in it asks for (`pipeline_floors`); and once that pipeline is done, every group still has to move
its gradients, which takes at least what the sites it reaches across ask for (`group_floors`).
Either could be cheap alone. But devices are few: who keeps all pipelines inside regions has groups
across all of them. So the bound is the least iteration time for which an integer programme of
devices per site, stage and hop has a solution: for a number of seconds X, no hop may be used whose
pipeline takes X, no group may reach across sites that make it end after X. Where the programme has
none, X is proved.

The programme knows nothing of single pipelines: hops of a stage are counted, since pipelines that
go through a site can be swapped there. That, and figures that are each the least of their kind,
makes the bound lower than the optimum, never higher.

Of nodes with several devices it knows this. A pipeline that is longer than a node is wide has a hop
between nodes, and a group with more members than a node has room for is on two of them. Where X
allows no stage's hop between nodes, all pipelines have those stages side by side: a node has room
for as many members less, and the updates of the first pipeline share the cores of its node.

Sites may be taken together: the figures of a cluster are the least of its sites', and a grid counts
as what the least figures make of it, so that what no such grid goes below is a bound. With tensor
parallelism a stage has several groups, each inside some set of sites. Those that do not have the
slowest pipeline do not wait for it: from when it is ready nothing follows for the others.
"""

from __future__ import annotations

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
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array
from scipy.spatial.distance import squareform

from netbench.errors import PlanError
from netbench.placement.floors import Floors
from netbench.placement.group_floors import Groups, group_floors
from netbench.placement.pipeline_floors import Hops, hop_floors, round_trip_s
from netbench.placement.problem import Budget, Floats, Grid, Problem
from netbench.units import counted

SECONDS = 20.0
"""Of search for a proof where the budget does not say."""

MAX_SITES = 12
"""Up to so many, what a group takes is known for every set of sites: 4,096 of them. More are taken
together in so many clusters."""

PRECISION = 0.004
"""Of the bound: levels that are nearer to each other are one."""

PATIENCE_S = 2.0
"""With one integer programme; what it has not proved by then is taken to be possible."""

_ROUNDING = 1e-6
"""The simulator counts in ticks of 2**-30 s."""


_NO_FLOORS = (
    "no bound is known for this plan, which has no pipeline schedule; expected a variant of "
    "megatron or dtfm"
)

_INFEASIBLE = 2
"""`scipy.optimize.milp`'s status."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """No grid has a simulated iteration time below `seconds`.

    pipeline_s, group_s: what its slowest pipeline takes there, and what remains when that is done.
    proof: in words. stage_layers: it holds for. proved: whether the search was over, or its time.
    """

    seconds: float
    pipeline_s: float
    group_s: float
    proof: str
    stage_layers: tuple[int, ...]
    proved: bool

    def gap(self, found_s: float) -> float:
        """By what share `found_s` is above the bound."""
        return found_s / self.seconds - 1


def lower_bound(
    problem: Problem,
    budget: Budget | None = None,
    progress: Callable[[float], None] | None = None,
) -> Bound:
    """The bound for the problem's own layers: `lower_bounds` of one."""
    return lower_bounds([problem], budget, progress)[0]


def lower_bounds(
    problems: Sequence[Problem],
    budget: Budget | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[Bound, ...]:
    """The bound of each problem; searched is the least of them all, which no grid of any goes
    below, so that of the others less may be proved.

    budget: seconds of search, `SECONDS` unless it says, and its interruption; all else in it is
    ignored. progress: told of the least so far. Raises PlanError for a problem whose plan has no
    stages.
    """
    budget = budget or Budget()
    if budget.seconds == math.inf:
        budget = dataclasses.replace(budget, seconds=SECONDS)
    until = _Until(time.monotonic() + budget.seconds, budget.interrupted)
    searches = []
    for problem in problems:
        if problem.floors is None:
            raise PlanError(_NO_FLOORS)
        searches.append(_Search(problem, problem.floors, until))
    while until.left_s() > 0:
        search = min(searches, key=lambda search: search.least)
        if search.over:
            break
        search.step()
        if progress is not None:
            progress(min(search.least.seconds for search in searches))
    return tuple(search.bound() for search in searches)


def floor_s(problem: Problem, grid: Grid) -> float:
    """What `grid`, (dp * tp, pp), takes at least, by the same figures: what a proof rests on."""
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
    # Of every stage and tensor-parallel index, a group.
    ready_s = lanes_s.reshape(problem.pp, problem.dp, problem.tp).max(axis=1)
    by_group = (1 << sites).reshape(problem.dp, problem.tp, problem.pp)
    of_group = np.arange(problem.pp)[:, None], np.bitwise_or.reduce(by_group, axis=0).T
    done_s = np.maximum(
        ready_s + groups.after_s[of_group], hops.least_s[:, None] + groups.full_s[of_group]
    )
    return float(done_s.max() + _barrier_s(problem.floors)) * (1 - _ROUNDING)


class _Until(NamedTuple):
    """How long a search for proofs goes on."""

    deadline: float
    interrupted: Callable[[], bool]

    def left_s(self) -> float:
        return 0.0 if self.interrupted() else self.deadline - time.monotonic()


@dataclass(frozen=True, slots=True, order=True)
class _Range:
    """No grid whose slowest pipeline is of levels first..last takes less than `seconds`.
    searched: whether that is all that the integer programme has to say of them together."""

    seconds: float
    first: int
    last: int
    searched: bool = False


class _Search:
    """Which ranges of levels have a grid below a time, as far as the integer programme tells."""

    def __init__(self, problem: Problem, floors: Floors, until: _Until) -> None:
        self._problem, self._until = problem, until
        self._apart_s = _barrier_s(floors)
        self._floors, self._hops = _merged(floors)
        self._sizes = np.bincount(self._floors.site)
        self._groups_of: dict[bytes, Groups] = {}  # by stages that are together
        self._programme = _Programme(problem.pp, problem.dp, problem.tp, self._sizes)
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
        """Whether nothing more can be proved."""
        return self.least.searched and self.least.first == self.least.last

    def step(self) -> None:
        """Prove more of the range of which least is proved; where that has been done, halve it."""
        seconds, first, last, searched = dataclasses.astuple(heapq.heappop(self._ranges))
        if searched:
            middle = (first + last) // 2
            heapq.heappush(self._ranges, _Range(seconds, first, middle))
            heapq.heappush(self._ranges, _Range(seconds, middle + 1, last))
        else:
            seconds = self._proved_s(first, last, seconds)
            heapq.heappush(self._ranges, _Range(seconds, first, last, searched=True))

    def bound(self) -> Bound:
        """What is proved so far."""
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
            f"{counted(self._sizes.sum(), 'device')} at {counted(len(self._sizes), 'site')} cannot "
            f"go round: where the slowest pipeline takes {pipeline_s:.3g} s, some group's members "
            f"are so far apart that it is done {group_s:.3g} s later, or not all find a place"
        )

    def _slowest_s(self, level_s: float) -> Floats:
        """Until each stage is ready, (pp,), of a pipeline whose dearest hop has that level."""
        hops = self._hops
        pairs = (hops.ready_s, hops.whole_s), (hops.across_s, hops.across_whole_s)
        ready_s = np.hstack([each_s[:, whole_s >= level_s] for each_s, whole_s in pairs])
        slowest_s: Floats = ready_s.min(axis=1)
        return slowest_s

    def _groups(self, together: Grid) -> Groups:
        key = together.tobytes()
        if key not in self._groups_of:
            self._groups_of[key] = group_floors(self._floors, self._problem.dp, together)
        return self._groups_of[key]

    def _proved_s(self, first: int, last: int, known_s: float) -> float:
        """What no grid with its slowest pipeline in these levels goes below."""
        low_s = max(known_s, float(self._least_s[first]) + self._apart_s)
        if self._possible(first, last, low_s * (1 + PRECISION)):
            return low_s
        if not self._possible(first, last, math.inf):
            return math.inf  # devices do not go round
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
        """Whether no proof is found that no grid takes less than `seconds`."""
        hops, tp = self._hops, self._problem.tp
        most_s = min(self._most_s[last], seconds - self._apart_s)
        usable = hops.whole_s <= most_s
        # Hops that leave no node: between nodes, none is allowed.
        inside = (hops.across_whole_s > most_s).all(axis=(1, 2))[: self._problem.pp - 1]
        together = _runs(inside)
        for hop in np.flatnonzero(inside):
            usable[hop] &= self._floors.width >= together[hop]
        # With tensor parallelism, who waits for the slowest pipeline is one group of several.
        slowest_s = self._slowest_s(self._least_s[first]) if tp == 1 else hops.least_s
        groups = self._groups(together)
        group_s = np.maximum(
            slowest_s[:, None] + groups.after_s, hops.least_s[:, None] + groups.full_s
        )
        allowed = np.isfinite(group_s) & (group_s + self._apart_s <= seconds)
        left_s = self._until.left_s()
        return left_s <= 0 or self._programme.possible(
            usable, [_largest(s) for s in allowed], left_s
        )


class _Programme:
    """Numbers of devices by stage, site and next site: (pp - 1, S, S), or (1, S, S) of one stage on
    the diagonal. Every group of a stage, of which there are as many as tensor-parallel ranks, has
    its members inside one of some sets of sites: so many groups have each."""

    def __init__(self, depth: int, members: int, tp: int, sizes: Grid) -> None:
        self._depth, self._sizes, self._num_groups = depth, sizes, tp
        self._lanes, self._room = members * tp, np.minimum(members, sizes)
        num_sites, num_hops = len(sizes), max(1, depth - 1)
        hops = np.arange(num_hops * num_sites**2).reshape(num_hops, num_sites, num_sites)
        self._count = hops.size
        at = np.zeros((depth, num_sites, hops.size))  # how many of a stage are at a site
        for stage in range(depth):
            for site in range(num_sites):
                to = hops[stage, site] if stage < num_hops else hops[stage - 1, :, site]
                at[stage, site, to] = 1
        flow = np.zeros((max(0, depth - 2), num_sites, hops.size))
        for stage in range(1, depth - 1):
            for site in range(num_sites):
                flow[stage - 1, site, hops[stage - 1, :, site]] += 1
                flow[stage - 1, site, hops[stage, site]] -= 1
        self._at, self._flow = at, flow.reshape(-1, hops.size)

    def possible(self, usable: NDArray[np.bool_], sets: list[list[int]], seconds: float) -> bool:
        """Whether devices can be so placed; True where the solver does not know in time."""
        if not all(sets):
            return False
        constraints = self._placed() + self._grouped(sets)
        num_sets = sum(map(len, sets))
        most = [np.where(usable.ravel(), self._lanes, 0), np.full(num_sets, self._num_groups)]
        # Those of devices alone have no columns of sets.
        matrix = np.vstack(
            [
                np.pad(one.matrix, ((0, 0), (0, self._count + num_sets - one.matrix.shape[1])))
                for one in constraints
            ]
        )
        found = milp(
            np.zeros(self._count + num_sets),
            integrality=np.ones(self._count + num_sets),
            bounds=Bounds(0, np.concatenate(most)),
            constraints=LinearConstraint(
                coo_array(matrix).tocsr(),
                np.concatenate([np.broadcast_to(c.low, len(c.matrix)) for c in constraints]),
                np.concatenate([np.broadcast_to(c.high, len(c.matrix)) for c in constraints]),
            ),
            options={"time_limit": min(seconds, PATIENCE_S)},
        )
        return bool(found.status != _INFEASIBLE)

    def _placed(self) -> list[_Between]:
        """Who goes on from a site has come there; every lane is somewhere; sites have so many."""
        return [
            _Between(self._flow, 0, 0),
            _Between(self._at[0].sum(axis=0)[None], self._lanes, self._lanes),
            _Between(self._at.sum(axis=0), 0, self._sizes),
        ]

    def _grouped(self, sets: list[list[int]]) -> list[_Between]:
        """Each group has a set, and each stage no more members at a site than its groups' sets
        give room for."""
        num_sites = len(self._sizes)
        numbers = np.concatenate([np.asarray(some) for some in sets])
        of_stage = np.repeat(np.arange(self._depth), [len(some) for some in sets])
        chosen = np.equal.outer(np.arange(self._depth), of_stage).astype(float)
        none = np.zeros((self._depth, self._count))
        constraints = [_Between(np.hstack([none, chosen]), self._num_groups, self._num_groups)]
        inside = numbers >> np.arange(num_sites)[:, None] & 1
        for stage, some in enumerate(sets):
            if (1 << num_sites) - 1 in some:
                continue
            room = inside * chosen[stage] * self._room[:, None]
            constraints.append(_Between(np.hstack([self._at[stage], -room]), -np.inf, 0))
        return constraints


class _Between(NamedTuple):
    """Rows of a programme's constraints, and what they are to be between."""

    matrix: Floats
    low: float
    high: float | Grid


def _largest(allowed: NDArray[np.bool_]) -> list[int]:
    """Those of the allowed sets of sites that are in no other; a subset of one is allowed."""
    numbers = np.flatnonzero(allowed)
    largest: list[int] = []
    for number in sorted(numbers.tolist(), key=int.bit_count, reverse=True):
        if number and not any(number & other == number for other in largest):
            largest.append(number)
    return largest


def _runs(inside: NDArray[np.bool_]) -> Grid:
    """Of every stage, how many stages are on its node in every pipeline, at least. inside:
    (pp - 1,), whether a hop leaves no node."""
    run = np.cumsum(np.concatenate([[True], ~inside]))
    runs: Grid = np.bincount(run)[run]
    return runs


def _merged(floors: Floors) -> tuple[Floors, Hops]:
    """Floors of `MAX_SITES` sites at most, and of their hops."""
    hops = hop_floors(floors)
    if floors.num_sites <= MAX_SITES:
        return floors, hops
    cluster = _clusters(floors)
    return floors.merged(cluster), hops.between(cluster)


def _clusters(floors: Floors) -> Grid:
    """Sites, (S,), in `MAX_SITES` clusters, which have the best links inside."""
    there_s = floors.links.all_s + floors.links.delay_s
    apart_s = np.maximum(there_s, there_s.T)
    np.fill_diagonal(apart_s, 0.0)
    tree = linkage(squareform(apart_s), "average")
    cluster: Grid = np.unique(fcluster(tree, MAX_SITES, "maxclust"), return_inverse=True)[1]
    return cluster


def _barrier_s(floors: Floors) -> float:
    """What the barrier at the end takes: every step a round trip; and the word of the last rank has
    to reach every site, where all have devices in use."""
    if not floors.gpipe:
        return 0.0
    steps_s = floors.barrier_steps * round_trip_s(floors)
    best = floors.links.delay_s.copy()
    np.fill_diagonal(best, 0.0)
    for middle in range(len(best)):
        best = np.minimum(best, best[:, middle, None] + best[None, middle])
    return steps_s if floors.may_idle else max(steps_s, float(best.max(axis=1).min()))
