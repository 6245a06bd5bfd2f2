"""Networks divided with their segments: sizes in segments and payload rates stay as they are."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.network.shaping.program import compile_programs, sysctls
from netbench.network.shaping.segments import (
    MIN_SEGMENT_BYTES,
    divided,
    goodput_ratio,
    largest_scale,
    max_window_segments,
    on_testbed,
    packet_segments,
    segment_bytes,
    windows,
)
from netbench.scenario.model import Network, Tcp
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
