"""Time to equal cost in `make bench`."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.placement import first_at_most, problem_of, to_equal_cost
from netbench.placement.problem import Answer, Budget, Step
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
    """Of the same problem; ours no later, as it is here by far the quicker."""
    monkeypatch.setattr("benchmarks.placement.PUBLISHED", Budget(evaluations=200))
    monkeypatch.setattr("benchmarks.placement.OURS", Budget(evaluations=20000))
    problem = random_problem(16, dp=4, pp=4, seed=0)
    what, _, ours_s, other, theirs_s = to_equal_cost("random", problem)
    assert what.endswith("random")
    assert other is not None
    assert other.startswith("dtfm")
    assert theirs_s is not None
    assert 0 < ours_s < theirs_s


def test_the_uneven_scenario_is_of_64_devices_in_eight_regions() -> None:
    """Which do not make eight of eight."""
    region = problem_of("uneven-regions").region
    assert sorted(np.bincount(region)) == [5, 6, 6, 7, 7, 9, 11, 13]
