"""All grids that differ, counted by closed forms, and the best of them."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from netbench.errors import PlanError
from netbench.placement.exhaustive import distinct_grids, few_grids, optimum
from netbench.placement.problem import Floats, Grid, Problem
from tests.placement.problems import random_problem
from tests.placement.small import FAR, NEAR, small_problem, small_scenario


def problem_of(sizes: list[list[int]], variant: str, num_ranks: int | None = None) -> Problem:
    links = [[NEAR if a == b else FAR for b in sizes] for a in sizes]
    scenario = small_scenario(sizes, links)
    return small_problem(scenario, variant, layers=12, batch=12, num_ranks=num_ranks)


class Cheapest:
    """An objective with an optimum that is known: devices are to be in order."""

    divisible = independent = False

    def times_s(self, grids: Grid) -> Floats:
        flat = grids.reshape(len(grids), -1)
        return np.abs(flat - np.arange(flat.shape[1])).sum(axis=1) + 1.0


@pytest.mark.parametrize(
    ("sizes", "variant", "expected"),
    [
        ([[1] * 4], "dtfm-random-p2", 1),
        ([[1] * 6, [1] * 6], "dtfm-random-p4", math.comb(12, 6)),
        ([[1] * 4, [1] * 2, [1] * 2], "dtfm-random-p4", math.factorial(8) // (24 * 2 * 2)),
        ([[2, 2]], "dtfm-random-p2", 3),  # whose neighbour on its node the first cell has
        ([[4], [1] * 4], "dtfm-random-p4", math.comb(8, 4)),
    ],
)
def test_grids_are_as_many_as_devices_can_be_told_apart(
    sizes: list[list[int]], variant: str, expected: int
) -> None:
    """Multinomials of the sites' sizes; nodes that are alike are not told apart either."""
    grids = list(distinct_grids(problem_of(sizes, variant)))
    assert len(grids) == expected
    for grid in grids:
        assert len(set(grid.ravel().tolist())) == grid.size


def test_some_stay_idle_where_there_are_more_devices_than_cells() -> None:
    """4 of 6 in regions of 4 and 2: 4 and 0, 3 and 1, or 2 and 2 of each."""
    problem = problem_of([[1] * 4, [1] * 2], "dtfm-random-p2", num_ranks=4)
    grids = list(distinct_grids(problem))
    assert len(grids) == math.comb(4, 4) + math.comb(4, 3) + math.comb(4, 2)


@pytest.mark.parametrize(
    ("sizes", "variant", "num_ranks"),
    [
        ([[1] * 6, [1] * 6], "dtfm-random-p4", None),
        ([[1] * 2, [1] * 6], "dtfm-random-p2", 4),  # the first four are most of what there is
        ([[2, 1, 1], [2, 2]], "dtfm-random-p4", None),
    ],
)
def test_few_grids_are_all_or_none(
    sizes: list[list[int]], variant: str, num_ranks: int | None
) -> None:
    """All of them where there may be as many, none where there may be one less."""
    problem = problem_of(sizes, variant, num_ranks)
    every = list(distinct_grids(problem))
    assert np.array_equal(few_grids(problem, len(every)), every)
    assert few_grids(problem, len(every) - 1) == []
    assert few_grids(problem, 0) == []


def test_there_may_be_more_devices_than_nested_calls() -> None:
    """1,280 that are alike have one grid; in two regions, too many to count one by one."""
    alike = random_problem(1280, dp=160, pp=8, seed=0)
    alike = dataclasses.replace(alike, region=np.zeros(1280, np.int64))
    (grid,) = few_grids(alike, 2)
    assert sorted(grid.ravel().tolist()) == list(range(1280))
    apart = dataclasses.replace(alike, region=np.repeat([0, 1], 640))
    assert few_grids(apart, 10**9) == []


def test_every_grid_is_like_one_of_the_distinct_ones() -> None:
    """All 720 permutations of six devices have the time of one of the 90 that are simulated, and
    their least is the optimum."""
    problem = problem_of([[2], [2], [1, 1]], "dtfm-random-p3")
    every = np.array(list(itertools.permutations(range(6)))).reshape(-1, *problem.shape)
    times_s = problem.objective.times_s(every)
    found = optimum(problem)
    some_s = problem.objective.times_s(np.stack(list(distinct_grids(problem))))
    assert set(np.round(times_s, 9)) == set(np.round(some_s, 9))
    assert found.seconds == pytest.approx(times_s.min(), rel=1e-12)
    assert problem.objective.times_s(found.grid[None])[0] == found.seconds
    assert found.num_grids == len(some_s) == 90


def test_the_best_is_found_among_all() -> None:
    """With eight kinds of devices only one grid costs nothing."""
    problem = problem_of([[1] * 8], "dtfm-random-p4")
    problem = dataclasses.replace(
        problem, kind=np.arange(8), stage_s=np.ones((8, 4)), objective=Cheapest()
    )
    found = optimum(problem)
    assert found.seconds == 1.0
    assert found.num_grids == math.factorial(8)
    np.testing.assert_array_equal(found.grid, np.arange(8).reshape(problem.shape))


def test_what_does_not_fit_is_not_the_best() -> None:
    """Device 0 holds no first stage, where it would cost nothing: the best of the others; and none
    where no device holds the last stage."""
    problem = problem_of([[1] * 4], "dtfm-random-p2")
    stage_s = np.array([[math.inf, 1.0], [1.0, 1.0]])
    problem = dataclasses.replace(
        problem, kind=np.array([0, 1, 1, 1]), stage_s=stage_s, objective=Cheapest()
    )
    found = optimum(problem)
    assert (found.seconds, found.grid.tolist()) == (3.0, [[1, 0], [2, 3]])
    assert found.num_grids == 2  # of 4, half have device 0 in a first stage
    stage_s = np.array([[1.0, math.inf], [1.0, math.inf]])
    with pytest.raises(PlanError, match="none of the 4 placements that differ fits"):
        optimum(dataclasses.replace(problem, stage_s=stage_s))


def test_too_many_grids_are_refused() -> None:
    """Before any is simulated, with what there are."""
    problem = problem_of([[1] * 6, [1] * 6], "dtfm-random-p4")
    with pytest.raises(PlanError, match="12 of 12 devices can be placed in more than 923 ways"):
        optimum(problem, max_grids=923)
    problem = dataclasses.replace(problem, dp=4)
    with pytest.raises(PlanError, match="need 16, but there are 12; choose fewer"):
        optimum(problem)
