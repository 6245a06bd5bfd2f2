"""What a transport does beside the links it runs over: libraries, sockets, TCP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportProfile:
    """One communication library over TCP on a host.

    header_bytes, ethernet_bytes: IPv4 + TCP + timestamps inside the MTU, and Ethernet beside it.
    inside_node_bps: between two GPUs of one node. host_bps: what one process moves through its
    sockets at most, bit/s. sockets: parallel ones per connection, each with a first window of
    `first_window_segments`. retransmission_s: idle longer than the round trip and this, a
    connection starts slowly again. fifo_bytes, window_bytes, window_factor: a side of a connection
    buffers fifo + window bytes + factor x rate x round trip.
    """

    header_bytes: int = 52
    ethernet_bytes: int = 14
    inside_node_bps: float = 100e9
    host_bps: float = 9.42e9
    sockets: int = 16
    first_window_segments: int = 10
    retransmission_s: float = 0.2
    fifo_bytes: int = 1 << 20
    window_bytes: int = 1 << 20
    window_factor: float = 2.0
