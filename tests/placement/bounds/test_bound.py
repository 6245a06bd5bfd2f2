"""Bounds against simulated placements: random ones, and all placements of small problems."""

from __future__ import annotations

import dataclasses
import math
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.errors import PlanError
from netbench.placement.bounds import programme
from netbench.placement.bounds.bound import MAX_SITES, Bound, floor_s, lower_bounds
from netbench.placement.plan_problem import Request
from netbench.placement.problem import Budget, Problem
from netbench.scenario import load_scenario
from netbench.scenario.model import Link, Setting
from tests.placement.small import (
    FAR,
    NEAR,
    optimum,
    pipelines_apart,
    problems,
    small_problem,
    small_scenario,
)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the solver decide on a busy machine too: it needs well under a second."""
    monkeypatch.setattr(programme, "PATIENCE_S", 120.0)


def lower_bound(problem: Problem, budget: Budget | None = None) -> Bound:
    """Return the bound of one problem alone."""
    return lower_bounds([problem], budget)[0]


@settings(max_examples=40, deadline=None)
@given(problem=problems(), seed=st.integers(0, 999))
def test_no_placement_is_faster_than_its_floor_or_the_bound(problem: Problem, seed: int) -> None:
    """Holds for every schedule, kind of data parallelism and sharing, with some devices idle. Two
    placements are random; in two more, nodes hold stretches of pipelines and of groups."""
    random = np.random.default_rng(seed)
    size, devices = math.prod(problem.shape), np.arange(problem.num_devices)
    orders = [random.permutation(devices)[:size] for _ in range(2)]
    grids = np.stack(
        [
            *(order.reshape(problem.shape) for order in (*orders, devices[:size])),
            devices[:size].reshape(problem.shape[::-1]).T,
        ]
    )
    times_s = problem.objective.times_s(grids)
    floors_s = [floor_s(problem, grid) for grid in grids]
    assert (floors_s <= times_s).all()
    assert 0 < lower_bound(problem, Budget(seconds=1.0)).seconds <= times_s.min()


@pytest.mark.parametrize("variant", ["dtfm-random-p4", "dtfm-random-p4-allreduce", "megatron-p4"])
@pytest.mark.parametrize("sizes", [(4, 4), (5, 3), (6, 2)])
def test_the_optimum_of_few_devices_is_above_the_bound(
    variant: str, sizes: tuple[int, ...]
) -> None:
    """The optimum over all placements is above the bound; by a sixth at most if pipelines fit
    regions and replicas do not sum losses, which the bound leaves out."""
    scenario = small_scenario([[1] * size for size in sizes], ((NEAR, FAR), (FAR, NEAR)), "class")
    for pipelines in (nullcontext(), pipelines_apart()):
        with pipelines:
            problem = small_problem(scenario, variant, layers=8, batch=2 * 64)
            (best_s, grid), bound = optimum(problem), lower_bound(problem)
        assert bound.proved
        assert bound.seconds <= best_s
        assert floor_s(problem, grid) >= bound.seconds
    if sizes == (4, 4):
        assert best_s / bound.seconds - 1 < 1 / 6


def test_pipelines_and_groups_cannot_both_stay_inside_regions() -> None:
    """With two regions of four devices, either is possible alone, in the time of one region of
    eight. The bound knows that both are not: it adds a stage's gradients across regions."""
    links, variant, batch = ((NEAR, FAR), (FAR, NEAR)), "dtfm-random-p4", 2 * 64
    one = small_problem(small_scenario([[1] * 8], ((NEAR,),)), variant, layers=8, batch=batch)
    two = small_problem(small_scenario([[1] * 4] * 2, links), variant, layers=8, batch=batch)
    alone_s = one.objective.times_s(np.arange(8).reshape(1, 2, 4))[0]
    assert lower_bound(one).seconds <= alone_s
    gradients_s = 8 * two.gradient_bytes.min() / FAR.bandwidth_bps
    assert lower_bound(two).seconds > alone_s + gradients_s


@pytest.mark.parametrize(
    ("variant", "most"),
    [("dtfm-random-p4", 0.18), ("dtfm-random-p4-sharded-ps", 0.17), ("megatron-p4", 0.3)],
)
@pytest.mark.parametrize("sizes", [[4, 4], [2, 2, 2, 2], [4, 1, 1, 1, 1]])
def test_the_optimum_on_nodes_of_several_devices_is_above_the_bound(
    sizes: list[int], variant: str, most: float
) -> None:
    """Nodes share a NIC: what pipelines save inside nodes, groups pay between them. If both were
    assumed to stay inside, the optimum would be 24% to 59% above the bound."""
    link = Link(one_way_delay_s=0.00005, bandwidth_bps=math.inf)
    scenario = small_scenario([sizes], ((link,),), "nic", nic_bps=1e10)
    problem = small_problem(scenario, variant, layers=8, batch=2 * 64)
    (best_s, grid), bound = optimum(problem), lower_bound(problem)
    assert bound.seconds <= floor_s(problem, grid) <= best_s
    assert best_s / bound.seconds - 1 < most


def test_the_updates_of_a_node_s_first_members_share_its_cores() -> None:
    """With free communication the floor equals the simulated time: four updates of the larger kind
    on one node, and two on each of two nodes."""
    link = Link(one_way_delay_s=0.0, bandwidth_bps=math.inf)
    scenario = small_scenario([[4, 4]], ((link,),), "nic", nic_bps=math.inf)
    problem = small_problem(scenario, "dtfm-random-p4", layers=8, batch=2 * 64)
    one_node, two_nodes = np.arange(8).reshape(2, 4), np.array([[0, 1, 4, 5], [2, 3, 6, 7]])
    times_s = problem.objective.times_s(np.stack([one_node, two_nodes]))
    assert floor_s(problem, one_node) == pytest.approx(times_s[0], rel=1e-4)
    assert 0.99 * times_s[1] < floor_s(problem, two_nodes) <= times_s[1]


@pytest.mark.parametrize("variant", ["dtfm-random-p2", "dtfm-random-p2-1f1b-sharded-ps"])
def test_more_sites_than_sets_are_listed_of_are_taken_together(variant: str) -> None:
    """Sixteen sites of one device in four clusters: the bound is below pipelines of neighbours and
    100 random placements, and at most a twelfth below the best of them."""
    far, near = (
        Link(one_way_delay_s=delay_s, bandwidth_bps=bps)
        for delay_s, bps in ((0.1, 2e8), (1e-3, 2e9))
    )
    links = [[near if a // 4 == b // 4 else far for b in range(16)] for a in range(16)]
    problem = small_problem(small_scenario([[1]] * 16, links), variant, layers=4, batch=8 * 16)
    assert problem.floors is not None
    assert problem.floors.num_sites == 16 > MAX_SITES
    random = np.random.default_rng(0)
    devices = [np.arange(16), *(random.permutation(16) for _ in range(100))]
    times_s = problem.objective.times_s(np.stack([some.reshape(8, 2) for some in devices]))
    bound = lower_bound(problem)
    assert bound.seconds <= times_s.min() < 13 / 12 * bound.seconds
    for order, seconds in zip(devices[:3], times_s, strict=False):
        assert floor_s(problem, order.reshape(8, 2)) <= seconds


def test_with_tensor_parallelism_devices_have_to_go_round_too() -> None:
    """Four groups of three: two regions of six hold two each and are as good as one region. With
    seven and five devices one group spans both, and the bound rises by two fifths or more."""

    def problem_of(sizes: tuple[int, ...]) -> Problem:
        links = [[NEAR if a == b else FAR for b in range(len(sizes))] for a in range(len(sizes))]
        scenario = small_scenario([[1] * size for size in sizes], links)
        return small_problem(scenario, "megatron-p2t2", layers=4, batch=3 * 8)

    one, even, uneven = (lower_bound(problem_of(s)).seconds for s in ((12,), (6, 6), (7, 5)))
    assert one == even
    assert uneven > 1.4 * even
    random, problem = np.random.default_rng(0), problem_of((7, 5))
    grids = [random.permutation(12).reshape(problem.shape) for _ in range(100)]
    assert uneven <= problem.objective.times_s(np.stack(grids)).min()


@pytest.mark.parametrize("variant", ["dtfm-random-p1", "megatron-p1"])
def test_one_device_takes_what_its_bound_says(variant: str) -> None:
    """A single device only computes; Megatron's update takes no time."""
    problem = small_problem(small_scenario([[1]], ((NEAR,),)), variant, layers=4, batch=8)
    bound, grid = lower_bound(problem), np.zeros((1, 1), np.int64)
    seconds = problem.objective.times_s(grid[None])[0]
    assert bound.seconds == pytest.approx(seconds, rel=1e-5)
    assert bound.seconds <= seconds
    assert floor_s(problem, grid) == pytest.approx(bound.seconds)
    assert (bound.group_s > 0) == (variant == "dtfm-random-p1")


def test_two_universities_are_nearly_solved() -> None:
    """Case 3 with a pipeline in every eight devices of a region is at most 3% above the bound."""
    scenario = load_scenario("case3")
    problem = Request(
        scenario=scenario, variant="dtfm-scheduled", setting=Setting(layers=24, batch=1024)
    ).problem()
    bound = lower_bound(problem)
    regional_s = float(problem.objective.times_s(np.arange(64).reshape(1, 8, 8))[0])
    assert bound.seconds <= regional_s
    assert regional_s / bound.seconds - 1 < 0.03


def _bound_of(seconds: float) -> Bound:
    scenario = small_scenario([[1] * 7, [1] * 5], ((NEAR, FAR), (FAR, NEAR)))
    problem = small_problem(scenario, "dtfm-random-p4", layers=8, batch=3 * 64)
    return lower_bound(problem, Budget(seconds=seconds))


def test_a_search_that_is_cut_short_has_a_bound_too() -> None:
    """The bound is lower, and marked as not proved to the end."""
    short, long = _bound_of(0.0), _bound_of(3600.0)
    assert not short.proved
    assert long.proved
    assert 0 < short.seconds <= long.seconds
    assert "12 devices at 2 sites do not suffice" in long.proof


def test_several_have_the_least_of_their_bounds_proved() -> None:
    """The least bound equals the one proved alone, in any order; others are proved only as far as
    needed. Progress never falls."""
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
    """Other layers have another bound: more layers on one stage take longer."""
    scenario = small_scenario([[1] * 8], ((NEAR,),))
    problem = small_problem(scenario, "megatron-p4", layers=16, batch=2 * 64)
    assert problem.with_layers is not None
    even, other = lower_bound(problem), problem.with_layers((10, 2, 2, 2))
    uneven = lower_bound(other)
    assert (even.stage_layers, uneven.stage_layers) == ((4, 4, 4, 4), (10, 2, 2, 2))
    assert uneven.pipeline_s > 64 * other.stage_s.max() > even.pipeline_s


def test_a_plan_without_stages_has_no_bound() -> None:
    """The error names the systems that have one."""
    problem = small_problem(small_scenario([[1] * 8], ((NEAR,),)), "megatron-p4", layers=8, batch=8)
    with pytest.raises(PlanError, match="expected a variant of megatron or dtfm"):
        lower_bound(dataclasses.replace(problem, floors=None))


def test_a_slow_pipeline_whose_gradients_come_from_beside_it_waits_for_them_only() -> None:
    """The first member, on a slow link, is ready last; members of the other region have sent
    before, and the last hop of the chain is inside its region. The floor is below the simulated
    time."""
    slow = Link(one_way_delay_s=0.00005, bandwidth_bps=1e8)
    fast = Link(one_way_delay_s=0.00005, bandwidth_bps=math.inf)
    scenario = small_scenario([[1] * 5, [1] * 3], ((fast, slow), (slow, fast)))
    problem = small_problem(scenario, "dtfm-random-p2", layers=4, batch=4 * 16)
    grid = np.array([[3, 5], [7, 6], [2, 0], [4, 1]])
    seconds = problem.objective.times_s(grid[None])[0]
    assert 0.8 * seconds < floor_s(problem, grid) <= seconds
