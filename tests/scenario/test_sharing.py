"""Queues of every sharing semantics: which pairs share one, where, and at what rate."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.scenario.model import Network
from netbench.scenario.sharing import (
    SHARING,
    Place,
    Queues,
    destination_groups,
    flow_bps,
    forwarded_destinations,
    joint_bps,
    num_routers,
)
from netbench.simulator.kernel import MAX_HOPS
from tests.networks import FAR, NEAR, ROUGH, two_regions


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Return up to six nodes in up to three regions; some links are equal."""
    size = range(draw(st.integers(1, 3)))
    link = st.sampled_from((NEAR, FAR, replace(FAR, loss=0.01), ROUGH))
    node_regions = draw(st.lists(st.sampled_from(size), min_size=2, max_size=6))
    return Network(
        regions=tuple(f"region{region}" for region in size),
        links=tuple(tuple(draw(link) for _ in size) for _ in size),
        node_regions=tuple(node_regions),
        sharing=draw(st.sampled_from(tuple(SHARING))),
        nic_bps=tuple(draw(st.sampled_from((1e8, 2e9))) for _ in node_regions),
    )


@settings(max_examples=60, deadline=None)
@given(networks())
def test_each_pair_is_delayed_by_one_queue_that_equal_links_share(network: Network) -> None:
    """The queue is at the sender, or at the router of its region."""
    pairs = list(itertools.permutations(range(network.num_nodes), 2))
    leaves = {
        (node, dst): {network.links[region][network.node_regions[dst]] for dst in group}
        for node, region in enumerate((*network.node_regions, *range(num_routers(network))))
        for group in destination_groups(network, node)
        for dst in group
    }
    assert all(len(links) == 1 for links in leaves.values())
    for src, dst in pairs:
        router = network.num_nodes + network.node_regions[src]
        assert ((src, dst) in leaves) + ((router, dst) in leaves) == 1


@settings(max_examples=60, deadline=None)
@given(networks())
def test_flows_get_no_more_together_than_each_alone(network: Network) -> None:
    """One flow gets its own highest rate, and another one never takes more than its own."""
    flows = list(itertools.permutations(range(network.num_nodes), 2))[:6]
    alone = [joint_bps(network, [flow]) for flow in flows]
    assert alone == [flow_bps(network, *flow) for flow in flows]
    assert joint_bps(network, flows) <= sum(alone) * (1 + 1e-9)
    assert joint_bps(network, [*flows, *flows]) == pytest.approx(joint_bps(network, flows))


@pytest.mark.parametrize("sharing", SHARING)
def test_a_path_has_room_for_all_queues(sharing: str) -> None:
    """The simulator adds one limit, of the hosts. Nothing is queued from a node to itself."""
    network = two_regions(sharing=sharing, nic_bps=1e9)
    src, dst = np.divmod(np.arange(16), 4)
    passes = np.array([queues.passes for queues in Queues(network).between(src, dst)])
    assert passes.sum(axis=0).max() < MAX_HOPS
    np.testing.assert_array_equal(passes.any(axis=0), src != dst)
    by_place = [queues.kind.place for queues in Queues(network).between(src, dst)]
    assert by_place == sorted(by_place, key=list(Place).index)


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


def test_a_nic_caps_what_a_router_delays() -> None:
    """Under `trunk` alone the sender has no queue for the other region."""
    trunks = two_regions(sharing="trunk", nic_bps=1e9)
    capped = replace(trunks, sharing="trunk-nic")
    assert forwarded_destinations(trunks, 0) == ()
    assert forwarded_destinations(capped, 0) == (2, 3)
    assert forwarded_destinations(capped, 4) == ()


def test_flows_that_share_a_nic_and_a_trunk_get_max_min_shares() -> None:
    """Node 0 sends to node 1 and, beside node 1, across the trunk. A NIC of 1 Gbit/s divides into
    halves; of a trunk of 0.3 Gbit/s each gets 0.15, and the NIC's rest goes to node 1."""
    across = replace(FAR, bandwidth_bps=3e8)
    network = two_regions(replace(NEAR, bandwidth_bps=1e10), across, sharing="trunk-nic")
    network = replace(network, nic_bps=(1e9,) * 4)
    assert joint_bps(network, [(0, 1), (0, 2), (1, 3)]) == pytest.approx(0.85e9 + 0.3e9)
