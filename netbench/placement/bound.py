"""A lower bound on the simulated iteration time of all placements of a problem.

Two things are true of every grid. Its slowest pipeline takes at least what the dearest hop or stage
in it asks for (`elements`); and once that pipeline is done, every group still has to move its
gradients, which takes at least what the sites it reaches across ask for (`groups`). Either could be
cheap alone. But devices are few: who keeps all pipelines inside regions has groups across all of
them. So the bound is the least iteration time for which an integer programme of devices per site,
stage and hop has a solution: for a number of seconds X, no hop may be used whose pipeline takes X,
no group may reach across sites that make it end after X. Where the programme has none, X is proved.

The programme knows nothing of single pipelines: hops of a stage are counted, since pipelines that
go through a site can be swapped there. That, and figures that are each the least of their kind,
makes the bound lower than the optimum, never higher.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from netbench.errors import PlanError
from netbench.placement.floors import Floors
from netbench.placement.group_floors import group_floors
from netbench.placement.pipeline_floors import hop_floors, round_trip_s
from netbench.placement.problem import Budget, Floats, Grid, Problem

SECONDS = 20.0
"""Of search for a proof where the budget does not say."""

MAX_SITES = 12
"""Up to so many, what a group takes is known for every set of sites: 4,096 of them."""

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

    budget: seconds of search, `SECONDS` unless it says; all else in it is ignored. progress: told
    of the least so far. Raises PlanError for a problem whose plan has no stages.
    """
    seconds = SECONDS if budget is None or budget.seconds == math.inf else budget.seconds
    deadline = time.monotonic() + seconds
    searches = []
    for problem in problems:
        if problem.floors is None:
            raise PlanError(_NO_FLOORS)
        searches.append(_Search(problem, problem.floors, deadline))
    while time.monotonic() < deadline:
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
    floors, hops = problem.floors, hop_floors(problem.floors)
    sites = floors.site[grid]
    stage, after = np.arange(max(1, problem.pp - 1)), np.minimum(1, problem.pp - 1)
    ready_s = hops.ready_s[:, stage, sites[:, stage], sites[:, stage + after]].max(axis=(1, 2))
    groups = group_floors(floors, problem.dp)
    done_s = ready_s
    if problem.tp == 1:
        reached = np.bitwise_or.reduce(1 << sites, axis=0)
        of_stage = np.arange(problem.pp), reached
        done_s = np.maximum(
            ready_s + groups.after_s[of_stage], hops.least_s + groups.full_s[of_stage]
        )
    return float(done_s.max() + _barrier_s(floors)) * (1 - _ROUNDING)


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

    def __init__(self, problem: Problem, floors: Floors, deadline: float) -> None:
        self._problem, self._floors, self._deadline = problem, floors, deadline
        self._hops = hop_floors(floors)
        self._sizes: Grid = np.bincount(floors.site)
        lanes, members = problem.dp * problem.tp, problem.dp
        self._paired = floors.num_sites <= MAX_SITES and problem.tp == 1
        self._groups = group_floors(floors if self._paired else _anywhere(floors), members)
        self._programme = _Programme(problem.pp, lanes, self._sizes) if self._paired else None
        self._apart_s = _barrier_s(floors)
        whole_s = self._hops.whole_s[np.isfinite(self._hops.whole_s)]
        steps = np.log(whole_s / whole_s.min()) // PRECISION
        levels = [whole_s[steps == step] for step in np.unique(steps)]
        self._least_s = np.array([level.min() for level in levels])
        self._most_s = np.array([level.max() for level in levels])
        least_s = self._hops.least_s[:, None] + np.maximum(
            self._groups.after_s, self._groups.full_s
        )
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
        pipeline_s = float(self._least_s[least.first])
        seconds = least.seconds * (1 - _ROUNDING)
        return Bound(
            seconds=seconds,
            pipeline_s=pipeline_s,
            group_s=seconds - pipeline_s,
            proof=self._proof(pipeline_s, seconds - pipeline_s),
            stage_layers=self._problem.stage_layers,
            proved=self.over,
        )

    def _proof(self, pipeline_s: float, group_s: float) -> str:
        if self._programme is None:
            return (
                f"no pipeline takes less than {pipeline_s:.3g} s, and no group is done less than "
                f"{group_s:.3g} s later, each alone on the best links"
            )
        devices = f"{self._sizes.sum()} devices at {len(self._sizes)} sites do not go round: "
        return devices + (
            f"where the slowest pipeline takes {pipeline_s:.3g} s, some group's members are so far "
            f"apart that it is done {group_s:.3g} s later, or not all find a place"
        )

    def _proved_s(self, first: int, last: int, known_s: float) -> float:
        """What no grid with its slowest pipeline in these levels goes below."""
        low_s = max(known_s, float(self._least_s[first]) + self._apart_s)
        if self._programme is None or self._possible(first, last, low_s * (1 + PRECISION)):
            return low_s
        if not self._possible(first, last, math.inf):
            return math.inf  # devices do not go round
        high_s = low_s * 2
        while not self._possible(first, last, high_s):
            low_s, high_s = high_s, high_s * 2
        while high_s > low_s * (1 + PRECISION) and time.monotonic() < self._deadline:
            middle_s = math.sqrt(low_s * high_s)
            if self._possible(first, last, middle_s):
                high_s = middle_s
            else:
                low_s = middle_s
        return low_s

    def _possible(self, first: int, last: int, seconds: float) -> bool:
        """Whether no proof is found that no grid takes less than `seconds`."""
        assert self._programme is not None
        hops = self._hops
        dear = hops.whole_s >= self._least_s[first]
        slowest_s = hops.ready_s[:, dear].min(axis=1)[:, None]  # until each stage is ready
        group_s = np.maximum(
            slowest_s + self._groups.after_s, hops.least_s[:, None] + self._groups.full_s
        )
        allowed = group_s + self._apart_s <= seconds
        usable = hops.whole_s <= min(self._most_s[last], seconds - self._apart_s)
        left_s = self._deadline - time.monotonic()
        return left_s <= 0 or self._programme.possible(
            usable, [_largest(s) for s in allowed], left_s
        )


class _Programme:
    """Numbers of devices by stage, site and next site: (pp - 1, S, S), or (1, S, S) of one stage on
    the diagonal. Every stage has its devices inside one of some sets of sites."""

    def __init__(self, depth: int, lanes: int, sizes: Grid) -> None:
        self._depth, self._lanes, self._sizes = depth, lanes, sizes
        num_sites, num_hops = len(sizes), max(1, depth - 1)
        self._shape = (num_hops, num_sites, num_sites)
        hops = np.arange(num_hops * num_sites**2).reshape(self._shape)
        count = hops.size
        at = np.zeros((depth, num_sites, count))  # how many of a stage are at a site
        for stage in range(depth):
            for site in range(num_sites):
                to = hops[stage, site] if stage < num_hops else hops[stage - 1, :, site]
                at[stage, site, to] = 1
        flow = np.zeros((max(0, depth - 2), num_sites, count))
        for stage in range(1, depth - 1):
            for site in range(num_sites):
                flow[stage - 1, site, hops[stage - 1, :, site]] += 1
                flow[stage - 1, site, hops[stage, site]] -= 1
        self._at, self._flow = at, flow.reshape(-1, count)

    def possible(self, usable: NDArray[np.bool_], sets: list[list[int]], seconds: float) -> bool:
        """Whether devices can be so placed; True where the solver does not know in time."""
        if not all(sets):
            return False
        num_sites, count = len(self._sizes), int(np.prod(self._shape))
        choices = [(stage, number) for stage, some in enumerate(sets) for number in some]
        num_choices, full = len(choices), (1 << num_sites) - 1
        inside = np.array(
            [[number >> site & 1 for site in range(num_sites)] for _, number in choices]
        )
        one = np.zeros((self._depth, num_choices))
        one[[stage for stage, _ in choices], np.arange(num_choices)] = 1
        most = np.minimum(self._lanes, self._sizes)
        rows, low, high = [], [], []

        def add(matrix: Floats, least: float, greatest: float | Grid) -> None:
            rows.append(matrix)
            low.append(np.broadcast_to(least, len(matrix)))
            high.append(np.broadcast_to(greatest, len(matrix)))

        def padded(hops: Floats) -> Floats:
            return np.hstack([hops, np.zeros((len(hops), num_choices))])

        add(padded(self._flow), 0, 0)
        add(padded(self._at[0].sum(axis=0)[None]), self._lanes, self._lanes)
        add(padded(self._at.sum(axis=0)), 0, self._sizes)
        add(np.hstack([np.zeros((self._depth, count)), one]), 1, 1)
        for stage, some in enumerate(sets):
            if full in some:
                continue
            chosen = -(inside * one[stage][:, None]).T * most[:, None]
            add(np.hstack([self._at[stage], chosen]), -np.inf, 0)
        upper = np.concatenate([np.where(usable.ravel(), self._lanes, 0), np.ones(num_choices)])
        found = milp(
            np.zeros(count + num_choices),
            integrality=np.ones(count + num_choices),
            bounds=Bounds(0, upper),
            constraints=LinearConstraint(
                coo_array(np.vstack(rows)).tocsr(), np.concatenate(low), np.concatenate(high)
            ),
            options={"time_limit": min(seconds, PATIENCE_S)},
        )
        return bool(found.status != _INFEASIBLE)


def _largest(allowed: NDArray[np.bool_]) -> list[int]:
    """Those of the allowed sets of sites that are in no other; a subset of one is allowed."""
    numbers = np.flatnonzero(allowed)
    largest: list[int] = []
    for number in sorted(numbers.tolist(), key=int.bit_count, reverse=True):
        if number and not any(number & other == number for other in largest):
            largest.append(number)
    return largest


def _anywhere(floors: Floors) -> Floors:
    """As if all devices were at one site with the best links."""
    of_links = ("delay_s", "message_s", "first_s", "all_s", "give_s", "take_s", "byte_s", "slow_s")
    best = {name: getattr(floors, name).min(keepdims=True) for name in of_links}
    return dataclasses.replace(floors, kind=floors.kind[:1], **best)


def _barrier_s(floors: Floors) -> float:
    """What the barrier at the end takes: every step a round trip; and the word of the last rank has
    to reach every site, where all have devices in use."""
    if not floors.gpipe:
        return 0.0
    steps_s = floors.barrier_steps * round_trip_s(floors)
    best = floors.delay_s.copy()
    np.fill_diagonal(best, 0.0)
    for middle in range(len(best)):
        best = np.minimum(best, best[:, middle, None] + best[None, middle])
    return steps_s if floors.may_idle else max(steps_s, float(best.max(axis=1).min()))
