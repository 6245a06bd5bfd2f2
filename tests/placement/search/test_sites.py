"""Sites: interchangeable blocks of devices."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from netbench.errors import PlanError
from netbench.placement.search.sites import find_sites
from tests.placement.problems import problem_of

LINKS = (np.full((8, 8), 0.01), np.full((8, 8), 1e9))


def test_a_site_is_of_one_region_and_kind_and_of_nodes_as_wide() -> None:
    """Nodes of 1, 1, 2, 2, 1 and 1 device: the wide ones are in two regions, and the last single
    one is of another kind."""
    problem = dataclasses.replace(
        problem_of(*LINKS, dp=2, pp=4),
        node=np.array([0, 1, 2, 2, 3, 3, 4, 5]),
        region=np.array([0, 0, 0, 0, 1, 1, 1, 1]),
        kind=np.array([0, 0, 0, 0, 0, 0, 0, 1]),
        stage_s=np.ones((2, 4)),
    )
    sites = find_sites(problem)
    together = [np.flatnonzero(sites.site == site).tolist() for site in range(len(sites.kind))]
    assert sorted(together) == [[0, 1], [2, 3], [4, 5], [6], [7]]
    assert sites.kind[sites.site].tolist() == problem.kind.tolist()
    assert sites.region[sites.site].tolist() == problem.region.tolist()
    assert not sites.single


@pytest.mark.parametrize("slow_s", [3.0, np.inf])
def test_a_block_of_several_kinds_is_as_small_and_as_slow_as_any(slow_s: float) -> None:
    """Pairs of single devices of a region: a pair with a device of the second kind counts as that
    kind, if it is slower, or too small for a stage though faster."""
    problem = dataclasses.replace(
        problem_of(*LINKS, dp=2, pp=2, tp=2),
        region=np.zeros(8, np.int64),
        kind=np.array([0, 0, 0, 1, 1, 0, 1, 1]),
        stage_s=np.array([[2.0, 2.0], [1.0 if np.isinf(slow_s) else slow_s, slow_s]]),
    )
    sites = find_sites(problem)
    assert sites.devices.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert sites.kind[sites.site].tolist() == [0, 1, 1, 1]


def test_links_between_nodes_of_a_site_and_inside_a_node_differ() -> None:
    """Two nodes of two devices: 100 Gbit/s inside, 1 Gbit/s and 10 ms between."""
    node = np.repeat([0, 1], 2)
    inside = node[:, None] == node
    problem = dataclasses.replace(
        problem_of(np.where(inside, 0.0, 0.01), np.where(inside, 100e9, 1e9), dp=2, pp=2),
        node=node,
        region=np.zeros(4, np.int64),
    )
    sites = find_sites(problem)
    assert sites.delay_s.tolist() == [[0.01]]
    assert sites.seconds_per_byte.tolist() == [[8 / 1e9]]
    assert sites.inside_seconds_per_byte == 8 / 100e9


def test_blocks_of_a_grid_are_found_again() -> None:
    """None for a grid that splits blocks."""
    sites = find_sites(problem_of(*LINKS, dp=2, pp=2, tp=2))
    blocks = np.array([[2, 0], [1, 3]])
    found = sites.blocks_of(sites.expanded(blocks))
    assert found is not None
    assert found.tolist() == blocks.tolist()
    assert sites.blocks_of(sites.expanded(blocks)[::-1]) is None


def test_too_few_blocks_are_refused() -> None:
    """The error states how many there are."""
    with pytest.raises(
        PlanError, match="found 2 blocks of 3 devices; expected 4, for 2 pipelines of 2"
    ):
        find_sites(problem_of(*LINKS, dp=2, pp=2, tp=3))
