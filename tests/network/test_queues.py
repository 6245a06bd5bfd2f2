"""Who shares a queue, and where."""

from __future__ import annotations

from dataclasses import replace

from netbench.network.queues import destination_groups, num_routers
from tests.network.shaping_cases import NEAR, two_regions


def test_equal_links_share_one_queue_only_under_class() -> None:
    """`class` is what the published runs did: all destinations with equal links share a rate."""
    pair, shared = two_regions(num_nodes=64), two_regions(num_nodes=64, sharing="class")
    assert len(destination_groups(pair, 0)) == 63
    assert [len(group) for group in destination_groups(shared, 0)] == [31, 32]


def test_each_region_has_a_router_only_where_there_are_trunks() -> None:
    """Two regions, two routers; with one region there is nothing to share."""
    trunks = two_regions(sharing="trunk")
    assert num_routers(trunks) == 2
    assert num_routers(two_regions()) == 0
    alone = replace(trunks, regions=("a",), links=((NEAR,),), node_regions=(0,) * 4)
    assert num_routers(alone) == 0
    assert destination_groups(alone, 0) == [(1,), (2,), (3,)]
