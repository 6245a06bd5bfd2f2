"""Nodes laid as rectangles, against rectangles drawn by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from netbench.placement.problem import Grid, Problem
from netbench.placement.search.sites import Sites, find_sites
from netbench.placement.search.tiled import tilings
from tests.placement.small import NEAR, problems, small_problem, small_scenario


def sites_of(widths: list[int]) -> tuple[Problem, Sites]:
    scenario = small_scenario([widths], [[NEAR]])
    problem = small_problem(scenario, "dtfm-random-p4", layers=12, batch=12)
    return problem, find_sites(problem)


def listed(problem: Problem, sites: Sites) -> Grid:
    blocks = sites.blocks_of(np.arange(problem.ranks.size)[problem.ranks])
    assert blocks is not None
    return blocks


def test_a_node_is_laid_in_every_rectangle_that_it_fills() -> None:
    """Two nodes of four devices and eight of one, four pipelines of four stages: heights of one,
    two and four."""
    problem, sites = sites_of([1, 4, 1, 1, 1, 4, 1, 1, 1, 1])
    nodes = [sites.node[blocks] for blocks in tilings(sites, listed(problem, sites))]
    large = [np.where(np.isin(grid, (1, 5)), grid, 0).tolist() for grid in nodes]
    assert large == [
        [[1, 1, 1, 1], [5, 5, 5, 5], [0, 0, 0, 0], [0, 0, 0, 0]],
        [[1, 1, 5, 5], [1, 1, 5, 5], [0, 0, 0, 0], [0, 0, 0, 0]],
        [[1, 5, 0, 0], [1, 5, 0, 0], [1, 5, 0, 0], [1, 5, 0, 0]],
    ]


def test_without_room_for_a_rectangle_the_rest_is_filled_as_it_comes() -> None:
    """Three pipelines of four stages, three nodes of four: two by two there is room for two."""
    problem, sites = sites_of([4, 4, 4])
    nodes = [sites.node[blocks] for blocks in tilings(sites, listed(problem, sites))]
    assert nodes[1].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 2, 2]]
    assert nodes[2].tolist() == [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2]]  # four high: no room


def test_nodes_of_one_device_have_no_rectangles() -> None:
    """No shape differs for them."""
    problem, sites = sites_of([1] * 12)
    assert tilings(sites, listed(problem, sites)) == []


@given(problem=problems())
def test_the_same_blocks_stay_in_cells_of_their_region_and_kind(problem: Problem) -> None:
    """Every block occurs once; hops between regions and memory are unchanged."""
    sites = find_sites(problem)
    blocks = np.arange(problem.dp * problem.pp).reshape(problem.dp, problem.pp)
    for tiled in tilings(sites, blocks):
        assert sorted(tiled.ravel()) == sorted(blocks.ravel())
        for of_site in (sites.region, sites.kind):
            assert (of_site[sites.site[tiled]] == of_site[sites.site[blocks]]).all()
