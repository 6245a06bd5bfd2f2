"""Our search of DT-FM's cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.placement.cost_search import FIRST_MOVES, GROWTH, search_cost
from netbench.placement.dtfm import dtfm
from netbench.placement.dtfm_cost import cost_s, grid_cost_s
from netbench.placement.problem import Budget, Problem
from netbench.placement.units import units_of
from tests.placement.problems import BEST_S, problem_of, published_problem, random_problem


def partitions(devices: tuple[int, ...], dp: int, pp: int) -> Iterator[list[tuple[int, ...]]]:
    """All choices of pp groups of dp of `devices`."""
    if pp == 0:
        yield []
        return
    for first, *rest in itertools.combinations(devices, dp):
        group = (first, *rest)
        later = tuple(d for d in devices if d > first and d not in group)
        for others in partitions(later, dp, pp - 1):
            yield [group, *others]


def least_cost_s(problem: Problem) -> float:
    """Of all partitions, by the cost as `dtfm` has it."""
    links = units_of(problem).links
    every = partitions(tuple(range(problem.num_devices)), problem.dp, problem.pp)
    return min(cost_s(links, np.array(groups)) for groups in every)


def geographic_problem(num_devices: int, dp: int, pp: int, seed: int) -> Problem:
    """Devices in three regions, as many as chance has it, so that many are interchangeable."""
    rng = np.random.default_rng(seed)
    region = rng.integers(0, 3, num_devices)
    delay_s, bandwidth_bps = rng.uniform(0.01, 0.1, (3, 3)), rng.uniform(0.1e9, 1e9, (3, 3))
    np.fill_diagonal(bandwidth_bps, 5e9)
    pairs = np.ix_(region, region)
    return problem_of(delay_s[pairs], bandwidth_bps[pairs], dp, pp)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(2, 3, 6), (3, 2, 6), (2, 4, 8), (4, 2, 8), (2, 3, 7), (1, 4, 5), (3, 1, 4)]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_it_finds_the_least_cost_of_all_partitions(
    sizes: tuple[int, int, int], merged: bool, seed: int
) -> None:
    """Where all can be tried, devices left over among them."""
    dp, pp, num_devices = sizes
    make = geographic_problem if merged else random_problem
    problem = make(num_devices, dp, pp, seed)
    answer = search_cost(problem, seed, Budget(evaluations=20000))
    assert answer.steps[-1].value == pytest.approx(least_cost_s(problem))
    cost = grid_cost_s(units_of(problem).links, answer.grid)
    assert cost == pytest.approx(answer.steps[-1].value)


@pytest.mark.parametrize(("dp", "pp"), [(4, 3), (3, 4)])
def test_it_finds_the_least_cost_of_twelve_devices(dp: int, pp: int) -> None:
    """Of 5775 and of 15400 partitions."""
    problem = random_problem(12, dp=dp, pp=pp, seed=dp)
    answer = search_cost(problem, 0, Budget(evaluations=200000))
    assert answer.steps[-1].value == pytest.approx(least_cost_s(problem))


@pytest.mark.parametrize("case", sorted(BEST_S))
def test_it_is_at_most_what_the_published_search_reaches(case: str) -> None:
    """At once in every case, and in case 2 far below: all nodes of four lined up leave three hops
    of seven inside nodes."""
    problem = published_problem(case)
    answer = search_cost(problem, 0, Budget(evaluations=4))
    reached_s = grid_cost_s(units_of(problem).links, answer.grid)
    assert reached_s == pytest.approx(answer.steps[-1].value)
    assert reached_s <= (BEST_S[case] if case != "case2" else 32) + 0.005


def test_more_time_finds_less_on_links_without_order() -> None:
    """Annealing does what neither layouts nor the published search do; steps only fall, each with
    its own grid."""
    problem = random_problem(40, dp=5, pp=8, seed=5)
    answer = search_cost(problem, 0, Budget(evaluations=50000))
    values_s = [step.value for step in answer.steps]
    assert values_s == sorted(set(values_s), reverse=True)
    published_s = dtfm(problem, 0, Budget(evaluations=500)).steps[-1].value
    assert values_s[-1] < 0.95 * min(values_s[0], published_s)
    links = units_of(problem).links
    assert [grid_cost_s(links, step.grid) for step in answer.steps] == pytest.approx(values_s)
    assert answer.num_evaluated == 50000


def test_a_step_is_told_before_its_annealing_ends() -> None:
    """Those after the four layouts; an annealing counts its start and its moves."""
    problem = random_problem(40, dp=5, pp=8, seed=5)
    moves = [1 + int(FIRST_MOVES * GROWTH**index) for index in range(10)]
    ends = 4 + np.cumsum(moves)
    told = {step.num_evaluated for step in search_cost(problem, 0, Budget(evaluations=50000)).steps}
    assert max(told) > 4
    assert told - {1, 2, 3, 4, 50000, *ends.tolist()}


def test_a_seed_decides_the_search() -> None:
    """Evaluations and values, twice the same; the budget only cuts them short, and the best of an
    annealing that is cut may be no end of one."""
    problem = random_problem(24, dp=4, pp=6, seed=6)

    def values(seed: int, evaluations: int) -> list[tuple[int, float]]:
        answer = search_cost(problem, seed, Budget(evaluations=evaluations))
        return [(step.num_evaluated, step.value) for step in answer.steps]

    long = values(1, 30000)
    assert long == values(1, 30000)
    short = [step for step in values(1, 5000) if step[0] < 5000]
    assert short == [step for step in long if step[0] < 5000]
    assert values(2, 30000) != long
