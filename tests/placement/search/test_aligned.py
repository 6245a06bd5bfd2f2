"""The greedy scheduler, against placements worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np

from netbench.placement.problem import Budget, Problem
from netbench.placement.search.aligned import aligned_starts, region_aligned
from netbench.placement.search.layers import balanced, find_layers
from netbench.placement.search.sites import find_sites
from netbench.scenario.model import Link
from tests.placement.small import FAR, NEAR, small_problem, small_scenario


def problem_of(sizes: list[list[int]], variant: str, links: list[list[Link]]) -> Problem:
    return small_problem(small_scenario(sizes, links), variant, layers=12, batch=12)


def apart(count: int) -> list[list[Link]]:
    return [[NEAR if a == b else FAR for b in range(count)] for a in range(count)]


def test_pipelines_stay_inside_regions_that_have_room() -> None:
    """Two regions of eight, listed in turns, and pipelines of four: no pipeline crosses."""
    scenario = small_scenario([[1] * 8, [1] * 8], apart(2))
    order = [index // 2 + 8 * (index % 2) for index in range(16)]
    network = dataclasses.replace(
        scenario.network, node_regions=tuple(scenario.network.node_regions[i] for i in order)
    )
    nodes = tuple(scenario.nodes[i] for i in order)
    scenario = dataclasses.replace(scenario, nodes=nodes, network=network)
    problem = small_problem(scenario, "dtfm-random-p4", layers=12, batch=12)
    regions = problem.region[region_aligned(problem, 0, Budget()).grid]
    assert (regions == regions[:, :1]).all()


def test_pieces_are_joined_by_the_best_links() -> None:
    """Regions of 5, 3, 5 and 3 with pipelines of four leave 1, 3, 1 and 3 over; the second and the
    third are near each other, so their pieces make one pipeline."""
    links = apart(4)
    links[1][2] = links[2][1] = Link(one_way_delay_s=0.02, bandwidth_bps=1e9)
    problem = problem_of([[1] * 5, [1] * 3, [1] * 5, [1] * 3], "dtfm-random-p4", links)
    regions = problem.region[region_aligned(problem, 0, Budget()).grid]
    assert sorted(sorted(set(row)) for row in regions.tolist()) == [[0], [0, 3], [1, 2], [2]]


def test_it_is_the_best_of_its_own_placements() -> None:
    """Every greedy placement is simulated once, and none is faster than the answer."""
    problem = problem_of([[1, 2, 1], [2, 1, 1], [2, 2]], "dtfm-random-p4", apart(3))
    sites, layers = find_sites(problem), find_layers(problem)
    starts = aligned_starts(problem, sites, layers)
    answer = region_aligned(problem, 0, Budget())
    grids = np.array([sites.expanded(blocks) for blocks, _ in starts])
    assert answer.num_evaluated == len(starts) > 1
    assert answer.improvements[-1].value == problem.objective.times_s(grids).min()


def test_layers_are_balanced_by_the_slowest_device_of_a_stage() -> None:
    """Twelve layers on stages of which one is three times as slow: 3, 3, 3, and 3 on equal ones;
    4, 4, 3 and 1, where 3 layers take 3 and the slow one takes 3, by enumeration."""
    problem = problem_of([[1] * 4], "dtfm-random-p4", apart(1))
    layers = find_layers(problem)
    even = balanced(layers, np.zeros((1, 4), np.int64))
    assert even is not None
    assert even.tolist() == [3, 3, 3, 3]
    layers = dataclasses.replace(
        layers, compute_s=np.concatenate([layers.compute_s, 3 * layers.compute_s])
    )
    kinds = np.array([[0, 0, 0, 1]])
    found = balanced(layers, kinds)
    assert found is not None
    slowest_s = [
        max(layers.compute_s[kinds[0], np.arange(4), [a, b, c, 12 - a - b - c]])
        for a in range(1, 10)
        for b in range(1, 11 - a)
        for c in range(1, 12 - a - b)
    ]
    assert max(layers.compute_s[kinds[0], np.arange(4), found]) == min(slowest_s)
