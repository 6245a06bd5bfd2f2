"""Which destinations share a queue of a node or router, and what each queue may send. Pure.

Of the network alone: unscaled, and without a word of `tc`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

from netbench.scenario.model import Link, Network

ETHERNET_HEADER_BYTES = 14
"""What a frame adds to the IP packet where a qdisc counts (no preamble, no checksum)."""


def num_routers(network: Network) -> int:
    """Routers a network needs beside its nodes: one per region where regions are joined by trunks.

    The router of region r is "node" `num_nodes + r`; what leaves the region goes through it.
    """
    num_regions = len(network.regions)
    return num_regions if network.sharing == "trunk" and num_regions > 1 else 0


def egress_cap_bps(network: Network, node: int) -> float:
    """What caps all egress of `node`, bit/s, unscaled; inf unless the sharing is `nic`."""
    return network.nic_bps[node] if network.sharing == "nic" else math.inf


def destination_groups(network: Network, node: int) -> list[tuple[int, ...]]:
    """Destinations that share one queue and one rate at `node`, ordered by their first member.

    Destinations over a trunk are not among those of a node: its region's router has them.
    """
    peers = [peer for peer in range(network.num_nodes) if peer != node]
    if network.sharing == "trunk" and num_routers(network):
        home = region_of(network, node)
        inside = node < network.num_nodes
        peers = [peer for peer in peers if (network.node_regions[peer] == home) == inside]
        if inside:
            return [(peer,) for peer in peers]
        return _grouped(peers, lambda peer: network.node_regions[peer])
    if network.sharing == "class":
        return _grouped(peers, lambda peer: network.link(node, peer))
    return [(peer,) for peer in peers]


def _grouped(peers: list[int], key: Callable[[int], Hashable]) -> list[tuple[int, ...]]:
    groups: dict[Hashable, list[int]] = {}
    for peer in peers:
        groups.setdefault(key(peer), []).append(peer)
    return [tuple(group) for group in groups.values()]


def region_of(network: Network, node: int) -> int:
    """Region of a node, or of a router."""
    routed = node - network.num_nodes
    return routed if routed >= 0 else network.node_regions[node]


def link_from(network: Network, node: int, dst: int) -> Link:
    """The link of a node, or of a router, to node `dst`."""
    return network.links[region_of(network, node)][network.node_regions[dst]]


def back_bps(network: Network, node: int, dst: int) -> float:
    """What one flow from `dst` back to a node or router can get, bit/s, unscaled."""
    link = network.links[network.node_regions[dst]][region_of(network, node)]
    return min(link.bandwidth_bps, egress_cap_bps(network, dst))


def link_bps(network: Network, src: int, dst: int) -> float:
    """What one flow from node `src` to node `dst` can get, bit/s, unscaled."""
    return min(network.link(src, dst).bandwidth_bps, egress_cap_bps(network, src))


def leaf_bps(network: Network, node: int, dst: int) -> float:
    """What the leaf of a node or router to `dst` sends, bit/s, unscaled."""
    if node < network.num_nodes:
        return link_bps(network, node, dst)
    return link_from(network, node, dst).bandwidth_bps


def num_senders(network: Network, node: int) -> int:
    """Nodes whose packets a queue of a node or router holds."""
    routed = node - network.num_nodes
    return network.node_regions.count(routed) if routed >= 0 else 1


def frame_bytes(network: Network) -> int:
    """A full frame as a qdisc counts it, bytes."""
    return network.mtu_bytes + ETHERNET_HEADER_BYTES
