"""Divide a network and its segments, so that TCP acts in it as at full size. Pure.

Bytes and rates divided by a scale leave the times of transfers as they are, but not TCP: a message
of 8 MiB divided by 1000 is six segments, which the first window holds. Here the MTU is divided too.
A message has as many segments as at full size, and a window in segments lasts as long. So slow
start, idle restarts and timeouts happen when they would. Headers keep their size and weigh more in
small frames. The rate on the wire is raised by as much, so that payload rates are right.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from netbench.network.shaping.tc import ETHERNET_HEADER_BYTES, TCP_HEADER_BYTES
from netbench.scenario.model import Link, Network, Tcp
from netbench.scenario.sharing import SHARING, is_window_limited, round_trip_s

MIN_SEGMENT_BYTES = 256
"""Smallest segment that a scale is chosen for. An acknowledgement takes 66 bytes of the link
back."""

LEAST_SEGMENT_BYTES = 48
"""Smallest segment that Linux sends (TCP_MIN_SND_MSS, net/tcp.h)."""


def segment_bytes(network: Network) -> int:
    """Return the payload of a full segment."""
    return network.mtu_bytes - TCP_HEADER_BYTES


def goodput_ratio(mtu_bytes: int) -> float:
    """Return TCP payload per byte that a qdisc counts, for full segments: 1448/1514 at 1500."""
    return (mtu_bytes - TCP_HEADER_BYTES) / (mtu_bytes + ETHERNET_HEADER_BYTES)


def largest_scale(network: Network) -> float:
    """Return the largest power of two that leaves segments of `MIN_SEGMENT_BYTES` or more."""
    return float(2 ** max(0, math.floor(math.log2(segment_bytes(network) / MIN_SEGMENT_BYTES))))


FINE_SCALE = 64.0
"""Scale from which segments are divided where nodes share a NIC, though TCP does not act. A message
of one segment would pass as a whole, and keep others waiting that a NIC serves between its
segments."""

FREE_WINDOW_SEGMENTS = 1 << 14
"""Window of a connection that nothing shall limit."""

FINE_SEGMENT_BYTES = 512
"""Smallest of these segments."""


def on_testbed(network: Network, scale: float) -> tuple[Network, float]:
    """Return what a testbed builds: a network, and the scale that still divides its rates.

    If TCP acts, all is divided already and the scale is 1.
    """
    return (divided(network, scale), 1.0) if network.tcp.acts else (network, scale)


def in_fine_segments(network: Network, scale: float) -> Network:
    """Return the network with segments as small as at `FINE_SCALE`, if its NICs are shared and TCP
    does not act.

    Rates grow with the weight of headers, so that payload rates are the same.
    """
    segment = segment_bytes(network)
    fine = max(FINE_SEGMENT_BYTES, round(segment * FINE_SCALE / scale))
    if network.tcp.acts or not SHARING[network.sharing].has_nics or fine >= segment:
        return network
    return _in_segments(network, fine, 1.0)


def divided(network: Network, scale: float) -> Network:
    """Return the network with rates, segments and TCP's sizes in bytes divided by `scale`."""
    segment = max(LEAST_SEGMENT_BYTES, round(segment_bytes(network) / scale))
    return replace(_in_segments(network, segment, scale), tcp=_divided_tcp(network.tcp, scale))


def _in_segments(network: Network, segment: int, scale: float) -> Network:
    """Return the network with segments of this payload, and payload rates divided by `scale`."""
    mtu_bytes = segment + TCP_HEADER_BYTES
    factor = goodput_ratio(network.mtu_bytes) / goodput_ratio(mtu_bytes) / scale
    return replace(
        network,
        links=tuple(tuple(_slower(link, factor) for link in row) for row in network.links),
        nic_bps=tuple(bps * factor for bps in network.nic_bps),
        mtu_bytes=mtu_bytes,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """Windows of TCP as metrics of a node's routes, in segments, and the MTU of its loopback.

    pairs: (source, destination) -> the largest window, where it is not `most_segments`.
    """

    first_segments: int
    most_segments: int
    loopback_mtu_bytes: int
    pairs: Mapping[tuple[int, int], int] = field(default_factory=dict)


def windows(network: Network) -> Windows | None:
    """Return the windows of a network as it is built, None where they are the kernel's own.

    Where TCP does not act and nodes share a NIC, windows are free. A connection that has a rate
    (`trainers.communication.sockets`) sends at no more than its window per round trip.
    """
    if not network.tcp.acts:
        if not SHARING[network.sharing].has_nics:
            return None
        free = FREE_WINDOW_SEGMENTS
        loopback = network.tcp.packet_bytes
        return Windows(first_segments=free, most_segments=free, loopback_mtu_bytes=loopback)
    return Windows(
        first_segments=first_window_segments(network),
        most_segments=max_window_segments(network),
        loopback_mtu_bytes=network.tcp.packet_bytes,
        pairs={
            (src, dst): window_segments(network, src, dst)
            for src in range(network.num_nodes if network.tcp.limits_links else 0)
            for dst in range(network.num_nodes)
            if src != dst and is_window_limited(network, src, dst)
        },
    )


def max_window_segments(network: Network) -> int:
    """Return the largest window of a connection of an emulation that its link does not limit, in
    segments."""
    tcp = network.tcp
    return tcp.sockets * max(tcp.initial_window, tcp.max_window_bytes // segment_bytes(network))


def window_segments(network: Network, src: int, dst: int) -> int:
    """Return the largest window of a connection from node `src` to node `dst`, in segments.

    If it limits the link, it is what the link's rate carries in a round trip.
    """
    if not is_window_limited(network, src, dst):
        return max_window_segments(network)
    payload_bps = network.link(src, dst).bandwidth_bps * goodput_ratio(network.mtu_bytes)
    return round(payload_bps * round_trip_s(network, src, dst) / 8 / segment_bytes(network))


def largest_window_segments(network: Network) -> int:
    """Return the largest window between any two nodes, in segments."""
    found = windows(network)
    pairs = {} if found is None else found.pairs
    return max(max_window_segments(network), max(pairs.values(), default=0))


def first_window_segments(network: Network) -> int:
    """Return the first window of a connection of an emulation, in segments."""
    return network.tcp.sockets * network.tcp.initial_window


def packet_segments(network: Network) -> int:
    """Return the number of segments that TCP hands over as one packet, at most."""
    return max(1, network.tcp.packet_bytes // segment_bytes(network))


def _slower(link: Link, factor: float) -> Link:
    return replace(link, bandwidth_bps=link.bandwidth_bps * factor)


def _divided_tcp(tcp: Tcp, scale: float) -> Tcp:
    return replace(
        tcp,
        send_buffer_bytes=math.ceil(tcp.send_buffer_bytes / scale),
        receive_buffer_bytes=math.ceil(tcp.receive_buffer_bytes / scale),
        packet_bytes=math.ceil(tcp.packet_bytes / scale),
    )
