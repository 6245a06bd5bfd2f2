"""Trunks: what goes from one region to another shares one rate, at routers."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable

import pytest

from netbench.testbed.namespaces import gateways, node_addresses, router_addresses
from netbench.testbed.shaping import node_sysctls, programs
from tests.testbed.inside_trunks import NETWORK, addresses

PAIRWISE = dataclasses.replace(NETWORK, sharing="pair")


def test_every_region_has_a_router_after_the_nodes() -> None:
    """Their addresses follow those of the nodes, so none is taken twice."""
    routers = router_addresses(NETWORK)
    assert [router.index for router in routers] == [9, 10, 11]
    assert [router.name for router in routers] == ["router of a", "router of b", "router of c"]
    assert len({node.address for node in addresses()}) == 12


def test_without_trunks_there_are_no_routers() -> None:
    """Nor are there where all nodes are in one region."""
    alone = dataclasses.replace(
        NETWORK, regions=("a",), links=((NETWORK.links[0][0],),), node_regions=(0,) * 9
    )
    for network in (PAIRWISE, alone):
        assert router_addresses(network) == ()
        assert gateways(network) == {}


def test_only_what_leaves_a_region_goes_through_its_own_router() -> None:
    """Both ways: the answer goes through the router of the region that answers."""
    found = gateways(NETWORK)
    assert found[0, 4] == 9
    assert found[4, 0] == 10
    assert (0, 1) not in found
    assert len(found) == 9 * 9 - 4 * 4 - 4 * 4 - 1


def test_a_router_forwards_and_a_node_does_not() -> None:
    """Neither tells the other of a shorter way. Forwarding comes first: it resets the others."""
    node, router = addresses()[0], addresses()[9]
    of_router = node_sysctls(router, NETWORK, 1.0)
    assert next(iter(of_router)) == "net.ipv4.ip_forward"
    assert of_router["net.ipv4.conf.eth0.send_redirects"] == "0"
    of_node = node_sysctls(node, NETWORK, 1.0)
    assert "net.ipv4.ip_forward" not in of_node
    assert of_node["net.ipv4.conf.eth0.accept_redirects"] == "0"


def test_routers_change_no_port_of_a_node() -> None:
    """With trunks or without, a node's ports are the same: runs differ in the network alone."""
    name = "net.ipv4.ip_local_port_range"
    nodes = node_addresses(["n"] * 9)
    found = [[node_sysctls(n, kind, 1.0)[name] for n in nodes] for kind in (NETWORK, PAIRWISE)]
    assert found[0] == found[1]


def test_connections_never_use_a_port_of_a_server() -> None:
    """A connection from port 26262, which node 1 of 4 had, kept the probe from starting."""
    for node in node_addresses(["n"] * 9):
        reserved = node_sysctls(node, NETWORK, 1.0)["net.ipv4.ip_local_reserved_ports"]
        assert reserved == "26262,29500"


def test_a_trunk_is_one_queue_at_the_router_with_room_for_all_that_send() -> None:
    """Four nodes send through a's router: it holds four times what one node's queue would."""
    router = programs(addresses(), NETWORK, 1.0)[9]
    assert [(leaf.minor, leaf.rate_bps) for leaf in router.leaves] == [(5, 200e6), (9, 50e6)]
    assert len(router.matches) == 5
    one = dataclasses.replace(NETWORK, node_regions=(0, 1, 1, 1, 1, 1, 1, 1, 2))
    lone = programs((*addresses()[:9], *router_addresses(one)), one, 1.0)[9]
    to_c = (router.leaves[1].limit_packets - 1000, lone.leaves[1].limit_packets - 1000)
    assert to_c[0] > 3.5 * to_c[1]


@pytest.mark.guest
def test_flows_between_two_regions_get_one_rate(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """Delay within 0.1% + 2 us, rates within 0.5%, one flow or four; other links do not notice."""
    status, output = run_in_guest([sys.executable, "-m", "tests.testbed.inside_trunks"])
    assert status == 0, output
    figures = json.loads(output.splitlines()[-1])
    assert figures.pop("drops") == [0.0, 0.0]
    assert figures.pop("programs") == [12.0, 12.0]
    assert len(figures) == 11
    for name, (measured, expected) in figures.items():
        allowed = 0.001 * expected + 2e-6 if name.endswith(", s") else 0.005 * expected
        assert measured == pytest.approx(expected, rel=0, abs=allowed), name
