"""Bounds against what the simulator makes of placements, random ones and all there are."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.errors import PlanError
from netbench.placement.bound import Bound, floor_s, lower_bound, lower_bounds
from netbench.placement.exhaustive import optimum
from netbench.placement.problem import Budget, Problem
from netbench.scenario import load_scenario
from netbench.scenario.model import Link
from netbench.simulator.scheduling import Request
from tests.placement.small import FAR, NEAR, problems, small_problem, small_scenario


@settings(max_examples=40, deadline=None)
@given(problem=problems(), seed=st.integers(0, 999))
def test_no_placement_is_faster_than_its_floor_or_the_bound(problem: Problem, seed: int) -> None:
    """Of every schedule, kind of data parallelism and of sharing; some devices may be idle."""
    random = np.random.default_rng(seed)
    devices = [random.permutation(problem.num_devices) for _ in range(3)]
    grids = np.stack([some[: math.prod(problem.shape)].reshape(problem.shape) for some in devices])
    times_s = problem.objective.times_s(grids)
    floors_s = [floor_s(problem, grid) for grid in grids]
    assert (floors_s <= times_s).all()
    assert 0 < lower_bound(problem, Budget(seconds=1.0)).seconds <= times_s.min()


@pytest.mark.parametrize("variant", ["dtfm-random-p4", "dtfm-random-p4-allreduce", "megatron-p4"])
@pytest.mark.parametrize("sizes", [(4, 4), (5, 3), (6, 2)])
def test_the_optimum_of_few_devices_is_above_the_bound(
    variant: str, sizes: tuple[int, ...]
) -> None:
    """Of all placements. Where pipelines fit regions it is not far below: a sixth at most."""
    scenario = small_scenario([[1] * size for size in sizes], ((NEAR, FAR), (FAR, NEAR)), "class")
    problem = small_problem(scenario, variant, layers=8, batch=2 * 64)
    best, bound = optimum(problem), lower_bound(problem)
    assert bound.proved
    assert bound.seconds <= best.seconds
    assert floor_s(problem, best.grid) >= bound.seconds
    if sizes == (4, 4):
        assert bound.gap(best.seconds) < 1 / 6


def test_pipelines_and_groups_cannot_both_stay_inside_regions() -> None:
    """Two regions of four: either is possible alone, at what one region of eight takes. The bound
    knows that both are not: beside that it asks for a stage's gradients on the way across."""
    links, variant, batch = ((NEAR, FAR), (FAR, NEAR)), "dtfm-random-p4", 2 * 64
    one = small_problem(small_scenario([[1] * 8], ((NEAR,),)), variant, layers=8, batch=batch)
    two = small_problem(small_scenario([[1] * 4] * 2, links), variant, layers=8, batch=batch)
    alone_s = one.objective.times_s(np.arange(8).reshape(1, 2, 4))[0]
    assert lower_bound(one).seconds <= alone_s
    gradients_s = 8 * two.gradient_bytes.min() / FAR.bandwidth_bps
    assert lower_bound(two).seconds > alone_s + gradients_s


def test_two_universities_are_nearly_solved() -> None:
    """Case 3 with a pipeline in every eight devices of a region takes at most 3% more than what is
    proved of all placements."""
    scenario = load_scenario("case3")
    problem = Request(scenario=scenario, variant="dtfm-scheduled", layers=24, batch=1024).problem()
    bound = lower_bound(problem)
    regional_s = float(problem.objective.times_s(np.arange(64).reshape(1, 8, 8))[0])
    assert bound.seconds <= regional_s
    assert bound.gap(regional_s) < 0.03


def _bound_of(seconds: float) -> Bound:
    scenario = small_scenario([[1] * 7, [1] * 5], ((NEAR, FAR), (FAR, NEAR)))
    problem = small_problem(scenario, "dtfm-random-p4", layers=8, batch=3 * 64)
    return lower_bound(problem, Budget(seconds=seconds))


def test_a_search_that_is_cut_short_has_a_bound_too() -> None:
    """A lower one, and it says so."""
    short, long = _bound_of(0.0), _bound_of(60.0)
    assert not short.proved
    assert long.proved
    assert 0 < short.seconds <= long.seconds
    assert "12 devices at 2 sites do not go round" in long.proof


def test_several_have_the_least_of_their_bounds_proved() -> None:
    """As each alone has it, whatever the order; of the other as much as was needed. What is told on
    the way never falls."""
    scenario = small_scenario([[1] * 8], ((NEAR,),))
    even = small_problem(scenario, "megatron-p4", layers=16, batch=2 * 64)
    assert even.with_layers is not None
    both, told = [even.with_layers((10, 2, 2, 2)), even], list[float]()
    dear, cheap = lower_bounds(both, progress=told.append)
    assert cheap.proved
    assert cheap.seconds == lower_bound(even).seconds == pytest.approx(told[-1], rel=1e-5)
    assert cheap.seconds < dear.seconds <= lower_bound(both[0]).seconds
    assert told == sorted(told)


def test_the_bound_is_of_the_layers_that_are_given() -> None:
    """Other layers of stages have another one: as many on one stage take longer."""
    scenario = small_scenario([[1] * 8], ((NEAR,),))
    problem = small_problem(scenario, "megatron-p4", layers=16, batch=2 * 64)
    assert problem.with_layers is not None
    even, other = lower_bound(problem), problem.with_layers((10, 2, 2, 2))
    uneven = lower_bound(other)
    assert (even.stage_layers, uneven.stage_layers) == ((4, 4, 4, 4), (10, 2, 2, 2))
    assert uneven.pipeline_s > 64 * other.stage_s.max() > even.pipeline_s


def test_a_plan_without_stages_has_no_bound() -> None:
    """It is refused by name of what has one."""
    problem = small_problem(small_scenario([[1] * 8], ((NEAR,),)), "megatron-p4", layers=8, batch=8)
    with pytest.raises(PlanError, match="expected a variant of megatron or dtfm"):
        lower_bound(dataclasses.replace(problem, floors=None))


def test_a_slow_pipeline_whose_gradients_come_from_beside_it_waits_for_them_only() -> None:
    """Its first member is ready last, on a slow link; those of the other region have sent before,
    and the last hop of the chain is inside its own region. The floor is below what that takes."""
    slow = Link(one_way_delay_s=0.00005, bandwidth_bps=1e8)
    fast = Link(one_way_delay_s=0.00005, bandwidth_bps=math.inf)
    scenario = small_scenario([[1] * 5, [1] * 3], ((fast, slow), (slow, fast)))
    problem = small_problem(scenario, "dtfm-random-p2", layers=4, batch=4 * 16)
    grid = np.array([[3, 5], [7, 6], [2, 0], [4, 1]])
    seconds = problem.objective.times_s(grid[None])[0]
    assert 0.8 * seconds < floor_s(problem, grid) <= seconds
