"""Which links to measure, what they must show, and whether they did. Pure.

Goodput of TCP is the rate x (MTU - 52) / (MTU + 14): 40 bytes of headers and 12 of timestamps are
not payload, 14 of Ethernet are counted by the qdisc but not in the MTU (1448/1514 at MTU 1500).
An echo takes the delay of both ways, and its own 98 bytes at the rate of each.
What several flows get together is counted over one common stretch of time: flows that share a queue
do not get equal parts of it, and each alone over its own time would add up to more than there is.
Jitter, loss, duplication and reordering are told by trains of packets, see `trains`.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from netbench.network.program import destination_groups, egress_cap_bps, frame_bytes, link_bps
from netbench.network.trains import SIGMAS, Train, TrainResult, expectations, plan_trains
from netbench.scenario.model import Link, Network

VIRTUAL_TIME_TOLERANCE = 0.02
REAL_TIME_TOLERANCE = 0.05

DELAY_RESOLUTION_S = 5e-6
"""Below this a delay is not judged: ping prints 1 us, netem's ticks are 64 ns on each way."""

JITTER_MEAN = 0.05
"""Of the jitter: the means of netem's tables are not quite zero (pareto's is -0.034)."""

JITTER_RESOLUTION_S = 50e-6
"""What the waking of processes adds to jitter, at most; beyond it a machine is too busy."""

ECHO_FRAME_BYTES = 98
"""A ping with its headers; `probe` makes its own echo as long."""

TCP_OVERHEAD_BYTES = 52
"""IP 20, TCP 20, timestamps 12: Linux puts them in every segment."""

WARMUP_BDPS = 6
"""Bandwidth-delay products sent before the clock starts: slow start sends about 2."""

MEASURED_BDPS = 2
MEASURED_S = 0.05
MEASURED_FRAMES = 300
MAX_NIC_FLOWS = 8
MAX_TRUNK_FLOWS = 4

TRAIN_TOLERANCE = 0.05
"""What chance may add to a figure of a train, relative; it decides how many packets are sent."""

PACKET_SHARES = ("loss", "duplication", "reordering")

Arrivals = Sequence[tuple[int, int]]
"""(nanoseconds, bytes received so far), in order; of one transfer."""

JITTER_SPREAD = 4.0
"""Standard deviations the smallest of a few echoes may be off where a link has jitter."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What the nodes saw. rtt_s, one_way_s: per flow of the sample. goodput_bps: of all its flows
    together; streams_goodput_bps: of one flow by several connections. None where nothing was
    measured.

    method: `ping` or `udp`, what took `rtt_s`. error: why there are no figures, else empty.
    trains: what was sent, train_results: what came of each.
    """

    sample: Sample
    method: str = ""
    rtt_s: tuple[float | None, ...] = ()
    one_way_s: tuple[float | None, ...] = ()
    goodput_bps: float | None = None
    streams_goodput_bps: float | None = None
    trains: tuple[Train, ...] = ()
    train_results: tuple[TrainResult, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One figure against the scenario. quantity: `rtt_s`, `one_way_s`, `goodput_bps` (scaled),
    `jitter_s`, and shares of packets: `loss`, `duplication`, `reordering`.

    allowed: how far measured may be from expected, in the unit of both. srcs: the source for each
    of `dsts`, where it is not always `src`. streams: connections of a goodput. num_packets: what
    jitter and shares were taken from.
    """

    kind: str
    src: int
    dsts: tuple[int, ...]
    quantity: str
    expected: float
    measured: float | None
    allowed: float
    passed: bool
    srcs: tuple[int, ...] = ()
    streams: int = 1
    num_packets: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """The verdict on a shaped network; stored with every run. `to_dict` is plain JSON data."""

    trustworthy: bool
    tolerance: float
    methods: tuple[str, ...]
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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


def goodput_bps(
    flows: Sequence[Arrivals], warmup_bytes: int = 0, warmup_s: float = 0.0
) -> float | None:
    """Bit/s of all flows together, from when each has had its warm-up until the first one ends.

    warmup_s: since the first bytes of each came. None when that is no time at all. The clocks of
    the flows must be one clock.
    """
    if not all(flows):
        return None
    start_ns = max(
        max(next(ns for ns, count in flow if count >= warmup_bytes), flow[0][0] + warmup_s * 1e9)
        for flow in flows
    )
    end_ns = min(flow[-1][0] for flow in flows)
    if start_ns >= end_ns:
        return None
    counted = sum(_bytes_at(flow, end_ns) - _bytes_at(flow, start_ns) for flow in flows)
    return 8e9 * counted / (end_ns - start_ns)


def _bytes_at(flow: Arrivals, ns: float) -> float:
    """Bytes that had come by `ns`: exact at an arrival, in a straight line between two."""
    at = bisect_right(flow, ns, key=lambda arrival: arrival[0])
    if at == 0:
        return 0.0
    then, count = flow[at - 1]
    if at == len(flow) or then == ns:
        return float(count)
    later, more = flow[at]
    return count + (more - count) * (ns - then) / (later - then)


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


def evaluate(
    measurements: Sequence[Measurement],
    network: Network,
    scale: float = 1.0,
    tolerance: float = VIRTUAL_TIME_TOLERANCE,
    *,
    shared_clock: bool = True,
) -> Probe:
    """Judge measurements. tolerance: relative. shared_clock: nodes on one kernel, so that the
    way there can be judged alone, not only the round trip. No measurement at all is a failure.
    """
    checks = tuple(
        check
        for measurement in measurements
        if not measurement.error
        for check in _checks(measurement, network, scale, tolerance, shared_clock)
    )
    errors = [f"{_where(m.sample)}: {m.error}" for m in measurements if m.error]
    reasons = errors + [_reason(check) for check in checks if not check.passed]
    if not checks and not errors:
        reasons.append("no link was measured")
    return Probe(
        trustworthy=not reasons,
        tolerance=tolerance,
        methods=tuple(sorted({m.method for m in measurements if m.method})),
        reasons=tuple(reasons),
        checks=checks,
    )


def _link_samples(network: Network, per_class: int, uses: list[int]) -> Iterator[Sample]:
    num_regions = len(network.regions)
    members = [
        [node for node, region in enumerate(network.node_regions) if region == wanted]
        for wanted in range(num_regions)
    ]
    for here in range(num_regions):
        for there in range(num_regions):
            pairs = [(s, d) for s in members[here] for d in members[there] if s != d]
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
    num_regions = len(network.regions)
    members = [
        [node for node, region in enumerate(network.node_regions) if region == wanted]
        for wanted in range(num_regions)
    ]
    for here, there in itertools.permutations(range(num_regions), 2):
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


def _checks(
    measurement: Measurement, network: Network, scale: float, tolerance: float, shared_clock: bool
) -> Iterator[Check]:
    sample = measurement.sample
    for i, (src, dst) in enumerate(sample.flows):
        link = Sample(kind=sample.kind, src=src, dsts=(dst,))
        spread_s = JITTER_SPREAD * network.link(src, dst).jitter_s
        spread_back_s = JITTER_SPREAD * network.link(dst, src).jitter_s
        way_s = _echo_s(network, src, dst, scale)
        rtt_s = way_s + _echo_s(network, dst, src, scale)
        # Of the round trip for both: one way is taken by processes that have to be woken first.
        allowed_s = tolerance * rtt_s + DELAY_RESOLUTION_S
        if shared_clock and (train := _jitter_train(measurement)) is not None:
            chance_s = network.link(src, dst).jitter_s * (
                SIGMAS / math.sqrt(train.received) + JITTER_MEAN
            )
            yield _check(
                link, "one_way_s", way_s, train.mean_s, allowed_s + chance_s,
                num_packets=train.num_packets,
            )  # fmt: skip
        elif shared_clock:
            one_way_s = measurement.one_way_s[i]
            yield _check(link, "one_way_s", way_s, one_way_s, allowed_s + spread_s)
        allowed_s += spread_s + spread_back_s
        yield _check(link, "rtt_s", rtt_s, measurement.rtt_s[i], allowed_s)
    yield from _train_checks(measurement, network, scale, tolerance)
    rate_bps = expected_rate_bps(network, sample)
    if rate_bps is not None:
        expected = rate_bps / scale * goodput_ratio(network.mtu_bytes)
        found = measurement.goodput_bps
        yield _check(sample, "goodput_bps", expected, found, tolerance * expected)
        if sample.streams > 1:
            found, streams = measurement.streams_goodput_bps, sample.streams
            yield _check(
                sample, "goodput_bps", expected, found, tolerance * expected, streams=streams
            )


def _jitter_train(measurement: Measurement) -> TrainResult | None:
    """The train whose mean delay tells more than the smallest of a few echoes, if there is one."""
    trains = zip(measurement.trains, measurement.train_results, strict=True)
    return next((r for train, r in trains if train.purpose == "jitter" and r.received), None)


def _train_checks(
    measurement: Measurement, network: Network, scale: float, tolerance: float
) -> Iterator[Check]:
    sample = measurement.sample
    src, dst = sample.src, sample.dsts[0]
    link = network.link(src, dst)
    rtt_s = _echo_s(network, src, dst, scale) + _echo_s(network, dst, src, scale)
    # A link without jitter may be as unsteady as its delay may be off.
    resolution_s = JITTER_RESOLUTION_S + (0.0 if link.jitter_s else tolerance * rtt_s)
    for train, result in zip(measurement.trains, measurement.train_results, strict=True):
        found = {
            "jitter_s": result.jitter_s,
            "loss": result.loss,
            "duplication": result.duplication,
            "reordering": result.reordering,
        }
        for wanted in expectations(link, train, tolerance, resolution_s):
            yield _check(
                sample,
                wanted.quantity,
                wanted.value,
                found[wanted.quantity],
                wanted.allowed,
                num_packets=train.num_packets,
            )


def goodput_ratio(mtu_bytes: int) -> float:
    """TCP payload per byte on the wire, full segments over IPv4 with timestamps."""
    return (mtu_bytes - TCP_OVERHEAD_BYTES) / (mtu_bytes + 14)


def _check(
    sample: Sample,
    quantity: str,
    expected: float,
    measured: float | None,
    allowed: float,
    *,
    streams: int = 1,
    num_packets: int = 0,
) -> Check:
    return Check(
        kind=sample.kind,
        src=sample.src,
        dsts=sample.dsts,
        srcs=sample.srcs,
        quantity=quantity,
        expected=expected,
        measured=measured,
        allowed=allowed,
        passed=measured is not None and abs(measured - expected) <= allowed,
        streams=streams,
        num_packets=num_packets,
    )


def _echo_s(network: Network, src: int, dst: int, scale: float) -> float:
    """One way of an echo, seconds: the delay, and its frame at the rate."""
    frame_s = ECHO_FRAME_BYTES * 8 * scale / link_bps(network, src, dst)
    return network.link(src, dst).one_way_delay_s + frame_s


def _rtt_s(network: Network, src: int, dst: int) -> float:
    return network.link(src, dst).one_way_delay_s + network.link(dst, src).one_way_delay_s


def _where(sample: Sample) -> str:
    src = ", ".join(str(src) for src in sample.sources)
    to = ", ".join(str(dst) for dst in dict.fromkeys(sample.dsts))
    return f"{sample.kind} sample, node{'s' * (len(sample.sources) > 1)} {src} to {to}"


def _reason(check: Check) -> str:
    sample = Sample(kind=check.kind, src=check.src, dsts=check.dsts, srcs=check.srcs)
    by = f" by {check.streams} connections" if check.streams > 1 else ""
    where = f"{_where(sample)}{by}"
    if check.measured is None:
        return f"{where}: no {check.quantity} was measured, expected {check.expected:.6g}"
    if check.quantity in PACKET_SHARES:
        return (
            f"{where}: {check.quantity} is {check.measured:.3g} of {check.num_packets} packets, "
            f"expected {check.expected:.3g} ± {check.allowed:.2g}"
        )
    error = check.measured - check.expected
    if check.expected:
        off = f"{error / check.expected:+.1%}, allowed {check.allowed / check.expected:.1%}"
    else:
        off = f"{error:+.6g}, allowed {check.allowed:.6g}"
    return (
        f"{where}: {check.quantity} is {check.measured:.6g}, expected {check.expected:.6g} ({off})"
    )
