"""The choice of links, those measured at once, and how much is sent."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings

from netbench.network.probing.samples import (
    LinkSample,
    all_pairs,
    expected_rate_bps,
    rounds,
    sample_links,
    transfer_bytes,
)
from netbench.scenario.model import BurstLoss, Link, Network
from tests.network.strategies import networks
from tests.networks import ROUGH, UNLIMITED, two_regions

CASE3 = two_regions(num_nodes=64)


@settings(max_examples=30, deadline=None)
@given(networks())
def test_samples_cover_every_class_of_links_in_both_directions(network: Network) -> None:
    """Every (source region, destination region) that has a pair of nodes, once."""
    regions = network.node_regions
    pairs = {
        (regions[a], regions[b]) for a in range(len(regions)) for b in range(len(regions)) if a != b
    }
    links = [sample for sample in sample_links(network) if sample.kind == "link"]
    assert sorted((regions[s.src], regions[s.dsts[0]]) for s in links) == sorted(pairs)


@settings(max_examples=30, deadline=None)
@given(networks())
def test_rounds_keep_every_sample_and_use_no_node_twice(network: Network) -> None:
    """Two samples on one node would compete for bandwidth."""
    samples = sample_links(network)
    planned = rounds(samples, network)
    assert sorted(s for group in planned for s in map(str, group)) == sorted(map(str, samples))
    for group in planned:
        nodes = [node for sample in group for node in sample.nodes]
        assert len(nodes) == len(set(nodes))


@pytest.mark.parametrize("num_nodes", [2, 3, 8, 9, 64])
def test_all_pairs_take_as_few_rounds_as_there_can_be(num_nodes: int) -> None:
    """Every ordered pair once, and each round uses every node that it can."""
    network = two_regions(num_nodes=num_nodes)
    samples = all_pairs(network)
    pairs = [(sample.src, *sample.dsts) for sample in samples]
    assert sorted(pairs) == sorted(itertools.permutations(range(num_nodes), 2))
    assert all(sample.thorough for sample in samples)
    even = num_nodes + num_nodes % 2
    assert len(rounds(samples, network)) == 2 * (even - 1)


def test_one_trunk_is_in_one_round_once() -> None:
    """Two pairs of nodes over the same trunk, in either direction, would get half of it each."""
    network = two_regions(num_nodes=8, sharing="trunk")
    regions = network.node_regions
    for group in rounds(all_pairs(network), network):
        across = [s for s in group if regions[s.src] != regions[s.dsts[0]]]
        assert len(across) <= 1


def test_more_links_per_class_are_different_links() -> None:
    """Three links per class are twelve different links in case 3."""
    samples = sample_links(CASE3, per_class=3)
    assert len(samples) == len(set(samples)) == 12


def test_shared_rates_are_sampled_with_several_destinations() -> None:
    """Only two destinations at once show that they share a class or a NIC."""
    shared = sample_links(two_regions(num_nodes=64, sharing="class"))
    assert [s.kind for s in shared].count("class") == 2
    capped = sample_links(two_regions(num_nodes=64, sharing="nic", nic_bps=12e9))
    assert [(s.kind, len(s.dsts)) for s in capped if s.kind != "link"] == [("nic", 3)]


def test_nics_that_limit_what_nodes_receive_are_sampled_there_too() -> None:
    """Two senders at once; one of the receivers whose NICs have the same rate."""
    network = dataclasses.replace(
        two_regions(num_nodes=8, sharing="nic"), nic_bps=(7e9, 7e9, 3e9, 7e9, 7e9, 7e9, 7e9, 7e9)
    )
    samples = sample_links(network, ingress=True)
    assert all(sample.ingress for sample in samples)
    received = [sample for sample in samples if len(set(sample.dsts)) < len(sample.dsts)]
    assert [sample.flows for sample in received] == [((0, 1), (3, 1)), ((0, 2), (1, 2))]
    assert [expected_rate_bps(network, sample) for sample in received] == [7e9, 3e9]
    (sent_only,) = {expected_rate_bps(network, dataclasses.replace(received[1], ingress=False))}
    assert sent_only == 10e9


@pytest.mark.parametrize(
    ("sharing", "nic_bps", "expected"),
    [("pair", math.inf, 10e9), ("class", math.inf, 5e9), ("nic", 7e9, 7e9), ("nic", 70e9, 10e9)],
)
def test_what_two_flows_get_together(sharing: str, nic_bps: float, expected: float) -> None:
    """Twice the rate, the rate, or what the NIC leaves."""
    network = two_regions(num_nodes=8, sharing=sharing, nic_bps=nic_bps)
    assert expected_rate_bps(network, LinkSample(kind="link", src=0, dsts=(1, 2))) == expected


def test_a_trunk_is_sampled_with_several_sources() -> None:
    """Four pairs of nodes in each direction; together they get the trunk's rate, alone too."""
    network = two_regions(num_nodes=12, sharing="trunk")
    trunks = [sample for sample in sample_links(network) if sample.kind == "trunk"]
    assert [sample.flows for sample in trunks] == [
        ((0, 6), (1, 7), (2, 8), (3, 9)),
        ((6, 0), (7, 1), (8, 2), (9, 3)),
    ]
    assert [expected_rate_bps(network, sample) for sample in trunks] == [1.12e9, 1.12e9]
    assert expected_rate_bps(network, LinkSample(kind="link", src=0, dsts=(6,))) == 1.12e9
    inside = LinkSample(kind="link", src=0, srcs=(0, 2), dsts=(1, 3))
    assert expected_rate_bps(network, inside) == 10e9


@pytest.mark.parametrize(
    "trouble",
    [
        {"bursts": BurstLoss(to_bad=0.01)},
        {"corruption": 0.01},
        {"duplication": 0.01},
        {"reordering": 0.01},
        {"jitter_s": 0.001, "jitter_reorders": True},
        {"queue_packets": 20},
    ],
)
def test_no_goodput_is_expected_where_packets_are_disturbed(trouble: dict[str, Any]) -> None:
    """No formula here describes how TCP reacts."""
    network = two_regions(across=Link(one_way_delay_s=0.01, bandwidth_bps=1e9, **trouble))
    assert expected_rate_bps(network, LinkSample(kind="link", src=0, dsts=(2,))) is None


@pytest.mark.parametrize("link", [UNLIMITED, ROUGH])
def test_no_goodput_is_expected_without_a_rate_or_with_loss(link: Link) -> None:
    """Only the delay of such links can be judged."""
    network = two_regions(link, link)
    sample = LinkSample(kind="link", src=0, dsts=(1,))
    assert expected_rate_bps(network, sample) is None
    assert transfer_bytes(network, sample, 1.0) == (0, 0)


def test_transfers_are_longer_than_slow_start_and_than_many_frames() -> None:
    """BDPs determine the bytes on a long fat link, frames on a scaled one."""
    fat = two_regions(across=Link(one_way_delay_s=0.1, bandwidth_bps=1e9))
    sample = LinkSample(kind="link", src=0, dsts=(2,))
    product = 1e9 / 8 * 0.2
    warmup, measured = transfer_bytes(fat, sample, 1.0)
    assert warmup >= 4 * product
    assert measured >= 2 * product
    assert min(transfer_bytes(two_regions(), sample, 1000.0)) >= 300 * 1514
