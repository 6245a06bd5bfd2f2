"""Repairs of placements."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.errors import PlanError
from netbench.placement.problem import Floats, Grid, Problem
from netbench.placement.search.repair import MAX_LISTED, find_repair, held_slots
from tests.placement.problems import Unused


class Table(Unused):
    """Seconds that a grid takes, as if at random: different for almost any two."""

    divisible = independent = False

    def __init__(self, seed: int) -> None:
        self._weights = np.random.default_rng(seed).integers(1, 1 << 20, size=(8, 8, 64))

    def times_s(self, grids: Grid) -> Floats:
        lanes, stages = np.indices(grids.shape[1:])
        each = self._weights[lanes, stages, grids]
        seconds: Floats = (each.sum(axis=(1, 2)) % 9973).astype(np.float64)
        return seconds


def problem(dp: int, pp: int, num_devices: int, seed: int = 0, tp: int = 1) -> Problem:
    """Return a problem with equal devices on separate nodes."""
    devices = np.arange(num_devices)
    return Problem(
        pp=pp,
        dp=dp,
        tp=tp,
        delay_s=np.zeros((num_devices, num_devices)),
        bandwidth_bps=np.full((num_devices, num_devices), 1e9),
        node=devices,
        region=np.zeros(num_devices, np.int64),
        kind=np.zeros(num_devices, np.int64),
        nic_bps=np.full(num_devices, math.inf),
        host_bps=np.full(num_devices, math.inf),
        stage_s=np.ones((1, pp)),
        message_bytes=1.0,
        num_micro_batches=1,
        gradient_bytes=np.ones(pp),
        ranks=np.arange(dp * tp * pp).reshape(dp * tp, pp),
        objective=Table(seed),
    )


def grid_of(dp: int, pp: int) -> Grid:
    return np.arange(dp * pp).reshape(dp, pp)


def num_loads(before: Grid, after: Grid, lost: set[int], tp: int = 1) -> int:
    """Count the devices whose slot is new to them, cell by cell."""
    count = 0
    for lane, row in enumerate(after):
        for stage, device in enumerate(row):
            where = np.argwhere(before == device)
            had = len(where) and (where[0][0] % tp, where[0][1]) == (lane % tp, stage)
            count += not had or device in lost
    return count


def best_by_hand(
    task: Problem, before: Grid, lost: set[int], limit: Callable[[int], int]
) -> tuple[float, int]:
    """Try every permutation of every choice of devices; return the fewest loads, and the shortest
    time with up to `limit` loads."""
    usable = [device for device in range(task.num_devices) if device not in lost]
    found = []
    for devices in permutations(usable, task.ranks.size):
        grid = np.array(devices).reshape(task.shape)
        loads = num_loads(before, grid, lost, task.tp)
        found.append((loads, float(task.objective.times_s(grid[None])[0])))
    fewest = min(loads for loads, _ in found)
    return min(time for loads, time in found if loads <= limit(fewest)), fewest


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([(2, 2, 4), (2, 2, 5), (2, 2, 6), (3, 2, 6), (1, 3, 5), (2, 3, 6)]),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(0, 10),
)
def test_small_placements_are_repaired_optimally(
    shape: tuple[int, int, int], moves: int, victim: int, seed: int
) -> None:
    """Against every permutation of the devices: equal time and equal necessary loads."""
    dp, pp, num_devices = shape
    before, lost = grid_of(dp, pp), {victim % (dp * pp)}
    if num_devices == dp * pp:
        dp -= 1
    if dp == 0:
        return
    task = problem(dp, pp, num_devices, seed)
    found = find_repair(task, before, lost=tuple(lost), moves=moves)
    value, fewest = best_by_hand(task, before, lost, lambda fewest: fewest + moves)
    assert found.exact
    assert (found.value, found.num_necessary) == (value, fewest)
    assert found.value == task.objective.times_s(found.grid[None])[0]


def test_tensor_parallel_ranks_hold_different_parts() -> None:
    """The two lanes of a pipeline do not replace each other without loading."""
    before = grid_of(4, 1)
    task = problem(dp=1, pp=1, num_devices=5, tp=2)
    for moves in (0, 1, 2):
        found = find_repair(task, before, lost=(0,), moves=moves)
        value, fewest = best_by_hand(task, before, {0}, lambda fewest, m=moves: fewest + m)  # type: ignore[misc]
        assert (found.value, found.num_necessary) == (value, fewest)
    assert held_slots(before, 2) == {0: (0, 0), 1: (1, 0), 2: (0, 0), 3: (1, 0)}


@settings(deadline=None, max_examples=12)
@given(
    st.tuples(st.integers(3, 5), st.integers(2, 5), st.integers(0, 3)),
    st.lists(st.integers(0, 24), min_size=0, max_size=3, unique=True),
    st.integers(0, 5),
)
def test_never_more_moves_than_allowed_and_never_worse_with_more(
    shape: tuple[int, int, int], victims: list[int], seed: int
) -> None:
    """For placements that are too large to list: loads stay within the limit, every device occurs
    once, none is lost, and times fall with the moves."""
    dp, pp, spare = shape
    before, lost = grid_of(dp, pp), {victim % (dp * pp) for victim in victims}
    left = dp * pp + spare - len(lost)
    task = problem(min(dp, left // pp), pp, dp * pp + spare, seed)
    times = []
    for moves in (0, 1, 2, 4):
        found = find_repair(task, before, lost=tuple(lost), moves=moves, seed=seed, evaluations=40)
        assert len(set(found.grid.ravel().tolist()) - lost) == task.ranks.size
        loads = num_loads(before, found.grid, lost)
        assert loads == len(found.loads) <= found.num_necessary + moves
        assert found.num_necessary == necessary(task, before, lost)
        times.append(found.value)
    assert times == sorted(times, reverse=True)


def necessary(task: Problem, before: Grid, lost: set[int]) -> int:
    """Return the sum over stages of pipelines without a device that holds the stage."""
    living = [sum(device not in lost for device in column) for column in before.T.tolist()]
    return sum(max(0, task.dp - holders) for holders in living)


def test_the_same_seed_gives_the_same_grid_and_the_search_is_bounded() -> None:
    """The evaluations are limited for each number of moves."""
    before, task = grid_of(4, 4), problem(4, 4, 17)
    found = [
        find_repair(task, before, lost=(5,), moves=2, seed=7, evaluations=50) for _ in range(2)
    ]
    assert np.array_equal(found[0].grid, found[1].grid)
    assert not found[0].exact
    assert found[0].num_evaluated <= 1 + 3 * 50
    assert math.factorial(4) ** 4 > MAX_LISTED


def test_a_new_pipeline_loads_all_its_stages_and_no_other_device_does() -> None:
    """Four devices more make one more pipeline of four stages."""
    found = find_repair(problem(3, 4, 12), grid_of(2, 4))
    assert found.num_necessary == 4
    assert sorted(device for device, _ in found.loads) == [8, 9, 10, 11]


def test_a_stage_goes_only_where_it_fits() -> None:
    """One spare device of another kind is too small for the lost stage, so no move is not enough;
    with one move, the stage goes elsewhere."""
    task = problem(2, 2, 5)
    kind = np.array([0, 0, 0, 0, 1])
    task = dataclasses.replace(task, kind=kind, stage_s=np.array([[1.0, 1.0], [math.inf, 1.0]]))
    with pytest.raises(PlanError, match=r"no repair was found .* 4 devices are left for 4 ranks"):
        find_repair(task, grid_of(2, 2), lost=(0,))
    found = find_repair(task, grid_of(2, 2), lost=(0,), moves=1)
    assert 4 in found.grid[:, 1]
    assert len(found.loads) == 2


def test_too_few_devices_are_refused() -> None:
    """The error states how many are left."""
    with pytest.raises(PlanError, match="3 devices are left for 4 ranks"):
        find_repair(problem(2, 2, 4), grid_of(2, 2), lost=(0,))
