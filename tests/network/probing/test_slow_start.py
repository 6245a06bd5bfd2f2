"""Slow start in closed form, against a segment-by-segment simulation and values by hand."""

from __future__ import annotations

import dataclasses
import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.network.probing.slow_start import (
    TcpPath,
    message_s,
    tcp_path,
    window_after,
    window_after_idle,
)
from netbench.scenario.model import Tcp
from tests.networks import two_regions

MIB = 1 << 20

PATH = TcpPath(
    one_way_s=0.05,
    rtt_s=0.1,
    segment_s=72.12e-6,  # 9015 bytes at 1 Gbit/s
    segment_bytes=8949,
    first_window=10,
    max_window=351,
    min_rto_s=0.2,
    restarts=True,
)


def by_segment_s(path: TcpPath, num_segments: int, window: int) -> float:
    """Simulate every segment and its acknowledgement; each lets one more segment go."""
    acknowledged: list[float] = []
    sent, in_flight, free_s, now_s, last_s = 0, 0, 0.0, 0.0, 0.0
    while sent < num_segments:
        while sent < num_segments and in_flight < window:
            start_s = max(now_s, free_s)
            free_s = start_s + path.segment_s
            last_s = free_s + path.one_way_s
            heapq.heappush(acknowledged, free_s + path.rtt_s)
            sent, in_flight = sent + 1, in_flight + 1
        if sent < num_segments:
            now_s = heapq.heappop(acknowledged)
            in_flight -= 1
            window = min(window + 1, path.max_window)
    return last_s


@given(
    num_segments=st.integers(1, 5000),
    rtt_s=st.sampled_from([0.001, 0.02, 0.1, 0.3]),
    window=st.sampled_from([10, 20, 160, 351]),
)
def test_it_agrees_with_a_simulation_of_every_segment(
    num_segments: int, rtt_s: float, window: int
) -> None:
    """Within the time of one window: in the simulation, bursts of a round spread a little."""
    path = dataclasses.replace(PATH, rtt_s=rtt_s, one_way_s=rtt_s / 2)
    expected_s = by_segment_s(path, num_segments, window)
    found_s = message_s(path, num_segments * path.segment_bytes, window)
    assert found_s == pytest.approx(expected_s, rel=0.08)


def test_a_message_of_one_window_takes_one_delay() -> None:
    assert message_s(PATH, 10 * 8949, 10) == pytest.approx(0.05 + 10 * 72.12e-6)


def test_rounds_double_until_the_window_fills_the_round_trip() -> None:
    """By hand: 10 + 20 + ... + 320 segments in six rounds of 100 ms, 308 of 938 in the seventh."""
    found_s = message_s(dataclasses.replace(PATH, max_window=10**6), 8 * MIB, 10)
    assert found_s == pytest.approx(6 * (0.1 + 72.12e-6) + 308 * 72.12e-6 + 0.05)


def test_the_largest_window_limits_a_long_transfer() -> None:
    """351 segments per round trip: 31.4 MB/s of 124 at 50 ms, as gloo had on AWS."""
    found_s = message_s(PATH, 1000 * MIB, 351)
    assert 1000 * MIB / found_s == pytest.approx(351 * 8949 / 0.1, rel=0.01)


def test_windows_halve_for_every_timeout_but_the_first() -> None:
    """RTO 0.3 s: 2 s hold six whole ones; 948 segments become 14, and never fewer than 10."""
    assert window_after_idle(PATH, 948, 2.0) == 948 >> 6
    assert window_after_idle(PATH, 948, 0.29) == 948
    assert window_after_idle(PATH, 948, 60.0) == 10
    assert window_after_idle(PATH, 4, 60.0) == 4
    steady = dataclasses.replace(PATH, restarts=False)
    assert window_after_idle(steady, 948, 60.0) == 948


def test_a_window_grows_by_the_segments_that_were_acknowledged() -> None:
    """10 + 938, as TCP_INFO showed in a guest after a cold message of 8 MiB."""
    assert window_after(dataclasses.replace(PATH, max_window=5616), 8 * MIB, 10) == 948
    assert window_after(PATH, 8 * MIB, 10) == 351


def test_paths_of_a_network() -> None:
    network = dataclasses.replace(two_regions(mtu_bytes=9001), tcp=Tcp(sockets=16))
    path = tcp_path(network, 0, 3)
    assert (path.one_way_s, path.rtt_s) == (0.011, 0.022)
    assert (path.segment_bytes, path.first_window, path.max_window) == (8949, 160, 16 * 351)
    assert path.segment_s == pytest.approx(8 * 9015 / 1.12e9)
    unlimited = dataclasses.replace(path, segment_s=0.0, rtt_s=0.0)
    assert math.isfinite(message_s(unlimited, MIB, 10))
