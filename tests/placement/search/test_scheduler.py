"""netbench's scheduler against all placements of small instances, and what it starts from."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from netbench.errors import PlanError
from netbench.placement.problem import Answer, Budget, Improvement, Problem
from netbench.placement.search import scheduler
from netbench.placement.search.aligned import region_aligned
from netbench.placement.search.exhaustive import few_grids
from netbench.placement.search.scheduler import netbench
from netbench.placement.search.sites import find_sites
from netbench.placement.search.tiled import tilings
from netbench.scenario.model import Link
from tests.placement.small import FAR, NEAR, optimum, problems, small_problem, small_scenario

SIZES = (5, 4, 3)
"""Devices of three regions: twelve, for pipelines of four stages."""

LINKS = (
    ((0.01, 2e9), (0.02, 1.1e9), (0.1, 0.3e9)),
    ((0.03, 0.9e9), (0.01, 2e9), (0.07, 0.5e9)),
    ((0.1, 0.4e9), (0.06, 0.35e9), (0.01, 2e9)),
)
"""One-way delay, s, and bandwidth, bit/s, of every direction."""


def problem_of(
    variant: str, sizes: list[list[int]], num_ranks: int | None = None, *, sharing: str = "pair"
) -> Problem:
    rows = LINKS[: len(sizes)]
    links = [
        [Link(one_way_delay_s=d, bandwidth_bps=b) for d, b in row[: len(sizes)]] for row in rows
    ]
    nic_bps = 1e10 if sharing == "nic" else float("inf")
    scenario = small_scenario(sizes, links, sharing, nic_bps)
    return small_problem(scenario, variant, layers=12, batch=24, num_ranks=num_ranks)


def singles(sizes: tuple[int, ...]) -> list[list[int]]:
    return [[1] * size for size in sizes]


def answer_s(problem: Problem, answer: Answer) -> float:
    """Simulate the answer again; return its time."""
    if answer.stage_layers != problem.stage_layers:
        assert problem.with_layers is not None
        problem = problem.with_layers(answer.stage_layers)
    return float(problem.objective.times_s(answer.grid[None])[0])


def fixed(problem: Problem) -> Problem:
    return dataclasses.replace(problem, with_layers=None)


@pytest.mark.parametrize(
    ("variant", "sizes", "num_ranks", "sharing"),
    [
        ("dtfm-random-p4", singles((6, 6)), None, "pair"),
        ("dtfm-random-p4", singles((3, 3, 2)), None, "trunk"),
        ("megatron-p4", singles((3, 3, 2)), None, "class"),
        ("dtfm-random-p2", [[2, 1], [2], [1]], None, "nic"),
        ("dtfm-random-p3", singles((3, 2, 2)), 6, "pair"),
        ("megatron-p2t2", [[2, 2], [4]], None, "nic"),
    ],
)
def test_the_optimum_of_small_instances_is_found(
    variant: str, sizes: list[list[int]], num_ranks: int | None, sharing: str
) -> None:
    """The least time of all placements, whatever is shared, idle, or tensor parallel."""
    problem = fixed(problem_of(variant, sizes, num_ranks, sharing=sharing))
    answer = netbench(problem, 0, Budget())
    assert answer_s(problem, answer) == pytest.approx(optimum(problem)[0], rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(problem=problems(max_devices=8), seed=st.integers(0, 99))
def test_the_optimum_of_any_small_instance_is_found(problem: Problem, seed: int) -> None:
    """Covers every schedule, kind of data parallelism and sharing, on links of any kind."""
    problem = fixed(problem)
    assume(few_grids(problem, 500))
    answer = netbench(problem, seed, Budget())
    assert answer_s(problem, answer) == optimum(problem)[0]


@settings(max_examples=10, deadline=None)
@given(problem=problems(max_devices=6), seed=st.integers(0, 99))
def test_so_is_that_of_any_small_instance_with_any_layers(problem: Problem, seed: int) -> None:
    """No placement with any layers is faster; each choice of layers is tried separately."""
    assume(few_grids(problem, 60))
    assert problem.with_layers is not None
    total = sum(problem.stage_layers)
    best_s = np.inf
    for layers in itertools.product(range(1, total), repeat=problem.pp):
        if sum(layers) == total:
            with suppress(PlanError):  # no plan has these
                best_s = min(best_s, optimum(problem.with_layers(layers))[0])
    answer = netbench(problem, seed, Budget())
    assert answer_s(problem, answer) == best_s


@settings(max_examples=50, deadline=None)
@given(problem=problems(max_devices=8), seed=st.integers(0, 99))
def test_no_iteration_is_shorter_than_what_a_device_computes(problem: Problem, seed: int) -> None:
    """A placement whose slowest device computes longer than the best need not be simulated."""
    order = np.random.default_rng(seed).permutation(problem.num_devices)
    grids = order[: problem.ranks.size].reshape(1, *problem.shape)
    assert problem.compute_s(grids)[0] <= problem.objective.times_s(grids)[0] * (1 + 1e-6)


def test_the_search_itself_comes_near_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without listing all placements, it is within 2% after 150 candidates."""
    problem = fixed(problem_of("dtfm-random-p4", singles((6, 6))))
    best_s = optimum(problem)[0]
    monkeypatch.setattr(scheduler, "MAX_LISTED", 1)
    monkeypatch.setattr(scheduler, "MAX_GRIDS", 1)
    assert answer_s(problem, netbench(problem, 0, Budget(evaluations=150))) <= 1.02 * best_s


@pytest.mark.parametrize("variant", ["dtfm-random-p4", "megatron-p4"])
def test_a_seed_decides_the_search(variant: str) -> None:
    """The same seed and number of evaluations give the same steps, to the bit."""
    found = [
        netbench(problem_of(variant, singles(SIZES)), 3, Budget(evaluations=30)) for _ in range(2)
    ]
    first, second = (
        [(s.value, s.num_evaluated, s.stage_layers) for s in a.improvements] for a in found
    )
    assert first == second
    assert np.array_equal(found[0].grid, found[1].grid)


def test_improvements_only_get_better_and_are_reported_at_once() -> None:
    """Every improvement is better and later than the previous, valid, and simulated as reported."""
    told: list[Improvement] = []
    problem = problem_of("dtfm-random-p4", singles(SIZES))
    answer = netbench(problem, 1, Budget(evaluations=30, progress=told.append))
    assert tuple(told) == answer.improvements
    for one, other in itertools.pairwise(answer.improvements):
        assert one.value > other.value
        assert one.num_evaluated < other.num_evaluated
        assert one.elapsed_s <= other.elapsed_s
    for step in answer.improvements:
        assert step.grid.shape == problem.shape
        assert len(np.unique(step.grid)) == step.grid.size
    assert answer.improvements[-1].value == pytest.approx(answer_s(problem, answer), rel=1e-12)


def test_a_longer_search_begins_as_a_shorter_one() -> None:
    """The budget only truncates: the improvements of 15 evaluations are a prefix of those of 30."""
    short, long = (
        netbench(problem_of("dtfm-random-p4", singles(SIZES)), 2, Budget(evaluations=count))
        for count in (15, 30)
    )
    values = [step.value for step in short.improvements]
    assert values == [step.value for step in long.improvements][: len(values)]


def test_no_more_candidates_than_asked_for() -> None:
    """The limit also holds where many placements are listed at once, with any layers."""
    scenario = small_scenario([[1] * 3, [1] * 3], [[NEAR, FAR], [FAR, NEAR]])
    problem = small_problem(scenario, "megatron-p2", layers=8, batch=6)
    every = netbench(problem, 0, Budget()).num_evaluated
    for count in (10, every - 1):
        assert netbench(problem, 0, Budget(evaluations=count)).num_evaluated == count


def test_a_search_without_time_is_as_good_as_its_starts() -> None:
    """With one evaluation there is an answer; with those of the starts, it is no slower than
    region-aligned or the listed order."""
    problem = fixed(problem_of("megatron-p4", singles(SIZES)))
    assert netbench(problem, 0, Budget(seconds=0.0)).num_evaluated == 1
    listed = np.arange(12)[problem.ranks]
    aligned_s = region_aligned(problem, 0, Budget()).improvements[-1].value
    found = netbench(problem, 0, Budget(evaluations=6)).improvements[-1].value
    assert found <= min(aligned_s, float(problem.objective.times_s(listed[None])[0]))


def test_nodes_are_laid_as_rectangles_from_the_start() -> None:
    """Two nodes of four devices and eight of one, each with a shared NIC: rectangles are faster
    than the rows of the greedy placements."""
    problem = fixed(problem_of("megatron-p4", [[1, 1, 4, 1, 1, 4, 1, 1, 1, 1]], sharing="nic"))
    sites = find_sites(problem)
    aligned = region_aligned(problem, 0, Budget())
    blocks = sites.blocks_of(aligned.grid)
    assert blocks is not None
    grids = np.array([sites.expanded(each) for each in tilings(sites, blocks)])
    best_s = float(problem.objective.times_s(grids).min())
    assert best_s < answer_s(problem, aligned)
    assert netbench(problem, 0, Budget(evaluations=8)).improvements[-1].value <= best_s


def test_uneven_regions_are_where_it_pays() -> None:
    """Regions of 10, 9 and 5 devices and pipelines of 6 stages: region-aligned only joins
    remainders, and at least 10% can be gained."""
    problem = fixed(problem_of("dtfm-random-p6", singles((10, 9, 5))))
    aligned = region_aligned(problem, 0, Budget())
    answer = netbench(problem, 0, Budget(evaluations=60))
    assert answer_s(problem, answer) < 0.9 * answer_s(problem, aligned)


def test_tensor_parallel_ranks_stay_on_one_node() -> None:
    """Blocks of two devices move together."""
    problem = problem_of("megatron-p2t2", [[2, 2], [2, 2], [2, 2]], sharing="nic")
    answer = netbench(problem, 0, Budget(evaluations=30))
    nodes = problem.node[answer.grid].reshape(problem.dp, problem.tp, problem.pp)
    assert (nodes[:, :1] == nodes).all()


def test_what_fits_one_kind_only_goes_there() -> None:
    """The first stage fits only four of twelve devices, of which three are needed."""
    problem = fixed(problem_of("dtfm-random-p4", singles(SIZES)))
    stage_s = np.repeat(problem.stage_s, 2, axis=0)
    stage_s[1, 0] = np.inf
    kind = np.array([1] * 8 + [0] * 4)
    problem = dataclasses.replace(problem, kind=kind, stage_s=stage_s)
    for search in (netbench, region_aligned):
        answer = search(problem, 0, Budget(evaluations=30))
        assert (kind[answer.grid[:, 0]] == 0).all()


def test_what_fits_nowhere_is_refused() -> None:
    """Three devices of the kind that fits the first stage are needed; there are two."""
    problem = fixed(problem_of("dtfm-random-p4", singles(SIZES)))
    stage_s = np.repeat(problem.stage_s, 2, axis=0)
    stage_s[1, 0] = np.inf
    problem = dataclasses.replace(problem, kind=np.array([1] * 10 + [0] * 2), stage_s=stage_s)
    for search in (netbench, region_aligned):
        with pytest.raises(PlanError, match=r"do not fit the memory of any 12 of 12 devices"):
            search(problem, 0, Budget())


def test_layers_go_where_it_is_fast() -> None:
    """One of two kinds is thirty times slower: free layers shorten an iteration by at least 7% over
    equal layers."""
    problem = problem_of("dtfm-random-p2", singles((2, 2, 2)))
    slow = np.array([[1.0], [30.0]])
    kind = np.array([0, 0, 0, 1, 1, 1])

    def with_layers(stage_layers: tuple[int, ...]) -> Problem:
        assert problem.with_layers is not None
        other = problem.with_layers(stage_layers)
        return dataclasses.replace(
            other, kind=kind, stage_s=other.stage_s * slow, with_layers=with_layers
        )

    free = with_layers(problem.stage_layers)
    even, other = (netbench(each, 0, Budget(evaluations=60)) for each in (fixed(free), free))
    assert sum(other.stage_layers) == 12
    even_s, other_s = (answer_s(free, answer) for answer in (even, other))
    assert other_s < 0.93 * even_s


def test_ranks_without_stages_are_ordered() -> None:
    """zero3 has one ring and no parts that can be timed alone; all orders are simulated."""
    problem = problem_of("zero3", singles((2, 1, 1)))
    answer = netbench(problem, 0, Budget())
    assert answer_s(problem, answer) == optimum(problem)[0]
