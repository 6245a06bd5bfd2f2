"""Shaping programs: exact text, and what holds for every network."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings

from netbench.errors import NetworkError
from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.program import (
    CEILING_BPS,
    MAX_SEGMENTS,
    UNLIMITED_BPS,
    Program,
    compile_program,
    compile_programs,
    sysctls,
)
from netbench.network.shaping.tc import Leaf, netem_options
from netbench.scenario import load_scenario
from netbench.scenario.load import list_scenarios
from netbench.scenario.model import BurstLoss, Link, Network
from netbench.scenario.sharing import egress_cap_bps, forwarded_destinations, num_routers
from tests.network.shaping_cases import CASES, kept_text
from tests.network.strategies import SCALES, addresses, networks
from tests.networks import ADDRESSES, FAR, NEAR, two_regions

GOLDEN = Path(__file__).parents[2] / "golden" / "network"


def compiled(network: Network, scale: float) -> tuple[Program, ...]:
    """All programs of a random network; those it cannot have are refused with a reason."""
    try:
        return compile_programs(network, addresses(network.num_nodes), "eth0", scale)
    except NetworkError:
        reject()


@pytest.mark.parametrize("name", sorted(CASES))
def test_configurations_equal_their_golden_files(name: str) -> None:
    """tc 6.1 on Linux 6.12 accepted each golden file, and it was read back."""
    assert kept_text(name) == (GOLDEN / f"{name}.tc").read_text()


@settings(max_examples=25, deadline=None)
@given(networks(), SCALES)
def test_every_destination_is_matched_exactly_once(network: Network, scale: float) -> None:
    """No packet to a node can miss its class, and none to the node itself is shaped. With trunks a
    node matches its own region, and what its NIC caps; the region's router matches the rest."""
    book = addresses(network.num_nodes)
    regions = network.node_regions
    for program in compiled(network, scale):
        node = program.node
        if num_routers(network) and node < network.num_nodes:
            capped = math.isfinite(egress_cap_bps(network, node))
            here = [capped or region == regions[node] for region in regions]
            there = [i for i in range(network.num_nodes) if here[i] and i != node]
        elif num_routers(network):
            there = [i for i, region in enumerate(regions) if region != node - network.num_nodes]
        else:
            there = [i for i in range(network.num_nodes) if i != node]
        others = [address for i in there for address in book[i]]
        assert Counter(address for address, _ in program.matches) == Counter(others)
        leaves = {leaf.minor for leaf in program.leaves}
        assert {minor for _, minor in program.matches} == leaves


@settings(max_examples=25, deadline=None)
@given(networks(), SCALES)
def test_every_two_nodes_are_a_link_apart(network: Network, scale: float) -> None:
    """On the way from one node to another there is one shaped queue: at the node, or at the router
    of its region, and it has the delay and loss of the link between their regions."""
    book = addresses(network.num_nodes)
    programs = {program.node: program for program in compiled(network, scale)}
    for src in programs:
        for dst in range(network.num_nodes):
            if src >= network.num_nodes or src == dst:
                continue
            route = {src, network.num_nodes + network.node_regions[src]} & programs.keys()
            queues = [
                leaf
                for node in sorted(route)
                for address, minor in programs[node].matches
                for leaf in programs[node].leaves
                if address == book[dst][0] and leaf.minor == minor
            ]
            if dst in forwarded_destinations(network, src):
                capped = queues.pop(sorted(route).index(src))
                assert (capped.delay_us, capped.loss) == (0, 0.0)
            link = network.link(src, dst)
            assert len(queues) == 1
            assert queues[0].delay_us == round(link.one_way_delay_s * 1e6)
            assert (queues[0].loss, queues[0].bursts) == (link.loss, link.bursts)


@settings(max_examples=25, deadline=None)
@given(networks(), SCALES)
def test_class_ids_are_unique_and_parents_exist(network: Network, scale: float) -> None:
    """A class or leaf named twice would make the kernel refuse the program."""
    for program in compiled(network, scale):
        minors = [htb.minor for htb in program.classes]
        assert len(set(minors)) == len(minors)
        assert len({leaf.minor for leaf in program.leaves}) == len(program.leaves)
        assert {leaf.minor for leaf in program.leaves} <= set(minors)
        assert {htb.parent for htb in program.classes} <= {0, *minors}


@settings(max_examples=25, deadline=None)
@given(networks(), SCALES)
def test_limits_cover_the_bandwidth_delay_product(network: Network, scale: float) -> None:
    """netem's default of 1000 packets caps a long fat link silently; 1.5 products never do. An
    unlimited link is taken for one of 100 Gbit/s; a queue that was asked for is as asked for."""
    for program in compiled(network, scale):
        rates = {htb.minor: min(htb.ceil_bps, CEILING_BPS / scale) for htb in program.classes}
        for leaf in program.leaves:
            if leaf.may_overflow:
                assert leaf.limit_packets in (1, 1000)
                continue
            rate_bps = min(leaf.rate_bps or math.inf, rates[leaf.minor])
            product = rate_bps / 8 * leaf.delay_us * 1e-6 / (network.mtu_bytes + 14)
            assert leaf.limit_packets >= 1.5 * product + 1000 - 1


@settings(max_examples=25, deadline=None)
@given(networks(), SCALES)
def test_packets_keep_their_order_unless_asked(network: Network, scale: float) -> None:
    """netem sends no packet before the one ahead of it where it has a rate. Where the link may
    reorder, the rate is the class's."""
    for program in compiled(network, scale):
        rates = {htb.minor: htb.ceil_bps for htb in program.classes}
        for leaf in program.leaves:
            if leaf.jitter_us and not leaf.rate_bps:
                ends = [network.node_regions[leaf.minor - 1]]
                source = program.node - network.num_nodes
                if source < 0:
                    source = network.node_regions[program.node]
                link = network.links[source][ends[0]]
                assert link.jitter_reorders
                least = min([link.bandwidth_bps / scale, UNLIMITED_BPS])
                assert rates[leaf.minor] <= least + 4


@settings(max_examples=25, deadline=None)
@given(networks(), SCALES)
def test_a_changed_leaf_is_sent_every_field(network: Network, scale: float) -> None:
    """`tc qdisc change` keeps what is not sent, so nothing may be left out, not even a zero."""
    percent = r"[\d.e+-]+%"
    leaf_form = re.compile(
        rf"limit \d+ delay \d+us \d+us {percent}( distribution \w+)? "
        rf"loss (gemodel {percent} {percent} {percent} )?{percent} "
        rf"duplicate {percent} corrupt {percent} (reorder {percent} )?rate \d+bit"
    )
    htb = re.compile(r"rate \d+bit ceil \d+bit burst \d+b cburst \d+b quantum \d+( mpu \d+)?$")
    for program in compiled(network, scale):
        for leaf in program.leaves:
            options = netem_options(leaf, every=True)
            assert leaf_form.fullmatch(options), options
            assert not leaf.jitter_us or leaf.distribution in (*options.split(), "uniform")
        for line in program.text.splitlines():
            assert not line.startswith("class") or htb.search(line)


@settings(max_examples=25, deadline=None)
@given(networks(), SCALES)
def test_bursts_and_quanta_hold_a_frame(network: Network, scale: float) -> None:
    """A burst below a frame starves a class; HTB refuses times above 2^32 ticks of 64 ns."""
    frame = network.mtu_bytes + 14
    for program in compiled(network, scale):
        for htb in program.classes:
            assert min(htb.burst_bytes, htb.ceil_burst_bytes, htb.quantum_bytes) >= frame
            assert htb.burst_bytes * 8 / htb.rate_bps < 2**32 * 64e-9
            assert htb.rate_bps <= htb.ceil_bps


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
    """The same NIC is not a limit if pairs have their own rates."""
    network = two_regions(num_nodes=8, sharing="pair", nic_bps=2e9)
    program = compile_program(network, 0, addresses(8), "eth0")
    assert {leaf.rate_bps for leaf in program.leaves} == {5_000_000_000, 1_120_000_000}
    assert {htb.parent for htb in program.classes} == {0}


@pytest.mark.parametrize(
    ("cap_bps", "segments"), [(25e9, MAX_SEGMENTS), (25e6, 2), (10e6, 1), (math.inf, MAX_SEGMENTS)]
)
def test_packets_fit_the_burst_of_a_slow_cap(cap_bps: float, segments: int) -> None:
    """1 ms of 25 Mbit/s is 3125 bytes, two frames; of 25 Gbit/s it is more than any packet."""
    network = two_regions(num_nodes=8, sharing="nic", nic_bps=cap_bps)
    assert compile_program(network, 0, addresses(8), "eth0").max_segments == segments


@pytest.mark.parametrize(
    "noise",
    [
        {"loss": 0.01},
        {"bursts": BurstLoss(to_bad=0.01, to_good=0.3)},
        {"duplication": 0.01},
        {"corruption": 0.01},
        {"reordering": 0.01},
        {"jitter_s": 0.001, "jitter_reorders": True},
    ],
)
def test_impairments_hit_single_frames(noise: dict[str, Any]) -> None:
    """netem draws once for each packet that TCP hands over, up to 45 frames."""
    noisy = replace(FAR, **noise)
    assert compile_program(two_regions(NEAR, noisy), 0, ADDRESSES, "eth0").max_segments == 1
    assert compile_program(two_regions(NEAR, FAR), 0, ADDRESSES, "eth0").max_segments > 1
    trunks = compile_programs(two_regions(NEAR, noisy, sharing="trunk"), ADDRESSES, "eth0")
    assert {program.max_segments for program in trunks} == {1}


def test_filters_are_hashed_from_256_peers() -> None:
    """Fewer are tried in turn. Otherwise the last byte of the address selects the bucket."""
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


NOISY_JITTER = Link(one_way_delay_s=0.01, bandwidth_bps=math.inf, jitter_s=0.002)


def leaf_of(**fields: Any) -> Leaf:
    return compile_one(replace(NOISY_JITTER, **fields)).leaves[0]


def test_jitter_has_the_deviation_that_was_asked_for() -> None:
    """A uniform distribution of half width w has w / sqrt(3); the tables of tc, which end at four
    deviations, have what their 4096 values have."""
    assert leaf_of().jitter_us == 2000
    assert leaf_of(jitter_distribution="uniform").jitter_us == 3464
    for name in ("pareto", "paretonormal"):
        table = Path("/usr/lib/x86_64-linux-gnu/tc", f"{name}.dist")
        if not table.exists():
            continue
        lines = table.read_text().splitlines()
        values = [int(x) / 8192 for line in lines if line[0] != "#" for x in line.split()]
        asked_us = leaf_of(jitter_distribution=name).jitter_us
        assert asked_us * statistics.pstdev(values) == pytest.approx(2000, rel=1e-3)


def test_jitter_keeps_order_by_a_rate_that_is_never_reached() -> None:
    """netem without a rate would send each packet by its own delay."""
    assert leaf_of().rate_bps == UNLIMITED_BPS
    assert leaf_of(jitter_reorders=True).rate_bps == 0
    assert leaf_of(jitter_s=0.0).rate_bps == 0


def test_a_link_that_may_reorder_has_its_rate_in_its_class() -> None:
    """HTB does not delay a packet behind the previous one."""
    program = compile_one(replace(NOISY_JITTER, bandwidth_bps=1e9, jitter_reorders=True))
    assert {leaf.rate_bps for leaf in program.leaves} == {0}
    assert {htb.rate_bps for htb in program.classes} == {1_000_000_000}
    limits = {leaf.limit_packets for leaf in program.leaves}
    plain = compile_one(replace(NOISY_JITTER, bandwidth_bps=1e9))
    assert {leaf.rate_bps for leaf in plain.leaves} == {1_000_000_000}
    assert limits == {leaf.limit_packets for leaf in plain.leaves}


def test_a_queue_that_is_asked_for_is_the_limit() -> None:
    """Its drops were asked for too."""
    assert (leaf_of(queue_packets=7).limit_packets, leaf_of(queue_packets=7).may_overflow) == (7, 1)
    assert not leaf_of().may_overflow


def test_all_flows_between_two_regions_share_one_rate_at_the_router() -> None:
    """A node knows only its own region; the router has one queue for the whole of the other."""
    programs = compile_programs(two_regions(num_nodes=8, sharing="trunk"), addresses(8), "eth0")
    assert len(programs) == 10
    assert [len(program.leaves) for program in programs] == [3] * 8 + [1] * 2
    assert {leaf.rate_bps for program in programs[8:] for leaf in program.leaves} == {1_120_000_000}
    assert sorted(programs[8].matches) == sorted(
        (address, 5) for pair in addresses(8)[4:] for address in pair
    )


def test_ports_that_are_not_shaped_come_first() -> None:
    """Both ends, IPv4 and IPv6 where the program has such peers."""
    program = replace(compile_one(NEAR), exempt_ports=(22,))
    lines = [line for line in program.text.splitlines() if line.startswith("filter")]
    assert [line.endswith(f"flowid {HANDLE}0") for line in lines[:5]] == [True] * 4 + [False]
    only4 = compile_program(two_regions(), 0, [a[:1] for a in ADDRESSES], "eth0")
    text = replace(only4, exempt_ports=(22,)).text
    assert (text.count("sport 22"), text.count("dport 22"), text.count("ip6")) == (1, 1, 0)


def compile_one(link: Link, scale: float = 1.0, **options: Any) -> Program:
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


def test_a_jitter_netem_cannot_hold_is_refused() -> None:
    """31 bits of nanoseconds; netem takes the longest it can without a word."""
    link = Link(one_way_delay_s=10.0, bandwidth_bps=1e9, jitter_s=2.148)
    with pytest.raises(
        NetworkError, match=r"a jitter of 2\.148 s is above what netem holds, 2\.147 s"
    ):
        compile_one(link)
    assert compile_one(replace(link, jitter_s=2.147)).leaves[0].jitter_us == 2_147_000


def test_a_frame_that_takes_longer_than_htb_holds_is_refused() -> None:
    """40 bit/s: 303 s. HTB would keep a burst of nothing, and the class would never send."""
    link = Link(one_way_delay_s=1.0, bandwidth_bps=40, jitter_s=0.1, jitter_reorders=True)
    with pytest.raises(NetworkError, match=r"a rate of 40 bit/s .* takes longer for a frame"):
        compile_one(link)


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


def test_tcp_waits_longer_on_scaled_links_without_loss() -> None:
    """A frame that is only queued is not sent again; one that can be lost is."""
    patient = "net.ipv4.tcp_rto_min_us"
    lossy = Link(one_way_delay_s=0.01, bandwidth_bps=1e9, loss=0.01)
    assert patient in sysctls(two_regions(), 1000.0)
    assert patient not in sysctls(two_regions(), 1.0)
    assert patient not in sysctls(two_regions(across=lossy), 1000.0)
    overflowing = replace(FAR, queue_packets=10)
    assert patient not in sysctls(two_regions(across=overflowing), 1000.0)


@pytest.mark.parametrize("name", list_scenarios())
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_every_scenario_compiles(name: str, scale: float) -> None:
    """Whatever is in scenarios/ can be shaped, at full size and at the scale of case 3."""
    network = load_scenario(name).network
    programs = compile_programs(network, addresses(network.num_nodes), "eth0", scale)
    others = [network.num_nodes - 1] * network.num_nodes
    others += [
        network.num_nodes - network.node_regions.count(region)
        for region in range(num_routers(network))
    ]
    assert [len(program.matches) for program in programs] == [2 * count for count in others]


def test_a_nic_caps_packets_that_a_router_delays() -> None:
    """One leaf without delay for the other region, and its rate is the cap. Routers as without, but
    for acknowledgements, which the cap slows down."""
    plain = two_regions(sharing="trunk")
    capped = replace(plain, sharing="trunk-nic", nic_bps=(1e9,) * 4)
    sender, router = (compile_program(capped, node, ADDRESSES, "eth0") for node in (0, 4))
    forwarding = next(leaf for leaf in sender.leaves if leaf.minor == 3)
    assert (forwarding.delay_us, forwarding.rate_bps) == (0, 1_000_000_000)
    assert {minor for _, minor in sender.matches} == {2, 3}
    assert sender.classes[0].ceil_bps == 1_000_000_000
    (uncapped,) = compile_program(plain, 4, ADDRESSES, "eth0").leaves
    assert router.leaves == (replace(uncapped, limit_packets=router.leaves[0].limit_packets),)
    assert router.leaves[0].limit_packets < uncapped.limit_packets
