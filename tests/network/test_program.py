"""Shaping programs: exact text, and what holds for every network."""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.errors import NetworkError
from netbench.network.program import (
    HANDLE,
    MAX_SEGMENTS,
    Program,
    compile_program,
    compile_programs,
    destination_groups,
    sysctls,
)
from netbench.scenario import load_scenario
from netbench.scenario.load import list_scenarios
from netbench.scenario.model import SHARING, Link, Network
from tests.network.shaping_cases import ADDRESSES, CASES, NEAR, kept_text, two_regions

GOLDEN = Path(__file__).parents[1] / "golden" / "network"


def addresses(num_nodes: int) -> list[tuple[str, str]]:
    first4, first6 = ipaddress.IPv4Address("10.77.0.0"), ipaddress.IPv6Address("fd00::")
    return [(str(first4 + i + 1), str(first6 + i + 1)) for i in range(num_nodes)]


@pytest.mark.parametrize("name", sorted(CASES))
def test_programs_are_exactly_as_kept(name: str) -> None:
    """Each kept program was accepted by tc 6.1 on Linux 6.12, and read back."""
    assert kept_text(name) == (GOLDEN / f"{name}.tc").read_text()


@st.composite
def links(draw: st.DrawFn) -> Link:
    return Link(
        one_way_delay_s=draw(st.sampled_from([0.0, 0.0004, 0.011, 0.3])),
        bandwidth_bps=draw(st.sampled_from([1e6, 1.12e9, 1e11, math.inf])),
        jitter_s=draw(st.sampled_from([0.0, 0.001])),
        loss=draw(st.sampled_from([0.0, 0.01])),
    )


@st.composite
def networks(draw: st.DrawFn) -> Network:
    num_regions = draw(st.integers(1, 4))
    rows = [tuple(draw(links()) for _ in range(num_regions)) for _ in range(num_regions)]
    regions = draw(st.lists(st.integers(0, num_regions - 1), min_size=2, max_size=12))
    return Network(
        regions=tuple("abcd"[:num_regions]),
        links=tuple(rows),
        node_regions=tuple(regions),
        sharing=draw(st.sampled_from(SHARING)),
        nic_bps=tuple(draw(st.sampled_from([1e9, 25e9, math.inf])) for _ in regions),
        mtu_bytes=draw(st.sampled_from([1500, 9001])),
    )


@settings(max_examples=30, deadline=None)
@given(networks(), st.sampled_from([1.0, 100.0]))
def test_every_destination_is_matched_exactly_once(network: Network, scale: float) -> None:
    """No packet to a node can miss its class, and none to the node itself is shaped."""
    book = addresses(network.num_nodes)
    for program in compile_programs(network, book, "eth0", scale):
        others = [a for i, pair in enumerate(book) if i != program.node for a in pair]
        assert Counter(address for address, _ in program.matches) == Counter(others)
        leaves = {leaf.minor for leaf in program.leaves}
        assert {minor for _, minor in program.matches} == leaves


@settings(max_examples=30, deadline=None)
@given(networks(), st.sampled_from([1.0, 100.0]))
def test_class_ids_are_unique_and_parents_exist(network: Network, scale: float) -> None:
    """A class or leaf named twice would make the kernel refuse the program."""
    for program in compile_programs(network, addresses(network.num_nodes), "eth0", scale):
        minors = [htb.minor for htb in program.classes]
        assert len(set(minors)) == len(minors)
        assert len({leaf.minor for leaf in program.leaves}) == len(program.leaves)
        assert {leaf.minor for leaf in program.leaves} <= set(minors)
        assert {htb.parent for htb in program.classes} <= {0, *minors}


@settings(max_examples=30, deadline=None)
@given(networks(), st.sampled_from([1.0, 100.0]))
def test_limits_cover_the_bandwidth_delay_product(network: Network, scale: float) -> None:
    """netem's default of 1000 packets caps a long fat link silently; 1.5 products never do."""
    for program in compile_programs(network, addresses(network.num_nodes), "eth0", scale):
        for leaf in program.leaves:
            product = leaf.rate_bps / 8 * leaf.delay_us * 1e-6 / (network.mtu_bytes + 14)
            assert leaf.limit_packets >= 1.5 * product + 1000


@settings(max_examples=30, deadline=None)
@given(networks(), st.sampled_from([1.0, 100.0]))
def test_every_field_is_always_sent(network: Network, scale: float) -> None:
    """`tc qdisc change` keeps what is not sent, so nothing may be left out, not even a zero."""
    leaf = re.compile(r"limit \d+ delay \d+us \d+us.* loss [\d.]+% rate \d+bit$")
    htb = re.compile(r"rate \d+bit ceil \d+bit burst \d+b cburst \d+b quantum \d+$")
    for program in compile_programs(network, addresses(network.num_nodes), "eth0", scale):
        for line in program.text.splitlines():
            if " netem " in line:
                assert leaf.search(line)
            if line.startswith("class"):
                assert htb.search(line)


@settings(max_examples=30, deadline=None)
@given(networks(), st.sampled_from([1.0, 100.0]))
def test_bursts_and_quanta_hold_a_frame(network: Network, scale: float) -> None:
    """A burst below a frame starves a class; HTB refuses times above 2^32 ticks of 64 ns."""
    frame = network.mtu_bytes + 14
    for program in compile_programs(network, addresses(network.num_nodes), "eth0", scale):
        for htb in program.classes:
            assert min(htb.burst_bytes, htb.ceil_burst_bytes, htb.quantum_bytes) >= frame
            assert htb.burst_bytes * 8 / htb.rate_bps < 2**32 * 64e-9
            assert htb.rate_bps <= htb.ceil_bps


def test_equal_links_share_one_queue_only_under_class() -> None:
    """`class` is what the published runs did: all destinations with equal links share a rate."""
    pair, shared = two_regions(num_nodes=64), two_regions(num_nodes=64, sharing="class")
    assert len(destination_groups(pair, 0)) == 63
    assert [len(group) for group in destination_groups(shared, 0)] == [31, 32]


def test_a_nic_cap_is_the_parent_of_all_destinations() -> None:
    """Under `nic` every class hangs beneath the cap, and no single flow may exceed it either."""
    network = two_regions(num_nodes=8, sharing="nic", nic_bps=2e9)
    program = compile_program(network, 0, addresses(8), "eth0")
    cap, *parts = program.classes
    assert (cap.rate_bps, cap.ceil_bps) == (2_000_000_000, 2_000_000_000)
    assert {part.parent for part in parts} == {cap.minor}
    assert sum(part.rate_bps for part in parts) < cap.rate_bps / 100
    assert {leaf.rate_bps for leaf in program.leaves} == {2_000_000_000, 1_120_000_000}


def test_a_nic_cap_counts_only_under_nic() -> None:
    """The same NIC is no limit where the scenario says that pairs have their own rates."""
    network = two_regions(num_nodes=8, sharing="pair", nic_bps=2e9)
    program = compile_program(network, 0, addresses(8), "eth0")
    assert {leaf.rate_bps for leaf in program.leaves} == {5_000_000_000, 1_120_000_000}
    assert {htb.parent for htb in program.classes} == {0}


@pytest.mark.parametrize(
    ("cap_bps", "segments"), [(25e9, MAX_SEGMENTS), (25e6, 2), (10e6, 1), (math.inf, MAX_SEGMENTS)]
)
def test_packets_are_no_larger_than_the_burst_of_a_slow_cap(cap_bps: float, segments: int) -> None:
    """1 ms of 25 Mbit/s is 3125 bytes, two frames; of 25 Gbit/s it is more than any packet."""
    network = two_regions(num_nodes=8, sharing="nic", nic_bps=cap_bps)
    assert compile_program(network, 0, addresses(8), "eth0").max_segments == segments


def test_filters_are_hashed_from_256_peers_up() -> None:
    """Below, rules are tried in turn; above, the last byte of the address picks the bucket."""
    below = compile_program(two_regions(num_nodes=256), 0, addresses(256), "eth0").text
    above = compile_program(two_regions(num_nodes=257), 0, addresses(257), "eth0").text
    assert "hashkey" not in below
    assert above.count("hashkey mask 0x000000ff") == 2
    rule = f"ht 4:{257 % 256:x}: match ip dst 10.77.1.1/32 flowid {HANDLE}{257:x}"
    assert sum(rule in line for line in above.splitlines()) == 1


def test_bandwidths_are_scaled_and_delays_are_not() -> None:
    """With bytes and rates over the same factor all times stay as they are."""
    program = compile_program(two_regions(), 0, ADDRESSES, "eth0", 1000.0)
    assert [(leaf.delay_us, leaf.rate_bps) for leaf in program.leaves] == [
        (1000, 5_000_000),
        (11_000, 1_120_000),
        (11_000, 1_120_000),
    ]


def compile_one(link: Link, scale: float = 1.0, **options: float) -> Program:
    network = two_regions(link, link, sharing="nic" if options else "pair", **options)
    return compile_program(network, 0, ADDRESSES, "eth0", scale)


def test_a_rate_below_a_byte_per_second_is_refused() -> None:
    """tc would print 0, which means unlimited."""
    with pytest.raises(NetworkError, match="less than 1 byte/s"):
        compile_one(NEAR, 5e9)


def test_a_delay_netem_cannot_hold_is_refused() -> None:
    """netem keeps 32 bits of 64 ns; a longer delay would wrap around."""
    with pytest.raises(NetworkError, match="274 s"):
        compile_one(Link(one_way_delay_s=300.0, bandwidth_bps=1e9))


def test_a_cap_too_low_to_share_is_refused() -> None:
    """One frame per destination in 200 s would be a large part of it."""
    with pytest.raises(NetworkError, match="too low for HTB"):
        compile_one(NEAR, 1e6, nic_bps=1e9)


def test_more_nodes_than_class_ids_are_refused() -> None:
    """Class ids have 16 bits, and one names the root."""
    with pytest.raises(NetworkError, match="28257"):
        compile_program(two_regions(num_nodes=28258), 0, [], "eth0")


def test_buffers_hold_the_largest_round_trip() -> None:
    """134 ms at 1.15 Gbit/s have 19.3 MB on the way; Linux's 6 MB gave a quarter of the rate."""
    far = Link(one_way_delay_s=0.067, bandwidth_bps=1.15e9)
    settings = sysctls(two_regions(across=far))
    for name in ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"):
        assert int(settings[name].split()[2]) >= 2 * 19_262_500
    assert settings["net.ipv4.tcp_congestion_control"] == "reno"


def test_buffers_are_never_below_the_defaults_of_linux() -> None:
    """Scaled by 1000 a product is a few frames; buffers as small would stall TCP."""
    settings = sysctls(two_regions(), 1000.0)
    assert settings["net.ipv4.tcp_rmem"] == "4096 131072 6291456"
    assert settings["net.ipv4.tcp_wmem"] == "4096 16384 4194304"


def test_scaled_links_without_loss_are_waited_for() -> None:
    """A frame that is only queued is not sent again; one that can be lost is."""
    patient = "net.ipv4.tcp_rto_min_us"
    lossy = Link(one_way_delay_s=0.01, bandwidth_bps=1e9, loss=0.01)
    assert patient in sysctls(two_regions(), 1000.0)
    assert patient not in sysctls(two_regions(), 1.0)
    assert patient not in sysctls(two_regions(across=lossy), 1000.0)


@pytest.mark.parametrize("name", list_scenarios())
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_every_scenario_compiles(name: str, scale: float) -> None:
    """Whatever is in scenarios/ can be shaped, at full size and at the scale of case 3."""
    network = load_scenario(name).network
    programs = compile_programs(network, addresses(network.num_nodes), "eth0", scale)
    assert [len(program.matches) for program in programs] == [2 * (network.num_nodes - 1)] * len(
        programs
    )
