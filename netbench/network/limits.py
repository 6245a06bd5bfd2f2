"""What netem will not deliver as it was asked for, said before a network is shaped. Pure.

Why, and what was measured: docs/netem-limits.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from netbench.network.queues import frame_bytes
from netbench.network.tc import TABLE_DEVIATIONS
from netbench.scenario.model import Link, Network
from netbench.units import counted, format_bandwidth, format_percent, format_time

TABLE_STARTS = {"normal": 4.0, "uniform": 1.0, "pareto": 0.6667, "paretonormal": 1.5021}
"""How far below the mean a jitter of 1 reaches. Source: the first values of iproute2 6.1's tables,
over 8192."""


def cautions(network: Network, scale: float = 1.0) -> tuple[str, ...]:
    """One sentence per way in which packets will fare differently than the links say."""
    links = [
        (f"{src} -> {dst}" if src != dst else f"inside {src}", link)
        for src, row in zip(network.regions, network.links, strict=True)
        for dst, link in zip(network.regions, row, strict=True)
    ]
    found: dict[str, str] = {}
    for where, link in links:
        for caution in _of_link(link, frame_bytes(network), scale):
            found.setdefault(caution, where)
    return tuple(f"{where}: {caution}" for caution, where in found.items())


def _of_link(link: Link, frame: int, scale: float) -> Iterator[str]:
    if link.jitter_correlation:
        yield (
            f"a jitter correlation of {format_percent(link.jitter_correlation, 3)} does nothing: "
            "netem draws the delays of neighbours independently all the same"
        )
    if link.jitter_s and _is_cut(link):
        yield (
            f"a jitter of {format_time(link.jitter_s, 3)} does not fit a delay of "
            f"{format_time(link.one_way_delay_s, 3)}: packets that would have to arrive before "
            "they were sent get no delay at all, and the mean is longer"
        )
    if link.queue_packets and link.one_way_delay_s:
        most_bps = link.queue_packets * frame * 8 / link.one_way_delay_s
        if most_bps < link.bandwidth_bps / scale:
            yield (
                f"a queue of {counted(link.queue_packets, 'packet')} holds those on the way too: "
                f"at {format_time(link.one_way_delay_s, 3)} no more than "
                f"{format_bandwidth(most_bps, 3)} get through"
            )
    per_packet = [
        name for name in link.disturbances if name in ("loss", "duplication", "corruption")
    ]
    if scale > 1 and per_packet:
        yield (
            f"{' and '.join(per_packet)} of packets: at scale {scale:g} a message has {scale:g} "
            "times fewer packets, and is spared as often; use --scale 1"
        )


def _is_cut(link: Link) -> bool:
    """Whether the distribution reaches below no delay."""
    name = link.jitter_distribution
    reach_s = link.jitter_s / TABLE_DEVIATIONS[name] * TABLE_STARTS[name]
    return reach_s > link.one_way_delay_s
