"""Warn about what netem cannot deliver (docs/netem-limits.md) before a network is shaped. Pure."""

from collections.abc import Iterator

from netbench.network.shaping.tc import TABLE_DEVIATIONS, frame_bytes
from netbench.scenario.model import Link, Network
from netbench.units import counted, format_bandwidth, format_percent, format_time

TABLE_STARTS = {"normal": 4.0, "uniform": 1.0, "pareto": 0.6667, "paretonormal": 1.5021}
"""Largest deviation below the mean of a jitter of 1, by distribution. Source: first values of the
tables of iproute2 6.1, divided by 8192."""


def network_warnings(network: Network, scale: float = 1.0) -> tuple[str, ...]:
    """Return one sentence per way in which packets will deviate from the links."""
    found: dict[str, str] = {}
    for src, row in zip(network.regions, network.links, strict=True):
        for dst, link in zip(network.regions, row, strict=True):
            for warning in _of_link(link, frame_bytes(network), scale):
                found.setdefault(warning, f"{src} -> {dst}" if src != dst else f"inside {src}")
    return tuple(f"{where}: {warning}" for warning, where in found.items())


def _of_link(link: Link, frame: int, scale: float) -> Iterator[str]:
    if link.jitter_correlation:
        yield (
            f"a jitter correlation of {format_percent(link.jitter_correlation, 3)} does nothing: "
            "netem draws the delays of successive packets independently anyway"
        )
    name = link.jitter_distribution
    if link.jitter_s / TABLE_DEVIATIONS[name] * TABLE_STARTS[name] > link.one_way_delay_s:
        yield (
            f"a jitter of {format_time(link.jitter_s, 3)} does not fit a delay of "
            f"{format_time(link.one_way_delay_s, 3)}: packets that would arrive before "
            "they were sent get no delay at all, which raises the mean"
        )
    if link.queue_packets and link.one_way_delay_s:
        most_bps = link.queue_packets * frame * 8 / link.one_way_delay_s
        if most_bps < link.bandwidth_bps / scale:
            yield (
                f"a queue of {counted(link.queue_packets, 'packet')} also holds packets in flight: "
                f"at {format_time(link.one_way_delay_s, 3)} it limits the rate to "
                f"{format_bandwidth(most_bps, 3)}"
            )
    per_packet = [x for x in link.impairments if x in ("loss", "duplication", "corruption")]
    if scale > 1 and per_packet:
        yield (
            f"{' and '.join(per_packet)} of packets: at scale {scale:g} a message has {scale:g} "
            "times fewer packets and is hit that much less often; use --scale 1"
        )
