"""Distinct grids, counted by closed forms, and the best of them."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from netbench.placement.problem import Problem
from netbench.placement.search.exhaustive import distinct_grids, few_grids
from tests.placement.problems import random_problem
from tests.placement.small import FAR, NEAR, small_problem, small_scenario


def problem_of(sizes: list[list[int]], variant: str, num_ranks: int | None = None) -> Problem:
    links = [[NEAR if a == b else FAR for b in sizes] for a in sizes]
    scenario = small_scenario(sizes, links)
    return small_problem(scenario, variant, layers=12, batch=12, num_ranks=num_ranks)


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
def test_the_number_of_distinct_grids_is_a_multinomial(
    sizes: list[list[int]], variant: str, expected: int
) -> None:
    """Their number is a multinomial of the sites' sizes; equal nodes are interchangeable too."""
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
    """All grids up to the limit, none above it."""
    problem = problem_of(sizes, variant, num_ranks)
    every = list(distinct_grids(problem))
    assert np.array_equal(few_grids(problem, len(every)), every)
    assert few_grids(problem, len(every) - 1) == []
    assert few_grids(problem, 0) == []


def test_there_may_be_more_devices_than_nested_calls() -> None:
    """1,280 equal devices have one grid; in two regions there are too many to count."""
    alike = random_problem(1280, dp=160, pp=8, seed=0)
    alike = dataclasses.replace(alike, region=np.zeros(1280, np.int64))
    (grid,) = few_grids(alike, 2)
    assert sorted(grid.ravel().tolist()) == list(range(1280))
    apart = dataclasses.replace(alike, region=np.repeat([0, 1], 640))
    assert few_grids(apart, 10**9) == []


def test_every_grid_is_like_one_of_the_distinct_ones() -> None:
    """All 720 permutations of six devices have the time of one of the 90 distinct grids."""
    problem = problem_of([[2], [2], [1, 1]], "dtfm-random-p3")
    every = np.array(list(itertools.permutations(range(6)))).reshape(-1, *problem.shape)
    times_s = problem.objective.times_s(every)
    some_s = problem.objective.times_s(np.stack(list(distinct_grids(problem))))
    assert set(np.round(times_s, 9)) == set(np.round(some_s, 9))
    assert some_s.min() == pytest.approx(times_s.min(), rel=1e-12)
    assert len(some_s) == 90
