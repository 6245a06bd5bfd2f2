"""Which links to measure, what runs at the same time, and how much each sends. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from netbench.network.queues import destination_groups, egress_cap_bps, frame_bytes, link_bps
from netbench.network.trains import Train, plan_trains
from netbench.scenario.model import Link, Network

WARMUP_BDPS = 6
"""Bandwidth-delay products sent before the clock starts: slow start sends about 2."""

MEASURED_BDPS = 2
MEASURED_S = 0.05
MEASURED_FRAMES = 300
MAX_NIC_FLOWS = 8
MAX_TRUNK_FLOWS = 4

TRAIN_TOLERANCE = 0.05
"""What chance may add to a figure of a train, relative; it decides how many packets are sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One measurement: delays from `src` to `dsts`, then transfers to all of them at once.

    kind: `link` one link of its class; `class`, `nic`, `trunk` what several destinations share.
    srcs: the source for each of `dsts`, where it is not always `src`.
    streams: of a link, transferred by so many connections too, when more than one.
    thorough: jitter and loss are measured even where none is expected.
    """

    kind: str
    src: int
    dsts: tuple[int, ...]
    srcs: tuple[int, ...] = ()
    streams: int = 1
    thorough: bool = False

    @property
    def flows(self) -> tuple[tuple[int, int], ...]:
        """(source, destination) of every transfer."""
        return tuple(zip(self.srcs or (self.src,) * len(self.dsts), self.dsts, strict=True))

    @property
    def sources(self) -> tuple[int, ...]:
        """Every source once."""
        return tuple(dict.fromkeys(src for src, _ in self.flows))

    @property
    def nodes(self) -> tuple[int, ...]:
        """Every node that takes part, once."""
        return tuple(dict.fromkeys(node for flow in self.flows for node in flow))


def sample_links(network: Network, per_class: int = 1, streams: int = 1) -> tuple[Sample, ...]:
    """`per_class` links of every class (source region, destination region), so both directions
    and the inside of each region; then what is shared: one sample per distinct class rate and
    per distinct NIC cap, and per trunk. Deterministic; nodes are used evenly, so that samples can
    run at once. streams: of the links.
    """
    uses = [0] * network.num_nodes
    links = _link_samples(network, per_class, uses)
    samples = [replace(sample, streams=streams) for sample in links]
    if network.sharing == "class":
        samples += _class_samples(network)
    if network.sharing == "nic":
        samples += _nic_samples(network)
    if network.sharing == "trunk":
        samples += _trunk_samples(network)
    return tuple(samples)


def all_pairs(network: Network, streams: int = 1) -> tuple[Sample, ...]:
    """Every ordered pair of nodes as a thorough sample of its own, and what is shared.

    In the order of a round-robin tournament, so that `rounds` makes as few of them as there can be.
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
        Sample(kind="link", src=src, dsts=(dst,), streams=streams, thorough=True)
        for src, dst in pairs
    )
    shared = (sample for sample in sample_links(network) if sample.kind != "link")
    return (*samples, *shared)


def rounds(samples: Sequence[Sample], network: Network) -> tuple[tuple[Sample, ...], ...]:
    """Samples that can run at the same time: in each round a node takes part at most once, and so
    does a pair of regions that shares a trunk.

    (Acknowledgements share the link back: two samples on one node would each see less.)
    """
    planned: list[tuple[list[Sample], set[Hashable]]] = []
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


def _used(sample: Sample, network: Network) -> set[Hashable]:
    """What no other sample may use at the same time: nodes, and trunks in either direction."""
    used: set[Hashable] = set(sample.nodes)
    if network.sharing == "trunk":
        ends = (frozenset(network.node_regions[node] for node in flow) for flow in sample.flows)
        used |= {regions for regions in ends if len(regions) > 1}
    return used


def transfer_bytes(
    network: Network,
    sample: Sample,
    scale: float,
    streams: int = 1,
    measured_s: float = MEASURED_S,
) -> tuple[int, int]:
    """Bytes per connection to send before the clock starts, and while it runs; 0, 0 for none.

    streams: connections per flow. measured_s: how long the clock runs at least, seconds.
    """
    total_bps = expected_rate_bps(network, sample)
    if total_bps is None:
        return 0, 0
    num_flows = len(sample.dsts) * streams
    share = total_bps / scale / 8 / num_flows
    rtt_s = max(_rtt_s(network, src, dst) for src, dst in sample.flows)
    least = MEASURED_FRAMES * frame_bytes(network)
    warmup = max(WARMUP_BDPS * share * rtt_s, least)
    measured = max(MEASURED_BDPS * share * rtt_s, measured_s * share, least)
    # Several flows do not end together: time them while all are on their way. Connections of one
    # pair of nodes get their parts in larger pieces: 8 of them were 0.5% off with 3 times as many.
    longer = 1 if num_flows == 1 else 3 if streams == 1 else 8
    return math.ceil(warmup), math.ceil(measured * longer)


def planned_trains(network: Network, sample: Sample, scale: float) -> tuple[Train, ...]:
    """The trains of packets that a sample sends; only links have any."""
    if sample.kind != "link":
        return ()
    src, dst = sample.src, sample.dsts[0]
    rate_bps = link_bps(network, src, dst) / scale
    return plan_trains(network.link(src, dst), rate_bps, TRAIN_TOLERANCE, sample.thorough)


def expected_rate_bps(network: Network, sample: Sample) -> float | None:
    """Rate all flows of a sample get together, bit/s, unscaled. None where none can be told: not
    limited, or packets are lost or overtake each other (TCP then hangs on more than the rate).
    """
    regions = network.node_regions
    own: dict[int, dict[int, float]] = {}
    trunks: dict[tuple[int, int], float] = {}
    for src, dst in sample.flows:
        bandwidth_bps = network.link(src, dst).bandwidth_bps
        if network.sharing == "trunk" and regions[src] != regions[dst]:
            trunks[regions[src], regions[dst]] = bandwidth_bps
        else:
            first = next(g[0] for g in destination_groups(network, src) if dst in g)
            own.setdefault(src, {})[first] = bandwidth_bps
    rate_bps = sum(trunks.values()) + sum(
        min(sum(rates.values()), egress_cap_bps(network, src)) for src, rates in own.items()
    )
    links = [network.link(*ends) for src, dst in sample.flows for ends in ((src, dst), (dst, src))]
    if math.isinf(rate_bps) or any(map(_disturbs_tcp, links)):
        return None
    return rate_bps


def _disturbs_tcp(link: Link) -> bool:
    """Packets are lost, repeated or late on this link beside what its rate does to them."""
    disturbed = link.mean_loss or link.duplication or link.reordering or link.queue_packets
    return bool(disturbed) or (link.jitter_reorders and link.jitter_s > 0)


def _members(network: Network) -> list[list[int]]:
    """The nodes of every region."""
    members: list[list[int]] = [[] for _ in network.regions]
    for node, region in enumerate(network.node_regions):
        members[region].append(node)
    return members


def _link_samples(network: Network, per_class: int, uses: list[int]) -> Iterator[Sample]:
    members = _members(network)
    for sources in members:
        for targets in members:
            pairs = [(src, dst) for src in sources for dst in targets if src != dst]
            for _ in range(min(per_class, len(pairs))):
                src, dst = min(pairs, key=lambda pair: (uses[pair[0]] + uses[pair[1]], pair))
                pairs.remove((src, dst))
                uses[src] += 1
                uses[dst] += 1
                yield Sample(kind="link", src=src, dsts=(dst,))


def _class_samples(network: Network) -> Iterator[Sample]:
    """Two destinations of one class get its rate together, not each."""
    seen: set[Link] = set()
    for src in range(network.num_nodes):
        for group in destination_groups(network, src):
            link = network.link(src, group[0])
            if len(group) > 1 and link not in seen and math.isfinite(link.bandwidth_bps):
                seen.add(link)
                yield Sample(kind="class", src=src, dsts=group[:2])


def _nic_samples(network: Network) -> Iterator[Sample]:
    """Enough destinations at once to want more than the NIC has, where there are that many."""
    for cap_bps in sorted({cap for cap in network.nic_bps if math.isfinite(cap)}):
        src = network.nic_bps.index(cap_bps)
        dsts: list[int] = []
        wanted_bps = 0.0
        peers = [node for node in range(network.num_nodes) if node != src]
        for dst in sorted(peers, key=lambda peer: (-network.link(src, peer).bandwidth_bps, peer)):
            if len(dsts) < 2 or (wanted_bps < cap_bps and len(dsts) < MAX_NIC_FLOWS):
                dsts.append(dst)
                wanted_bps += network.link(src, dst).bandwidth_bps
        if len(dsts) > 1:
            yield Sample(kind="nic", src=src, dsts=tuple(dsts))


def _trunk_samples(network: Network) -> Iterator[Sample]:
    """Several nodes of a region send to several of another: together they get the trunk's rate."""
    members = _members(network)
    for here, there in itertools.permutations(range(len(members)), 2):
        senders, takers = members[here], members[there]
        num_flows = min(MAX_TRUNK_FLOWS, max(len(senders), len(takers)))
        finite = math.isfinite(network.links[here][there].bandwidth_bps)
        if senders and takers and num_flows > 1 and finite:
            yield Sample(
                kind="trunk",
                src=senders[0],
                srcs=tuple(senders[i % len(senders)] for i in range(num_flows)),
                dsts=tuple(takers[i % len(takers)] for i in range(num_flows)),
            )


def _rtt_s(network: Network, src: int, dst: int) -> float:
    return network.link(src, dst).one_way_delay_s + network.link(dst, src).one_way_delay_s
