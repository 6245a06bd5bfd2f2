"""Time of a message over one TCP connection without loss: slow start in closed form. Pure.

Source: Cardwell, Savage and Anderson, "Modeling TCP Latency" (INFOCOM 2000), section III.A, without
loss and with windows that double in a round trip, because Linux counts acknowledged segments. After
idle time: `tcp_cwnd_restart` in Linux's net/ipv4/tcp_output.c.
"""

import math
from dataclasses import dataclass

from netbench.network.shaping.segments import (
    first_window_segments,
    goodput_ratio,
    segment_bytes,
    window_segments,
)
from netbench.scenario.model import Network
from netbench.scenario.sharing import flow_bps

TICK_S = 0.01
"""A tick of the guest kernel's timers, seconds (CONFIG_HZ=100)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TcpPath:
    """A connection over an idle path, at full size.

    segment_s: seconds that a full segment occupies the link. windows are in segments.
    """

    one_way_s: float
    rtt_s: float
    segment_s: float
    segment_bytes: int
    first_window: int
    max_window: int
    min_rto_s: float
    restarts: bool


def tcp_path(network: Network, src: int, dst: int) -> TcpPath:
    """Return the path between two nodes of a network in which TCP acts."""
    there, back = network.link(src, dst), network.link(dst, src)
    payload_bps = flow_bps(network, src, dst) * goodput_ratio(network.mtu_bytes)
    return TcpPath(
        one_way_s=there.one_way_delay_s,
        rtt_s=there.one_way_delay_s + back.one_way_delay_s,
        segment_s=8 * segment_bytes(network) / payload_bps,
        segment_bytes=segment_bytes(network),
        first_window=first_window_segments(network),
        max_window=window_segments(network, src, dst),
        min_rto_s=network.tcp.min_rto_s,
        restarts=network.tcp.slow_start_after_idle,
    )


def message_s(path: TcpPath, size_bytes: float, window: int) -> float:
    """Return the seconds from the first segment's sending to the last one's arrival.

    window: of the sender at the start, segments. A window that does not fill the round trip is
    followed by a pause, and the next is twice as large. One that fills it keeps the link busy.
    """
    left, elapsed_s = math.ceil(size_bytes / path.segment_bytes), 0.0
    round_s = path.rtt_s + path.segment_s
    while left > window and window * path.segment_s < round_s:
        left -= window
        elapsed_s += round_s
        window = min(2 * window, path.max_window)
    return elapsed_s + left * path.segment_s + path.one_way_s


def window_after(path: TcpPath, size_bytes: float, window: int) -> int:
    """Return the window after a message: one more segment for each that was acknowledged."""
    return min(window + math.ceil(size_bytes / path.segment_bytes), path.max_window)


def window_after_idle(path: TcpPath, window: int, idle_s: float) -> int:
    """Return the window of a connection that has sent nothing for `idle_s`.

    It is halved for every retransmission timeout, but the first, down to the first window. The
    kernel counts both times in ticks.
    """
    if not path.restarts:
        return window
    timeout_ticks = math.ceil((path.rtt_s + path.min_rto_s) / TICK_S)
    halvings = max(0, math.ceil(math.floor(idle_s / TICK_S) / timeout_ticks) - 1)
    return max(window >> halvings, min(path.first_window, window))
