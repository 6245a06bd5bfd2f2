"""The registry of schedulers, their budgets and interruptions."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from netbench.errors import PlanError
from netbench.placement.problem import Budget, Improvement, Problem
from netbench.placement.schedulers import SCHEDULERS
from netbench.plan.maps import MAPS
from tests.placement.small import NEAR, small_problem, small_scenario


def eight(num_small: int) -> Problem:
    """Return a problem of two pipelines of four stages; the first `num_small` devices hold only a
    last stage."""
    problem = small_problem(
        small_scenario([[1] * 8], ((NEAR,),)), "dtfm-random-p4", layers=8, batch=8
    )
    return dataclasses.replace(
        problem,
        kind=np.repeat([1, 0], [num_small, 8 - num_small]),
        stage_s=np.array([[1.0] * 4, [math.inf] * 3 + [1.0]]),
        with_layers=None,
    )


@pytest.mark.parametrize("name", sorted(MAPS))
def test_a_map_is_a_scheduler_where_its_stages_fit(name: str) -> None:
    """It returns its placement for any budget."""
    problem = eight(0)
    answer = SCHEDULERS[name](problem, 3, Budget())
    assert np.array_equal(
        answer.grid, np.asarray(MAPS[name](problem.node.tolist(), 3))[problem.ranks]
    )


@pytest.mark.parametrize(("name", "seed"), [("identity", 0), ("random", 3), ("random", 4)])
def test_a_map_whose_stages_do_not_fit_is_no_answer(name: str, seed: int) -> None:
    """Rank 0, a first stage, is on device 0, which is too small. A scheduler that respects memory
    gives that device a last stage."""
    problem = eight(1)
    with pytest.raises(PlanError, match=f"{name} ignores memory: 1 of 8 devices cannot hold the"):
        SCHEDULERS[name](problem, seed, Budget())
    grid = SCHEDULERS["netbench"](problem, seed, Budget(evaluations=50)).grid
    assert 0 in grid[:, 3]


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_a_search_that_is_interrupted_answers_with_what_it_has(name: str) -> None:
    """Schedulers check for an interruption between candidates; the answer is the last
    improvement."""
    problem = small_problem(small_scenario([[1] * 8], ((NEAR,),)), "megatron-p4", layers=8, batch=8)
    steps: list[Improvement] = []
    budget = Budget(evaluations=3000, progress=steps.append, interrupted=lambda: True)
    answer = SCHEDULERS[name](problem, 3, budget)
    assert answer.num_evaluated <= 8
    if name not in MAPS:
        assert np.array_equal(answer.grid, steps[-1].grid)


@pytest.mark.parametrize(
    ("elapsed_s", "num_evaluated", "interrupted", "over"),
    [(9.9, 4, False, False), (10.0, 4, False, True), (9.9, 5, False, True), (0.0, 0, True, True)],
)
def test_a_budget_ends_by_time_candidates_or_interruption(
    elapsed_s: float, num_evaluated: int, interrupted: bool, over: bool
) -> None:
    """Whichever comes first."""
    budget = Budget(seconds=10.0, evaluations=5, interrupted=lambda: interrupted)
    assert budget.over(elapsed_s, num_evaluated) is over
