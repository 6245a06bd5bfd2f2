"""Links, and networks of one and two regions."""

from __future__ import annotations

import math

from netbench.scenario.model import Link, Network

NEAR = Link(one_way_delay_s=0.001, bandwidth_bps=5e9)
FAR = Link(one_way_delay_s=0.011, bandwidth_bps=1.12e9)
UNLIMITED = Link(one_way_delay_s=0.0001, bandwidth_bps=math.inf)
ROUGH = Link(one_way_delay_s=0.0405, bandwidth_bps=100e6, jitter_s=0.002, loss=0.0123)

ADDRESSES = (
    ("10.77.0.1", "fd00::1"),
    ("10.77.0.2", "fd00::2"),
    ("10.77.0.3", "fd00::3"),
    ("10.77.0.4",),
)
"""Addresses of four nodes. The last one has no IPv6."""


def one_region(
    link: Link, num_nodes: int, *, sharing: str = "pair", mtu_bytes: int = 1500
) -> Network:
    """Put all nodes in one region, with equal links."""
    return Network(
        regions=("here",),
        links=((link,),),
        node_regions=(0,) * num_nodes,
        sharing=sharing,
        nic_bps=(math.inf,) * num_nodes,
        mtu_bytes=mtu_bytes,
    )


def two_regions(
    inside: Link = NEAR,
    across: Link = FAR,
    *,
    num_nodes: int = 4,
    sharing: str = "pair",
    nic_bps: float = math.inf,
    mtu_bytes: int = 1500,
) -> Network:
    """Put half of the nodes in each of two regions, as in case 3."""
    return Network(
        regions=("ohio", "virginia"),
        links=((inside, across), (across, inside)),
        node_regions=tuple(2 * node // num_nodes for node in range(num_nodes)),
        sharing=sharing,
        nic_bps=(nic_bps,) * num_nodes,
        mtu_bytes=mtu_bytes,
    )
