"""The best of many random placements."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from netbench.errors import PlanError
from netbench.placement.problem import Budget, Grid, Improvement
from netbench.placement.search.sampled import AT_ONCE, NUM_SAMPLES, sampled
from tests import four_nodes


def test_the_best_that_was_drawn_is_the_answer(tmp_path: Path) -> None:
    """The budget limits the candidates; improvements descend to the answer, and each is
    reported."""
    problem = four_nodes.request(four_nodes.write(tmp_path)).problem()
    told: list[Improvement] = []
    answer = sampled(problem, 5, Budget(evaluations=100, progress=told.append))
    values = [step.value for step in answer.improvements]
    assert answer.num_evaluated == 100
    assert values == sorted(values, reverse=True)
    assert tuple(told) == answer.improvements
    assert answer.improvements[-1].grid is answer.grid
    assert values[-1] == pytest.approx(four_nodes.best_placement_s(four_nodes.write(tmp_path)))


def test_it_ends_by_itself(tmp_path: Path) -> None:
    """It ends after a thousand placements, or when its time is over; one round is always drawn."""
    problem = four_nodes.request(four_nodes.write(tmp_path)).problem()
    assert sampled(problem, 5, Budget()).num_evaluated == NUM_SAMPLES == 1000
    assert sampled(problem, 5, Budget(seconds=0.0)).num_evaluated == AT_ONCE


def test_a_seed_decides_what_is_drawn(tmp_path: Path) -> None:
    """A shorter search is a prefix of a longer one; another seed draws other placements."""
    problem = four_nodes.request(four_nodes.write(tmp_path)).problem()
    one, many = (sampled(problem, 1, Budget(evaluations=n)) for n in (1, 64))
    assert np.array_equal(one.grid, many.improvements[0].grid)
    assert many.improvements[-1].value < one.improvements[-1].value
    grids: set[bytes] = {
        sampled(problem, seed, Budget(evaluations=1)).grid.tobytes() for seed in range(20)
    }
    assert len(grids) > 5


def test_what_does_not_fit_is_no_candidate(tmp_path: Path) -> None:
    """Stage 1 fits only the two devices of kind 1; without them nothing fits."""
    problem = four_nodes.request(four_nodes.write(tmp_path)).problem()
    stage_s = np.array([[1.0, math.inf], [1.0, 1.0]])
    some = dataclasses.replace(problem, kind=np.array([0, 1, 0, 1]), stage_s=stage_s)
    grid: Grid = sampled(some, 5, Budget(evaluations=100)).grid
    assert sorted(grid[:, 1].tolist()) == [1, 3]
    none = dataclasses.replace(problem, stage_s=np.array([[1.0, math.inf]]))
    with pytest.raises(PlanError, match="none of 100 random placements fits"):
        sampled(none, 5, Budget(evaluations=100))
