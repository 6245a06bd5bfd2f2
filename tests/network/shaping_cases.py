"""Networks the shaping tests share. `tests/golden/network/` holds what they compile to."""

from __future__ import annotations

import math

from netbench.scenario.model import Link, Network

NEAR = Link(one_way_delay_s=0.001, bandwidth_bps=5e9)
FAR = Link(one_way_delay_s=0.011, bandwidth_bps=1.12e9)

ADDRESSES = (
    ("10.77.0.1", "fd00::1"),
    ("10.77.0.2", "fd00::2"),
    ("10.77.0.3", "fd00::3"),
    ("10.77.0.4",),
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
    """Half of the nodes in each of two regions, as in case 3."""
    return Network(
        regions=("ohio", "virginia"),
        links=((inside, across), (across, inside)),
        node_regions=tuple(2 * node // num_nodes for node in range(num_nodes)),
        sharing=sharing,
        nic_bps=(nic_bps,) * num_nodes,
        mtu_bytes=mtu_bytes,
    )


UNLIMITED = Link(one_way_delay_s=0.0001, bandwidth_bps=math.inf)
ROUGH = Link(one_way_delay_s=0.0405, bandwidth_bps=100e6, jitter_s=0.002, loss=0.0123)

CASES: dict[str, tuple[Network, float]] = {
    "pair": (two_regions(), 1.0),
    "pair-scaled": (two_regions(), 1000.0),
    "class-scaled": (two_regions(sharing="class"), 1000.0),
    "nic-scaled": (two_regions(UNLIMITED, FAR, sharing="nic", nic_bps=25e9), 1000.0),
    "rough": (two_regions(UNLIMITED, ROUGH, mtu_bytes=9001), 1.0),
}
"""Name of the golden files -> network and scale; node 0 is compiled."""
