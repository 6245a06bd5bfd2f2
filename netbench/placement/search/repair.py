"""Search the best placement after devices were lost or added while few devices load parameters.

A device holds the parameters of a slot: (tensor-parallel index, stage). A device that gets another
slot must load its parameters; one that changes pipelines within its slot need not. Where fewer
devices hold a slot than there are pipelines, some loads are necessary.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np

from netbench.errors import PlanError
from netbench.placement.problem import Grid, Problem
from netbench.units import counted

Slot = tuple[int, int]

MAX_LISTED = 2000
"""Grids within reach up to which all are tried; with more, a local search runs."""

EVALUATIONS = 500
"""Candidates of that search, for each number of moves."""

MAX_DROPPED = 64
"""Choices of pipelines to drop that are tried."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RepairedGrid:
    """The best grid found within reach.

    value: simulated seconds of an iteration. loads: devices and the slots whose parameters they
    load. num_necessary: loads that every grid needs. exact: no grid within reach is better.
    num_evaluated: grids.
    """

    grid: Grid
    value: float
    loads: tuple[tuple[int, Slot], ...]
    num_necessary: int
    exact: bool
    num_evaluated: int


def held_slots(grid: Grid, tp: int, lost: Sequence[int] = ()) -> dict[int, Slot]:
    """Return the slot of each device of a grid, without the lost ones."""
    return {
        int(device): (lane % tp, stage)
        for (lane, stage), device in np.ndenumerate(grid)
        if int(device) not in lost
    }


def find_repair(
    problem: Problem,
    grid: Grid,
    *,
    lost: Sequence[int] = (),
    moves: int = 0,
    seed: int = 0,
    evaluations: int = EVALUATIONS,
) -> RepairedGrid:
    """Return the best grid of `problem` that `grid` can become without the devices in `lost`.

    problem: with the wanted number of pipelines; if `grid` has more, some are dropped. moves:
    devices that may load beyond those that must. evaluations: of the local search, for each number
    of moves from 0 on, so that more moves are never worse.
    Raises PlanError where devices or their memory do not suffice.
    """
    reach = _Reach(problem, grid, lost)
    listed, exact_moves = _listed(reach, moves)
    starts = listed or reach.starts()
    if not starts:
        raise PlanError(
            "no repair was found whose stages fit their devices' memory; "
            f"{counted(len(reach.usable), 'device')} are left for "
            f"{counted(problem.ranks.size, 'rank')}; search a new placement: netbench schedule"
        )
    values = problem.objective.times_s(np.array(starts))
    best, value = starts[int(values.argmin())], float(values.min())
    num_evaluated = len(starts)
    for allowed in range(exact_moves + 1, moves + 1):
        rng = np.random.default_rng((seed, allowed))
        best, value, used = _descend(reach, best, value, allowed, rng, evaluations)
        num_evaluated += used
    return RepairedGrid(
        grid=best,
        value=value,
        loads=tuple(reach.loads(best)),
        num_necessary=reach.num_necessary,
        exact=exact_moves == moves,
        num_evaluated=num_evaluated,
    )


class _Reach:
    """The grids that can be reached from one, and the loads that they need."""

    def __init__(self, problem: Problem, grid: Grid, lost: Sequence[int]) -> None:
        self.problem, self._old, self._lost = problem, grid, set(lost)
        self.held = held_slots(grid, problem.tp, lost)
        self.usable = [d for d in range(problem.num_devices) if d not in self._lost]
        num_held = Counter(self.held.values())
        self.num_necessary = sum(
            max(0, problem.dp - num_held[tensor, stage])
            for tensor in range(problem.tp)
            for stage in range(problem.pp)
        )

    def slot(self, lane: int, stage: int) -> Slot:
        return lane % self.problem.tp, stage

    def fits(self, device: int, stage: int) -> bool:
        """Return whether the stage fits the device's memory."""
        return bool(np.isfinite(self.problem.stage_s[self.problem.kind[device], stage]))

    def loads(self, grid: Grid) -> Iterator[tuple[int, Slot]]:
        """Yield devices of a grid that get a slot which they do not hold."""
        for (lane, stage), device in np.ndenumerate(grid):
            slot = self.slot(lane, stage)
            if self.held.get(int(device)) != slot:
                yield int(device), slot

    def idle(self, grid: Grid) -> list[int]:
        """Return usable devices that are not in a grid."""
        taken = set(grid.ravel().tolist())
        return [device for device in self.usable if device not in taken]

    def starts(self) -> list[Grid]:
        """Return grids without unnecessary loads, one per choice of pipelines to keep."""
        tp, dp = self.problem.tp, self.problem.dp
        old_dp = len(self._old) // tp
        vacant = np.isin(self._old.reshape(old_dp, -1), list(self._lost)).sum(axis=1)
        by_health = np.argsort(vacant, kind="stable").tolist()
        choices = combinations(range(old_dp), min(dp, old_dp))
        kept: set[tuple[int, ...]] = set(islice(choices, MAX_DROPPED))
        kept.add(tuple(sorted(by_health[: min(dp, old_dp)])))
        filled = (self._filled(pipelines) for pipelines in sorted(kept))
        return [grid for grid in filled if grid is not None]

    def all(self, allowed: int) -> Iterator[Grid]:
        """Yield every grid with up to `allowed` loads beyond the necessary ones."""
        dp, tp, pp = self.problem.dp, self.problem.tp, self.problem.pp
        cells = [(lane, stage) for stage in range(pp) for lane in range(dp * tp)]
        grid, free = np.empty((dp * tp, pp), np.int64), set(self.usable)

        def fill(index: int, left: int) -> Iterator[Grid]:
            if left < 0:
                return
            if index == len(cells):
                yield grid.copy()
                return
            unfilled = Counter(self.slot(*cell) for cell in cells[index:])
            unfilled -= Counter(self.held[device] for device in free if device in self.held)
            if unfilled.total() > left:
                return
            lane, stage = cells[index]
            for device in sorted(free):
                if self.fits(device, stage):
                    grid[lane, stage] = device
                    free.remove(device)
                    moved = self.held.get(device) != self.slot(lane, stage)
                    yield from fill(index + 1, left - moved)
                    free.add(device)

        yield from fill(0, self.num_necessary + allowed)

    def _filled(self, kept: Sequence[int]) -> Grid | None:
        """Fill the vacancies of the kept pipelines and any new pipelines; None where a stage fits
        no device. A device that holds the slot comes first, then one that no other cell needs."""
        dp, tp, pp = self.problem.dp, self.problem.tp, self.problem.pp
        grid = np.full((dp * tp, pp), -1, np.int64)
        for row, pipeline in enumerate(kept):
            grid[row * tp : (row + 1) * tp] = self._old[pipeline * tp : (pipeline + 1) * tp]
        grid[np.isin(grid, list(self._lost))] = -1
        vacant = [(int(lane), int(stage)) for lane, stage in np.argwhere(grid < 0)]
        for match in (True, False):
            for lane, stage in list(vacant):
                wanted: Counter[Slot | None] = Counter(self.slot(*cell) for cell in vacant)
                slot = self.slot(lane, stage)
                for device in sorted(self.idle(grid), key=lambda d: (wanted[self.held.get(d)], d)):
                    holds = self.held.get(device) == slot
                    if (holds or not match) and self.fits(device, stage):
                        grid[lane, stage] = device
                        vacant.remove((lane, stage))
                        break
        return None if vacant else grid


def _listed(reach: _Reach, moves: int) -> tuple[list[Grid], int]:
    """Return all grids within the largest number of moves, up to `moves`, whose grids can be
    listed, and that number; an empty list and -1 if even 0 moves allow too many.

    With each grid, all exchanges of devices between its pipelines, slot by slot, are in reach.
    """
    listed: list[Grid] = []
    dp, num_slots = reach.problem.dp, reach.problem.tp * reach.problem.pp
    if math.factorial(dp) ** num_slots > MAX_LISTED:
        return listed, -1
    for allowed in range(moves + 1):
        grids = list(islice(reach.all(allowed), MAX_LISTED + 1))
        if len(grids) > MAX_LISTED:
            return listed, allowed - 1
        listed = grids
    return listed, moves


def _descend(
    reach: _Reach, grid: Grid, value: float, allowed: int, rng: np.random.Generator, count: int
) -> tuple[Grid, float, int]:
    """Exchange two devices, or a device and an idle one, as long as that helps.

    Return the grid, its value and the number of grids tried.
    """
    limit, used, since = reach.num_necessary + allowed, 0, 0
    neighbours = _neighbours(reach, grid)
    order = iter(rng.permutation(len(neighbours)))
    while used < count and since < len(neighbours):
        index = next(order, None)
        if index is None:
            order = iter(rng.permutation(len(neighbours)))
            continue
        since += 1
        changed = _exchanged(reach, grid, *neighbours[index])
        if changed is None or sum(1 for _ in reach.loads(changed)) > limit:
            continue
        used += 1
        seconds = float(reach.problem.objective.times_s(changed[None])[0])
        if seconds < value:
            grid, value, since = changed, seconds, 0
            neighbours = _neighbours(reach, grid)
            order = iter(rng.permutation(len(neighbours)))
    return grid, value, used


def _neighbours(reach: _Reach, grid: Grid) -> list[tuple[int, int]]:
    """Return pairs of cells, numbered along the rows, or of a cell and -1 - an idle device."""
    cells = list(combinations(range(grid.size), 2))
    return cells + [(cell, -1 - d) for cell in range(grid.size) for d in reach.idle(grid)]


def _exchanged(reach: _Reach, grid: Grid, one: int, other: int) -> Grid | None:
    """Return the grid after an exchange; None where a stage does not fit its new device."""
    exchanged, pp = grid.copy(), grid.shape[1]
    flat = exchanged.ravel()
    if other < 0:
        flat[one] = -1 - other
    else:
        flat[[one, other]] = flat[[other, one]]
    changed = [one] if other < 0 else [one, other]
    return exchanged if all(reach.fits(int(flat[cell]), cell % pp) for cell in changed) else None
