"""Time to equal cost in `make bench`."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.placement import SEEDS, first_at_most, problem_of, seconds, to_equal_cost
from netbench.placement.cost_search import search_cost
from netbench.placement.dtfm import dtfm
from netbench.placement.problem import Answer, Budget, Problem, Step
from tests.placement.problems import random_problem


def steps(*values: float) -> Answer:
    """One step a second."""
    grid = np.zeros((1, 1), np.int64)
    taken = tuple(
        Step(elapsed_s=float(i), num_evaluated=i, value=value, grid=grid)
        for i, value in enumerate(values)
    )
    return Answer(grid=grid, stage_layers=(), steps=taken)


def test_the_time_is_that_of_the_first_step_that_costs_as_little() -> None:
    """Equal counts; a search that stays above is an error, not a row."""
    answer = steps(5.0, 3.0, 2.0)
    assert first_at_most(answer, 3.0).elapsed_s == 1
    assert first_at_most(answer, 2.9).elapsed_s == 2
    with pytest.raises(AssertionError, match=r"search_cost ends at 2 s, dtfm at 1.5 s"):
        first_at_most(answer, 1.5)


def test_a_row_tells_both_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same problem: when theirs ended at its cost, and when ours had one as low; with clocks
    of their own, since a busy machine's tell nothing."""
    asked = []

    def theirs(problem: Problem, seed: int, budget: Budget) -> Answer:
        asked.append((problem, seed))
        return steps(9.0, 5.0, 4.0)

    def ours(problem: Problem, seed: int, budget: Budget) -> Answer:
        asked.append((problem, seed))
        return steps(6.0, 3.5, 3.0)

    monkeypatch.setattr("benchmarks.placement.dtfm", theirs)
    monkeypatch.setattr("benchmarks.placement.search_cost", ours)
    problem = random_problem(4, dp=2, pp=2, seed=0)
    assert to_equal_cost("random", problem) == (
        "a placement of DT-FM cost 4 s, random",
        "search_cost, 1 candidates",
        1.0,
        "dtfm, 2 candidates before evolution",
        2.0,
    )
    assert {seed for one, seed in asked if one is problem} == set(SEEDS)
    assert len(asked) == 2 + 2 * len(SEEDS)  # once before, to compile


def test_what_is_quick_is_timed_again_for_the_median() -> None:
    """Up to the candidate that reached the cost, at which a search steps again; what is not quick
    is left as it was."""
    clocks_s = iter([0.5, 0.1, 0.3, 0.9, 0.2])
    asked = []

    def search(problem: Problem, seed: int, budget: Budget) -> Answer:
        asked.append((seed, budget.evaluations))
        first, second = steps(6.0, 5.0).steps
        later = dataclasses.replace(second, elapsed_s=next(clocks_s))
        return dataclasses.replace(steps(6.0, 5.0), steps=(first, later))

    problem = random_problem(4, dp=2, pp=2, seed=0)
    reached = dataclasses.replace(steps(6.0, 5.0).steps[1], elapsed_s=0.01)
    assert seconds(search, problem, 7, reached) == 0.3
    assert asked == [(7, 1)] * 5
    assert seconds(search, problem, 7, dataclasses.replace(reached, elapsed_s=4.0)) == 4.0


def test_both_searches_reach_one_cost() -> None:
    """The real ones, of a small problem."""
    problem = random_problem(16, dp=4, pp=4, seed=0)
    reached_s = dtfm(problem, 0, Budget(evaluations=200)).steps[-1].value
    ours = search_cost(problem, 0, Budget(evaluations=20000))
    first = first_at_most(ours, reached_s)
    assert first.value <= reached_s * (1 + 1e-9)
    assert seconds(search_cost, problem, 0, dataclasses.replace(first, elapsed_s=0.0)) > 0


def test_the_uneven_scenario_is_of_64_devices_in_eight_regions() -> None:
    """Which do not make eight of eight."""
    region = problem_of("uneven-regions").region
    assert sorted(np.bincount(region)) == [5, 6, 6, 7, 7, 9, 11, 13]
