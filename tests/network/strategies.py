"""Random links, networks and programs for property tests."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import replace
from typing import get_args

from hypothesis import reject
from hypothesis import strategies as st

from netbench.errors import NetworkError
from netbench.network.shaping.program import Program, compile_program
from netbench.scenario.model import NO_BURSTS, BurstLoss, Link, Network
from netbench.scenario.schema import JitterForm
from netbench.scenario.sharing import SHARING, num_routers

DISTRIBUTIONS: tuple[str, ...] = get_args(JitterForm.model_fields["distribution"].annotation)
"""Names that a scenario may give to the distribution of jitter."""

SHARES = st.sampled_from([0.0, 0.0, 0.01]) | st.floats(1e-6, 0.99)
"""Fractions of packets: often 0, else with any digits."""

RATES = st.sampled_from([1e6, 1.12e9, 1e11, math.inf]) | st.floats(5, 11).map(lambda x: 10**x)
"""bit/s, 100 kbit/s to 100 Gbit/s."""

SCALES = st.sampled_from([1.0, 7.0, 1000.0])


def addresses(num_nodes: int) -> list[tuple[str, str]]:
    """IPv4 and IPv6 of every node."""
    first4, first6 = ipaddress.IPv4Address("10.77.0.0"), ipaddress.IPv6Address("fd00::")
    return [(str(first4 + i + 1), str(first6 + i + 1)) for i in range(num_nodes)]


@st.composite
def bursts(draw: st.DrawFn) -> BurstLoss:
    loss_good, loss_bad = sorted([draw(SHARES), draw(st.floats(0.01, 1))])
    return BurstLoss(
        to_bad=draw(st.floats(1e-6, 1)),
        to_good=draw(st.floats(1e-6, 1)),
        loss_bad=loss_bad,
        loss_good=loss_good,
    )


@st.composite
def links(draw: st.DrawFn) -> Link:
    """Any link a scenario may have."""
    delay_s = draw(st.sampled_from([0.0, 0.0004, 0.011, 0.3]) | st.floats(0, 2))
    jitter_s = draw(st.sampled_from([0.0, 0.0, 0.1, 1.0])) * delay_s
    in_bursts = draw(st.booleans())
    return Link(
        one_way_delay_s=delay_s,
        bandwidth_bps=draw(RATES),
        jitter_s=jitter_s,
        loss=0.0 if in_bursts else draw(SHARES),
        jitter_distribution=draw(st.sampled_from(DISTRIBUTIONS)) if jitter_s else "normal",
        jitter_correlation=draw(SHARES) if jitter_s else 0.0,
        jitter_reorders=draw(st.booleans()) if jitter_s else False,
        bursts=draw(bursts()) if in_bursts else NO_BURSTS,
        duplication=draw(SHARES),
        corruption=draw(SHARES),
        # netem keeps whole microseconds, and refuses to reorder what it does not delay.
        reordering=draw(SHARES) if delay_s > 1e-6 else 0.0,
        queue_packets=draw(st.sampled_from([0, 0, 1, 1000])),
    )


@st.composite
def networks(draw: st.DrawFn, min_nodes: int = 2, max_nodes: int = 12) -> Network:
    """Up to four regions, any sharing."""
    num_regions = draw(st.integers(1, 4))
    rows = [tuple(draw(links()) for _ in range(num_regions)) for _ in range(num_regions)]
    num_nodes = draw(st.integers(min_nodes, max_nodes))
    first = draw(st.integers(0, num_regions - 1))
    some = draw(st.lists(st.integers(0, num_regions - 1), min_size=1, max_size=min(num_nodes, 12)))
    regions = (first, *(some[node % len(some)] for node in range(num_nodes - 1)))
    caps = draw(st.lists(RATES, min_size=1, max_size=2))
    return Network(
        regions=tuple("abcd"[:num_regions]),
        links=tuple(rows),
        node_regions=regions,
        sharing=draw(st.sampled_from(tuple(SHARING))),
        nic_bps=tuple(caps[node % len(caps)] for node in range(num_nodes)),
        mtu_bytes=draw(st.sampled_from([1500, 9001]) | st.integers(576, 65535)),
    )


@st.composite
def programs(draw: st.DrawFn, min_nodes: int = 2, max_nodes: int = 12) -> Program:
    """The program of some node or router of a random network, on eth0."""
    network = draw(networks(min_nodes, max_nodes))
    book: list[tuple[str, ...]] = list(addresses(network.num_nodes))
    if draw(st.booleans()):
        version = draw(st.sampled_from([0, 1]))
        book = [(pair[version],) for pair in book]
    node = draw(st.integers(0, network.num_nodes + num_routers(network) - 1))
    try:
        program = compile_program(network, node, book, "eth0", draw(SCALES))
    except NetworkError:  # e.g. a NIC too slow to be shared: said so, and not loaded
        reject()
    ports = draw(st.sampled_from([(), (22,), (22, 2222)]))
    return replace(program, exempt_ports=ports)
