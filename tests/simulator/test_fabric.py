"""Resources that flows share under each `sharing` of a network."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from netbench.scenario.model import Link, Network
from netbench.simulator.fabric import Fabric
from netbench.transport.profile import load_transport

INSIDE, EAST, WEST = (
    Link(one_way_delay_s=delay_s, bandwidth_bps=rate_bps)
    for delay_s, rate_bps in ((0.001, 1e9), (0.01, 2e8), (0.02, 1e8))
)
TRUNKS = Network(
    regions=("a", "b"),
    links=((INSIDE, EAST), (WEST, INSIDE)),
    node_regions=(0, 0, 1, 1),
    sharing="trunk",
    nic_bps=(math.inf,) * 4,
)
MANY_SOCKETS = load_transport("nccl").model_copy(update={"sockets": 64})
SOURCES, TARGETS = np.array([0, 0, 1, 2, 3, 0]), np.array([2, 3, 3, 1, 0, 1])


def shared(network: Network) -> set[tuple[object, ...]]:
    """Resources of flows from SOURCES to TARGETS, without those of single connections."""
    fabric = Fabric(network, [0, 1, 2, 3], MANY_SOCKETS)
    fabric.paths(SOURCES, TARGETS)
    return {key for key in fabric.resources if key[0] != "host"}


def in_order(network: Network, nodes: list[int]) -> set[object]:
    """Kinds of the resources that messages of ranks on `nodes` leave one after another."""
    fabric = Fabric(network, nodes, MANY_SOCKETS)
    fabric.paths(SOURCES, TARGETS)
    flags = fabric.network().in_order
    return {key[0] for key, flag in zip(fabric.resources, flags, strict=True) if flag}


def test_messages_keep_their_order_in_the_queue_of_a_link_that_one_rank_fills() -> None:
    """Not behind NICs or trunks, nor where several ranks of a node share."""
    limited = dataclasses.replace(TRUNKS, nic_bps=(2e9,) * 4)
    kinds = {"pair": {"pair"}, "class": {"class"}, "nic": {"pair"}, "trunk": {"pair"}}
    for sharing, expected in kinds.items():
        network = dataclasses.replace(limited, sharing=sharing)
        assert in_order(network, [0, 1, 2, 3]) == expected
        assert in_order(network, [0, 0, 2, 2]) == set()
    narrow = dataclasses.replace(limited, sharing="class-nic", nic_bps=(1e8,) * 4)
    assert in_order(narrow, [0, 1, 2, 3]) == set()


def test_a_trunk_is_one_resource_per_direction_between_regions() -> None:
    """Three flows east on one, two west on another; inside a region a pair has its own."""
    assert shared(TRUNKS) == {("trunk", 0, 1), ("trunk", 1, 0), ("pair", 0, 1)}
    assert len(shared(dataclasses.replace(TRUNKS, sharing="pair"))) == len(SOURCES)


def test_both_hosts_of_a_flow_are_resources_where_they_have_limits() -> None:
    """Headers do not count; a host without a limit is none."""
    limited = dataclasses.replace(TRUNKS, sharing="pair", host_bps=(4e8, 8e8, math.inf, 16e8))
    fabric = Fabric(limited, [0, 1, 2, 3], MANY_SOCKETS)
    fabric.paths(SOURCES, TARGETS)
    capacity = dict(zip(fabric.resources, 8 * fabric.network().capacity, strict=True))
    hosts = {key[1]: bps for key, bps in capacity.items() if key[0] == "sockets"}
    assert hosts == {0: 4e8, 1: 8e8, 3: 16e8}
    assert not any(key[0] == "sockets" for key in shared(TRUNKS))


def test_a_trunk_has_the_rate_of_its_link() -> None:
    """A lone flow gets all of it: 200 and 100 Mbit/s, less headers, as bytes per second."""
    fabric = Fabric(TRUNKS, [0, 1, 2, 3], MANY_SOCKETS)
    paths = fabric.paths(SOURCES, TARGETS)
    expected = np.array([2e8, 2e8, 2e8, 1e8, 1e8, 1e9]) / 8 * 1448 / 1514
    np.testing.assert_allclose(fabric.rate[paths], expected)
