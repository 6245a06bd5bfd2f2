"""DT-FM's scheduler."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.placement.dtfm.cost import grid_cost_s
from netbench.placement.dtfm.scheduler import dtfm, exchange
from netbench.placement.dtfm.units import units_of
from netbench.placement.problem import Budget, Improvement
from tests.placement.problems import BEST_S, problem_of, published_problem, random_problem

FEW = Budget(evaluations=250)


@pytest.mark.parametrize("case", sorted(BEST_S))
def test_it_reaches_what_the_published_search_reaches(case: str) -> None:
    """Equal to the last digit, with 5% of its candidates. In case 2 every placement has that cost
    unless it lines up all nodes of four."""
    problem = published_problem(case)
    answer = dtfm(problem, 0, FEW)
    assert answer.improvements[-1].value == pytest.approx(BEST_S[case], abs=0.005)
    cost_s = grid_cost_s(units_of(problem).links, answer.grid)
    assert cost_s == pytest.approx(answer.improvements[-1].value)
    assert sorted(answer.grid.ravel()) == list(range(64))


def test_a_seed_decides_the_search_and_another_seed_another() -> None:
    """The same seed gives the same improvements; the budget only truncates them."""
    problem = random_problem(24, dp=4, pp=6, seed=1)

    def values(seed: int, evaluations: int) -> list[tuple[int, float]]:
        answer = dtfm(problem, seed, Budget(evaluations=evaluations))
        return [(step.num_evaluated, step.value) for step in answer.improvements]

    long = values(3, 200)
    assert long == values(3, 200)
    assert values(3, 120) == [step for step in long if step[0] <= 120]
    assert values(4, 200) != long


def test_every_improvement_is_reported_and_better_than_the_last() -> None:
    """Each has the grid of its cost; the answer is the last."""
    problem = random_problem(24, dp=4, pp=6, seed=2)
    told: list[Improvement] = []
    answer = dtfm(problem, 0, dataclasses.replace(FEW, progress=told.append))
    assert tuple(told) == answer.improvements
    assert len(told) > 1
    costs_s = [step.value for step in told]
    assert costs_s == sorted(set(costs_s), reverse=True)
    links = units_of(problem).links
    assert [grid_cost_s(links, step.grid) for step in told] == pytest.approx(costs_s)
    assert np.array_equal(told[-1].grid, answer.grid)
    assert answer.num_evaluated == 250


def test_offspring_find_what_random_partitions_do_not() -> None:
    """On unordered links, evolution improves on the initial population."""
    problem = random_problem(24, dp=4, pp=6, seed=3)
    first, evolved = (
        dtfm(problem, 0, Budget(evaluations=n)).improvements[-1].value for n in (100, 1500)
    )
    assert evolved < first


def test_no_time_gives_the_first_candidate() -> None:
    """A search without time still answers."""
    answer = dtfm(random_problem(6, dp=2, pp=3, seed=0), 0, Budget(seconds=0.0))
    assert answer.num_evaluated == 1
    assert sorted(answer.grid.ravel()) == list(range(6))


@pytest.mark.parametrize(("dp", "pp"), [(1, 6), (6, 1)])
def test_one_pipeline_and_one_stage_are_placed(dp: int, pp: int) -> None:
    """Neither needs a matching or a path."""
    answer = dtfm(random_problem(6, dp=dp, pp=pp, seed=0), 0, Budget(evaluations=120))
    assert answer.grid.shape == (dp, pp)
    assert sorted(answer.grid.ravel()) == list(range(6))


def test_far_devices_stay_idle_where_there_are_more_than_needed() -> None:
    """Two of eight devices are behind a slow link."""
    far = np.isin(np.arange(8), [2, 5])
    slow = far[:, None] | far
    problem = problem_of(np.full((8, 8), 0.01), np.where(slow, 1e8, 1e9), dp=2, pp=3)
    answer = dtfm(problem, 0, Budget(evaluations=20))
    assert sorted(answer.grid.ravel()) == [0, 1, 3, 4, 6, 7]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
def test_local_search_keeps_sizes_and_never_joins_faster_links(
    num_groups: int, size: int, seed: int
) -> None:
    """It lowers the sum of speeds inside groups, recomputed here from scratch."""
    rng = np.random.default_rng(seed)
    speeds = rng.uniform(size=(num_groups * size,) * 2)
    speeds += speeds.T
    np.fill_diagonal(speeds, 0.0)
    before = rng.permutation(np.repeat(np.arange(num_groups), size))
    kept = before.copy()
    after = exchange(speeds, before, num_groups, rng)
    assert np.array_equal(before, kept)
    assert np.bincount(after, minlength=num_groups).tolist() == [size] * num_groups
    inside_after, inside_before = (speeds[p[:, None] == p].sum() for p in (after, before))
    assert inside_after <= inside_before + 1e-9
