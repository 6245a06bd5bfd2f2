"""Networks the shaping tests share. `tests/golden/network/` holds what they compile to.

`python -m tests.network.record_in_guest` writes what tc prints of them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from unittest import mock

from netbench.network.shaping import program as program_module
from netbench.network.shaping.program import Program, compile_program
from netbench.scenario.model import BurstLoss, Link, Network
from tests.networks import ADDRESSES, FAR, ROUGH, UNLIMITED, two_regions

ORDERED = Link(
    one_way_delay_s=0.001, bandwidth_bps=math.inf, jitter_s=0.0001, jitter_distribution="uniform"
)
NOISY = Link(
    one_way_delay_s=0.0405,
    bandwidth_bps=100e6,
    jitter_s=0.002,
    jitter_distribution="paretonormal",
    jitter_correlation=1 / 3,
    bursts=BurstLoss(to_bad=0.01, to_good=0.3, loss_bad=0.7, loss_good=0.0005),
    duplication=0.015,
    corruption=0.0025,
    reordering=0.02,
    queue_packets=500,
)
REORDERED = Link(
    one_way_delay_s=0.011,
    bandwidth_bps=1e9,
    jitter_s=0.002,
    jitter_distribution="pareto",
    jitter_reorders=True,
)

CASES: dict[str, tuple[Network, float]] = {
    "pair": (two_regions(), 1.0),
    "pair-scaled": (two_regions(), 1000.0),
    "class-scaled": (two_regions(sharing="class"), 1000.0),
    "nic-scaled": (two_regions(UNLIMITED, FAR, sharing="nic", nic_bps=25e9), 1000.0),
    "rough": (two_regions(UNLIMITED, ROUGH, mtu_bytes=9001), 1.0),
    "noisy": (two_regions(ORDERED, NOISY), 1.0),
    "reordering": (two_regions(REORDERED, REORDERED), 1.0),
    "trunk": (two_regions(sharing="trunk"), 1.0),
    "trunk-router": (two_regions(sharing="trunk"), 1.0),
    "hashed": (two_regions(), 1.0),
}
"""Name of the golden files -> network and scale."""

COMPILED_NODES = {"trunk-router": 4}
"""The node or router that is compiled where it is not node 0."""

EXEMPT_PORTS = {"noisy": (22, 2222), "hashed": (22,)}
"""TCP ports that are not shaped."""

HASH_FROM_PEERS = {"hashed": 1}
"""The golden program has three peers, in tables that are for 256 and more."""


def kept_program(name: str) -> Program:
    """The program that is kept under a name."""
    network, scale = CASES[name]
    program = compile_program(network, COMPILED_NODES.get(name, 0), ADDRESSES, "eth0", scale)
    return replace(program, exempt_ports=EXEMPT_PORTS.get(name, ()))


def kept_text(name: str) -> str:
    """Its text."""
    fewest = HASH_FROM_PEERS.get(name, program_module.HASH_FROM_PEERS)
    with mock.patch.object(program_module, "HASH_FROM_PEERS", fewest):
        return kept_program(name).text
