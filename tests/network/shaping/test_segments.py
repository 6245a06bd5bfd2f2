"""Networks divided with their segments: sizes in segments and payload rates stay as they are."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.network.probing.samples import sample_links, transfer_bytes
from netbench.network.probing.slow_start import tcp_path
from netbench.network.shaping.program import compile_programs, sysctls
from netbench.network.shaping.segments import (
    MIN_SEGMENT_BYTES,
    divided,
    goodput_ratio,
    in_fine_segments,
    largest_scale,
    largest_window_segments,
    max_window_segments,
    on_testbed,
    packet_segments,
    segment_bytes,
    window_segments,
    windows,
)
from netbench.scenario.model import Network, Tcp
from netbench.scenario.sharing import flow_bps, is_window_limited, joint_bps
from tests.networks import ADDRESSES, FAR, two_regions

MIB = 1 << 20


def acting(mtu_bytes: int = 9001, *, sockets: int = 1, **tcp: object) -> Network:
    network = two_regions(mtu_bytes=mtu_bytes)
    return dataclasses.replace(network, tcp=Tcp(sockets=sockets, **tcp))  # type: ignore[arg-type]


def test_at_scale_16_a_jumbo_frame_has_a_segment_of_559_bytes() -> None:
    """MTU 9001, MSS 8949 (RFC 6691, with timestamps): 8949 / 16 = 559.3."""
    small = divided(acting(), 16.0)
    assert segment_bytes(small) == 559
    assert small.mtu_bytes == 559 + 52
    assert packet_segments(small) == packet_segments(acting()) == 65536 // 8949


@given(scale=st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]))
def test_payload_rates_are_divided_exactly(scale: float) -> None:
    """The rate on the wire times payload over frame: RFC 1191's MTU, 14 bytes of Ethernet."""
    full, small = acting(), divided(acting(), scale)
    for old_row, new_row in zip(full.links, small.links, strict=True):
        for old, new in zip(old_row, new_row, strict=True):
            payload_bps = old.bandwidth_bps * (9001 - 52) / (9001 + 14)
            mtu = small.mtu_bytes
            assert new.bandwidth_bps * (mtu - 52) / (mtu + 14) == pytest.approx(payload_bps / scale)
            assert new.one_way_delay_s == old.one_way_delay_s


@given(scale=st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]))
def test_a_message_and_the_windows_keep_their_number_of_segments(scale: float) -> None:
    """8 MiB are 938 segments of 8949 bytes; half of 6 MiB are 351."""
    small = divided(acting(), scale)
    segments = math.ceil(8 * MIB / scale / segment_bytes(small))
    assert segments == pytest.approx(938, abs=2)
    assert max_window_segments(small) == pytest.approx(351, abs=1)
    found = windows(small)
    assert found is not None
    assert found.first_segments == 10


def test_the_sockets_of_a_library_multiply_windows() -> None:
    """NCCL has 16 per connection on AWS; an emulated connection stands for all."""
    found = windows(divided(acting(sockets=16), 32.0))
    assert found is not None
    assert (found.first_segments, found.loopback_mtu_bytes) == (160, 2048)
    assert found.most_segments == pytest.approx(16 * 351, abs=16)


def test_the_send_buffer_limits_the_window_too() -> None:
    assert max_window_segments(acting(send_buffer_bytes=MIB)) == MIB // 8949
    assert Tcp().max_window_bytes == 3 * MIB


@pytest.mark.parametrize(("mtu", "scale"), [(9001, 32.0), (1500, 4.0), (576, 2.0), (300, 1.0)])
def test_the_largest_scale_leaves_segments_of_256_bytes(mtu: int, scale: float) -> None:
    network = acting(mtu)
    assert largest_scale(network) == scale
    assert scale == 1 or segment_bytes(divided(network, scale)) >= MIN_SEGMENT_BYTES
    assert segment_bytes(network) / (2 * scale) < MIN_SEGMENT_BYTES


def test_a_network_without_tcp_keeps_its_frames() -> None:
    """Today's scale: the testbed divides rates, and nothing else."""
    network = two_regions(mtu_bytes=9001)
    assert on_testbed(network, 1000.0) == (network, 1000.0)
    assert windows(network) is None
    built, scale = on_testbed(acting(), 32.0)
    assert scale == 1.0
    assert built.mtu_bytes == 280 + 52


def test_settings_of_tcp_that_acts_are_those_of_the_machines() -> None:
    """Nothing is kept from acting: cubic, restarts after idle time, timeouts of 200 ms."""
    found = sysctls(divided(acting(), 16.0))
    assert found["net.ipv4.tcp_congestion_control"] == "cubic"
    assert found["net.ipv4.tcp_slow_start_after_idle"] == "1"
    assert found["net.ipv4.tcp_rto_min_us"] == "200000"
    assert "net.ipv4.tcp_early_retrans" not in found
    other = sysctls(acting(congestion="bbr", slow_start_after_idle=False, min_rto_s=0.05))
    assert other["net.ipv4.tcp_congestion_control"] == "bbr"
    assert other["net.ipv4.tcp_slow_start_after_idle"] == "0"
    assert other["net.ipv4.tcp_rto_min_us"] == "50000"


def test_buffers_hold_more_than_the_largest_window() -> None:
    """Receive buffers must never limit what the windows of the routes allow."""
    for scale in (1.0, 16.0, 32.0):
        network = divided(acting(sockets=16), scale)
        window = max_window_segments(network) * segment_bytes(network)
        found = sysctls(network)
        receive, send = (int(found[f"net.ipv4.tcp_{name}"].split()[2]) for name in ("rmem", "wmem"))
        assert receive >= 4 * window
        assert send >= 2 * window


def test_packets_of_many_segments_stay_as_long_in_time() -> None:
    """7 jumbo frames at once, at every scale: netem delays them as one."""
    for scale in (1.0, 16.0, 32.0):
        programs = compile_programs(divided(acting(), scale), ADDRESSES, "eth0")
        assert {program.max_segments for program in programs} == {7}


def test_goodput_of_standard_frames() -> None:
    assert goodput_ratio(1500) == pytest.approx(1448 / 1514)
    assert FAR.bandwidth_bps * goodput_ratio(1500) == pytest.approx(1.0711e9, rel=1e-4)


def windowed(scale: float = 1.0, nic_bps: float = 5e9) -> Network:
    """Two regions whose links one connection fills at 1.12 Gbit/s, with NICs of 5 Gbit/s."""
    network = two_regions(sharing="nic", nic_bps=nic_bps)
    return divided(dataclasses.replace(network, tcp=Tcp(limits_links=True)), scale)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_a_window_limits_a_link_that_is_slower_than_the_nic(scale: float) -> None:
    """1.12 Gbit/s on the wire for 22 ms are 2034 segments of 1514 bytes, at every scale."""
    network = windowed(scale)
    found = windows(network)
    assert found is not None
    assert set(found.pairs) == {(0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (3, 0), (2, 1), (3, 1)}
    expected = FAR.bandwidth_bps * 0.022 / 8 / 1514
    assert list(found.pairs.values()) == [pytest.approx(expected, abs=2)] * 8
    assert largest_window_segments(network) == max([*found.pairs.values(), found.most_segments])


def test_a_link_with_a_window_has_the_rate_of_the_nic() -> None:
    """Packets leave as fast as the NIC sends; a connection gets the rate of the link."""
    network = windowed()
    assert flow_bps(network, 0, 2) == 5e9
    assert joint_bps(network, [(0, 2)]) == FAR.bandwidth_bps
    (program, *_) = compile_programs(network, ADDRESSES, "eth0")
    assert {leaf.rate_bps for leaf in program.leaves} == {5_000_000_000}
    assert tcp_path(network, 0, 2).max_window == window_segments(network, 0, 2)


def test_nothing_is_limited_by_a_window_without_a_faster_nic() -> None:
    """Nor where the first window already fills the round trip, or TCP does not act."""
    for network in (windowed(nic_bps=1e9), windowed(nic_bps=math.inf)):
        found = windows(network)
        assert found is not None
        assert not found.pairs
    near = dataclasses.replace(FAR, one_way_delay_s=1e-6)
    short = two_regions(across=near, sharing="nic", nic_bps=5e9)
    assert not is_window_limited(dataclasses.replace(short, tcp=Tcp(limits_links=True)), 0, 2)
    assert not is_window_limited(two_regions(sharing="nic", nic_bps=5e9), 0, 2)


def test_a_transfer_over_a_link_with_a_window_is_timed_over_whole_windows() -> None:
    """A burst per round trip: else the time of a part of a burst would count as a round trip."""
    network = windowed()
    samples = sample_links(network)
    assert not [sample for sample in samples if sample.kind == "nic"]
    (far,) = [each for each in samples if (each.src, each.dsts) == (0, (2,))]
    _, measured = transfer_bytes(network, far, 1.0)
    window_bytes = window_segments(network, 0, 2) * segment_bytes(network)
    assert measured % window_bytes == 0
    assert measured >= 2 * window_bytes


@pytest.mark.parametrize(("scale", "mtu_bytes"), [(1.0, 9001), (64.0, 9001), (1000.0, 625)])
def test_messages_behind_a_shared_nic_keep_several_segments(scale: float, mtu_bytes: int) -> None:
    """At scale 1000 a segment is as small as at 64; payload rates stay, and delays."""
    network = two_regions(num_nodes=4, sharing="nic", nic_bps=25e9, mtu_bytes=9001)
    built = in_fine_segments(network, scale)
    assert built.mtu_bytes == mtu_bytes
    payload_bps = [each.nic_bps[0] * goodput_ratio(each.mtu_bytes) for each in (network, built)]
    assert payload_bps[0] == pytest.approx(payload_bps[1])
    assert built.links[0][1].one_way_delay_s == network.links[0][1].one_way_delay_s
    paired = dataclasses.replace(network, sharing="pair")
    assert in_fine_segments(paired, scale) == paired


def test_windows_limit_nothing_behind_a_shared_nic_where_tcp_does_not_act() -> None:
    """A window per round trip would be the rate of a paced connection."""
    free = windows(two_regions(num_nodes=4, sharing="nic", nic_bps=25e9))
    assert free is not None
    assert free.first_segments == free.most_segments > 10_000
    assert windows(two_regions(num_nodes=4, sharing="pair")) is None
