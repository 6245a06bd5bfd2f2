"""Choose the links to measure, those that run at once, and how much each sends. Pure."""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from netbench.network.probing.packet_trains import PacketTrain, plan_trains
from netbench.network.shaping.segments import segment_bytes, window_segments
from netbench.network.shaping.tc import frame_bytes
from netbench.scenario.model import Link, Network
from netbench.scenario.sharing import (
    Place,
    Queues,
    fair_bps,
    flow_bps,
    is_window_limited,
    nic_caps_bps,
)

WARMUP_BDPS = 6
"""Bandwidth-delay products sent before timing starts: slow start sends about 2."""

MEASURED_BDPS = 2
MEASURED_S = 0.05
MEASURED_FRAMES = 300
MAX_SHARED_FLOWS = 8
LEAST_SHARED_FLOWS = {Place.SENDER: 2, Place.ROUTER: 4, Place.RECEIVER: 2}
_OWNERS = {Place.SENDER: "src", Place.RECEIVER: "dst"}  # column of the node that a queue is at

TRAIN_TOLERANCE = 0.05
"""Relative random error of a figure of a packet train; it determines the number of packets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSample:
    """One measurement: delays from `src` to `dsts`, then transfers to all of them at once.

    kind: `link` measures one link of its class; the name of the network's `sharing` stands for
    what several flows share. srcs: the source of each of `dsts`, if it is not always `src`.
    streams: if above 1, a link is also measured with this many connections.
    thorough: measure jitter and loss even where none is expected.
    ingress: NICs limit what nodes receive, too.
    """

    kind: str
    src: int
    dsts: tuple[int, ...]
    srcs: tuple[int, ...] = ()
    streams: int = 1
    thorough: bool = False
    ingress: bool = False

    @property
    def flows(self) -> tuple[tuple[int, int], ...]:
        """(source, destination) of every transfer."""
        return tuple(zip(self.srcs or (self.src,) * len(self.dsts), self.dsts, strict=True))

    @property
    def connections(self) -> tuple[int, ...]:
        """Connections per flow, by transfer."""
        return (1, self.streams) if self.streams > 1 else (1,)

    @property
    def sources(self) -> tuple[int, ...]:
        """Sources without duplicates."""
        return tuple(dict.fromkeys(src for src, _ in self.flows))

    @property
    def nodes(self) -> tuple[int, ...]:
        """Participating nodes without duplicates."""
        return tuple(dict.fromkeys(node for flow in self.flows for node in flow))


def sample_links(
    network: Network, per_class: int = 1, streams: int = 1, *, ingress: bool = False
) -> tuple[LinkSample, ...]:
    """Sample `per_class` links of every pair of regions, and what links share.

    Pairs are directed and include the inside of each region. Of shared queues, all at routers and
    one of those that differ only in the node they are at are sampled. The choice is deterministic
    and uses nodes evenly, so that samples can run at once. streams, ingress: see `LinkSample`.
    """
    samples = (*_link_samples(network, per_class, streams), *_shared_samples(network, ingress))
    return tuple(replace(sample, ingress=ingress) for sample in samples)


def all_pairs(network: Network, streams: int = 1) -> tuple[LinkSample, ...]:
    """Sample every ordered pair of nodes thoroughly, and what is shared.

    The order is that of a round-robin tournament, which minimises the number of `rounds`.
    """
    size = network.num_nodes + network.num_nodes % 2
    ring = list(range(size))
    pairs: list[tuple[int, int]] = []
    for _ in range(size - 1):
        meeting = [(ring[i], ring[-1 - i]) for i in range(size // 2)]
        meeting = [pair for pair in meeting if max(pair) < network.num_nodes]
        pairs += [*meeting, *((b, a) for a, b in meeting)]
        ring[1:] = [ring[-1], *ring[1:-1]]
    samples = tuple(
        LinkSample(kind="link", src=src, dsts=(dst,), streams=streams, thorough=True)
        for src, dst in pairs
    )
    shared = (sample for sample in sample_links(network) if sample.kind != "link")
    return (*samples, *shared)


def rounds(samples: Sequence[LinkSample], network: Network) -> tuple[tuple[LinkSample, ...], ...]:
    """Group samples that can run at the same time.

    A node, or a queue at a router, is in each round once: acknowledgements share the link back.
    """
    planned: list[tuple[list[LinkSample], set[Hashable]]] = []
    for sample in samples:
        used = _used(sample, network)
        for members, busy in planned:
            if not busy & used:
                members.append(sample)
                busy |= used
                break
        else:
            planned.append(([sample], used))
    return tuple(tuple(members) for members, _ in planned)


def _used(sample: LinkSample, network: Network) -> set[Hashable]:
    """Return what no other sample may use: nodes, and queues at routers in either direction."""
    src, dst = np.array([*sample.flows, *((dst, src) for src, dst in sample.flows)]).T
    used: set[Hashable] = set(sample.nodes)
    for queues in Queues(network).between(src, dst):
        if queues.kind.place is Place.ROUTER:
            used |= set(queues.ids(queues.passes))
    return used


def transfer_bytes(
    network: Network,
    sample: LinkSample,
    scale: float,
    streams: int = 1,
    measured_s: float = MEASURED_S,
) -> tuple[int, int]:
    """Return bytes per connection to send for warm-up and for timing; 0, 0 for no transfer.

    streams: connections per flow. measured_s: shortest timed interval, seconds.
    """
    total_bps = expected_rate_bps(network, sample)
    if total_bps is None:
        return 0, 0
    num_flows = len(sample.dsts) * streams
    bytes_per_s = total_bps / scale / 8 / num_flows
    delays_s = [link.one_way_delay_s for link in both_ways(network, sample)]
    rtt_s = max(there + back for there, back in zip(delays_s[::2], delays_s[1::2], strict=True))
    least = MEASURED_FRAMES * frame_bytes(network)
    warmup = max(WARMUP_BDPS * bytes_per_s * rtt_s, least)
    measured = max(MEASURED_BDPS * bytes_per_s * rtt_s, measured_s * bytes_per_s, least)
    # Several flows do not end together, so they are timed while all are active. Connections of one
    # pair of nodes alternate in larger pieces: 8 of them were 0.5% off with 3 times the bytes.
    longer = 1 if num_flows == 1 else 3 if streams == 1 else 8
    src, dst = sample.flows[0]
    if num_flows == 1 and is_window_limited(network, src, dst):
        # Bytes come in a burst per round trip: whole windows end at the same place in a burst.
        window_bytes = window_segments(network, src, dst) * segment_bytes(network)
        return math.ceil(warmup), math.ceil(measured / window_bytes) * window_bytes
    return math.ceil(warmup), math.ceil(measured * longer)


def planned_trains(network: Network, sample: LinkSample, scale: float) -> tuple[PacketTrain, ...]:
    """Return the packet trains of a sample; only links have any."""
    if sample.kind != "link":
        return ()
    src, dst = sample.src, sample.dsts[0]
    cap_bps = nic_caps_bps(network)[dst] if sample.ingress else math.inf
    rate_bps = min(flow_bps(network, src, dst), cap_bps) / scale
    return plan_trains(network.link(src, dst), rate_bps, TRAIN_TOLERANCE, sample.thorough)


def expected_rate_bps(network: Network, sample: LinkSample) -> float | None:
    """Return the rate that all flows of a sample get together, bit/s, unscaled.

    None for unlimited links, and for links that lose or reorder packets, which slow TCP down.
    """
    rate_bps = sum(fair_bps(network, sample.flows, ingress=sample.ingress))
    is_disturbed = any(map(_disturbs_tcp, both_ways(network, sample)))
    return None if math.isinf(rate_bps) or is_disturbed else rate_bps


def both_ways(network: Network, sample: LinkSample) -> list[Link]:
    """Return the links of all flows, each with the link back."""
    return [network.link(*ends) for src, dst in sample.flows for ends in ((src, dst), (dst, src))]


def _disturbs_tcp(link: Link) -> bool:
    """Return whether a link loses, duplicates or delays packets beyond the effect of its rate."""
    disturbed = link.mean_loss or link.duplication or link.reordering or link.queue_packets
    return bool(disturbed) or (link.jitter_reorders and link.jitter_s > 0)


def _link_samples(network: Network, per_class: int, streams: int) -> Iterator[LinkSample]:
    uses = [0] * network.num_nodes
    members: list[list[int]] = [[] for _ in network.regions]
    for node, region in enumerate(network.node_regions):
        members[region].append(node)
    for sources in members:
        for targets in members:
            pairs = [(src, dst) for src in sources for dst in targets if src != dst]
            for _ in range(min(per_class, len(pairs))):
                src, dst = min(pairs, key=lambda pair: (uses[pair[0]] + uses[pair[1]], pair))
                pairs.remove((src, dst))
                uses[src] += 1
                uses[dst] += 1
                yield LinkSample(kind="link", src=src, dsts=(dst,), streams=streams)


def _shared_samples(network: Network, ingress: bool) -> Iterator[LinkSample]:
    """Sample several flows at once of every queue that has a rate and more than one pair."""
    src, dst = np.nonzero(~np.eye(network.num_nodes, dtype=bool))
    for queues in Queues(network).between(src, dst):
        kind = queues.kind
        is_absent = kind.place is Place.RECEIVER and not ingress
        if is_absent or {"src", "dst"} <= set(kind.by):
            continue
        passing = np.flatnonzero(queues.passes & np.isfinite(queues.bps))
        if network.tcp.limits_links:  # windows keep flows from filling what they share
            ends = zip(src[passing].tolist(), dst[passing].tolist(), strict=True)
            passing = passing[[not is_window_limited(network, *pair) for pair in ends]]
        pairs: dict[tuple[object, ...], list[int]] = {}
        for pair, queue in zip(passing.tolist(), queues.ids(passing), strict=True):
            pairs.setdefault(queue, []).append(pair)
        sampled: set[Hashable] = set()
        for queue, members in pairs.items():
            bps = float(queues.bps[members[0]])
            named = zip(kind.by, queue[1:], strict=True)
            owner = _OWNERS.get(kind.place, "src")
            alike = (kind.place, bps, *(value for column, value in named if column != owner))
            senders, takers = np.unique(src[members]).tolist(), np.unique(dst[members]).tolist()
            if alike in sampled or len(members) == 1:
                continue
            sampled.add(alike)
            if ingress:
                senders, takers = (_fastest(network, nodes) for nodes in (senders, takers))
            if ingress and len(senders) * len(takers) == 1:
                continue
            flows = _filling(network, senders, takers, bps, LEAST_SHARED_FLOWS[kind.place])
            yield LinkSample(
                kind=network.sharing,
                src=flows[0][0],
                srcs=() if kind.place is Place.SENDER else tuple(src for src, _ in flows),
                dsts=tuple(dst for _, dst in flows),
            )


def _fastest(network: Network, nodes: list[int]) -> list[int]:
    """Return the nodes with the fastest NIC of them. Its rate fills queues, and flows at unequal
    rates would not be under way together."""
    caps_bps = [nic_caps_bps(network)[node] for node in nodes]
    return [node for node, cap in zip(nodes, caps_bps, strict=True) if cap == max(caps_bps)]


def _filling(
    network: Network, senders: list[int], takers: list[int], rate_bps: float, least: int
) -> list[tuple[int, int]]:
    """Return at least `least` flows, and as many more as can exceed the rate of their queue."""
    takers = sorted(takers, key=lambda dst: -network.link(senders[0], dst).bandwidth_bps)
    flows: list[tuple[int, int]] = []
    wanted_bps = 0.0
    for i in range(min(MAX_SHARED_FLOWS, max(len(senders), len(takers)))):
        if i >= least and wanted_bps >= rate_bps:
            break
        flows.append((senders[i % len(senders)], takers[i % len(takers)]))
        wanted_bps += network.link(*flows[-1]).bandwidth_bps
    return flows
