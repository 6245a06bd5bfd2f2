"""Compare measured links with the scenario. Pure.

An echo takes the delay of both ways, plus its frame at the rate of each. The goodput of several
flows is measured over one common interval: flows that share a queue do not get equal parts of it,
and their separate goodputs would add up to more than the rate.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from netbench.network.probing.packet_trains import (
    FRAME_BYTES,
    SIGMAS,
    PacketTrain,
    PacketTrainResult,
    expectations,
)
from netbench.network.probing.samples import LinkSample, expected_rate_bps
from netbench.network.shaping.segments import goodput_ratio
from netbench.scenario.model import Network
from netbench.scenario.sharing import flow_bps, nic_caps_bps
from netbench.units import format_bandwidth, format_bytes, format_time

VIRTUAL_TIME_TOLERANCE = 0.02
REAL_TIME_TOLERANCE = 0.05

DELAY_RESOLUTION_S = 5e-6
"""Absolute tolerance of a delay, seconds: ping prints 1 us, netem's ticks are 64 ns each way."""

JITTER_MEAN = 0.05
"""Mean of netem's tables as a fraction of the jitter, at most (pareto's is -0.034)."""

JITTER_RESOLUTION_S = 50e-6
"""Upper bound on jitter from scheduler wake-up latency, seconds."""

Arrivals = Sequence[tuple[int, int]]
"""(nanoseconds, bytes received so far) of a transfer, in order."""

JITTER_SPREAD = 4.0
"""Error of the smallest of a few echoes on a link with jitter, in standard deviations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Figures of a sample; None for what was not measured.

    method: `ping` or `udp`, which measured `rtt_s`. rtt_s, one_way_s: per flow of the sample.
    goodput_bps: of all flows together. streams_goodput_bps: of one flow by several connections.
    trains, train_results: packet trains and the result of each. error: why there are no figures.
    """

    sample: LinkSample
    method: str = ""
    rtt_s: tuple[float | None, ...] = ()
    one_way_s: tuple[float | None, ...] = ()
    goodput_bps: float | None = None
    streams_goodput_bps: float | None = None
    trains: tuple[PacketTrain, ...] = ()
    train_results: tuple[PacketTrainResult, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkCheck:
    """Comparison of one measured figure with the scenario.

    quantity: `rtt_s`, `one_way_s`, `goodput_bps` (scaled), `jitter_s`, or a fraction of packets:
    `loss`, `duplication`, `reordering`. allowed: largest difference, in the unit of the figure.
    srcs: the source of each of `dsts`, if it is not always `src`. streams: connections of a
    goodput. num_packets: length of the packet train. num_bytes: of a message, whose
    quantity is `cold_message_s` or `idle_message_s` (`probing.dynamics`).
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
    num_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkVerdict:
    """Verdict on a shaped network, stored with every run."""

    trustworthy: bool
    tolerance: float
    methods: tuple[str, ...]
    reasons: tuple[str, ...]
    checks: tuple[LinkCheck, ...]


def goodput_bps(
    flows: Sequence[Arrivals], warmup_bytes: int = 0, warmup_s: float = 0.0
) -> float | None:
    """Return the goodput of all flows together, from the end of all warm-ups to the first end.

    warmup_s: since the first bytes of each flow. One clock times all. None for an empty interval.
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
    """Interpolate the bytes received by `ns` linearly between arrivals."""
    at = bisect_right(flow, ns, key=lambda arrival: arrival[0])
    if at == 0:
        return 0.0
    then, count = flow[at - 1]
    if at == len(flow) or then == ns:
        return float(count)
    later, more = flow[at]
    return count + (more - count) * (ns - then) / (later - then)


def evaluate(
    measurements: Sequence[Measurement],
    network: Network,
    scale: float = 1.0,
    tolerance: float = VIRTUAL_TIME_TOLERANCE,
    *,
    shared_clock: bool = True,
) -> NetworkVerdict:
    """Judge measurements. No measurement at all is a failure.

    tolerance: relative. shared_clock: nodes are on one kernel; one-way delays are judged too.
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
    return NetworkVerdict(
        trustworthy=not reasons,
        tolerance=tolerance,
        methods=tuple(sorted({m.method for m in measurements if m.method})),
        reasons=tuple(reasons),
        checks=checks,
    )


def with_checks(verdict: NetworkVerdict, checks: Sequence[LinkCheck]) -> NetworkVerdict:
    """Return the verdict with further checks."""
    reasons = (*verdict.reasons, *(_reason(check) for check in checks if not check.passed))
    return replace(
        verdict, trustworthy=not reasons, reasons=reasons, checks=(*verdict.checks, *checks)
    )


def _checks(
    measurement: Measurement, network: Network, scale: float, tolerance: float, shared_clock: bool
) -> Iterator[LinkCheck]:
    sample = measurement.sample
    trains = zip(measurement.trains, measurement.train_results, strict=True)
    # The mean of a jitter train is better than the smallest of a few echoes.
    train = next((r for t, r in trains if t.purpose == "jitter" and r.received), None)
    for i, (src, dst) in enumerate(sample.flows):
        link = LinkSample(kind=sample.kind, src=src, dsts=(dst,))
        jitter_s = network.link(src, dst).jitter_s
        way_s = _echo_s(sample, network, src, dst, scale)
        rtt_s = way_s + _echo_s(sample, network, dst, src, scale)
        # Relative to the round trip even one way, which includes the wake-up of processes.
        allowed_s = tolerance * rtt_s + DELAY_RESOLUTION_S
        if shared_clock and train is not None:
            chance_s = jitter_s * (SIGMAS / math.sqrt(train.received) + JITTER_MEAN)
            most_s, sent = allowed_s + chance_s, train.num_packets
            yield _check(link, "one_way_s", way_s, train.mean_s, most_s, num_packets=sent)
        elif shared_clock:
            most_s = allowed_s + JITTER_SPREAD * jitter_s
            yield _check(link, "one_way_s", way_s, measurement.one_way_s[i], most_s)
        allowed_s += JITTER_SPREAD * (jitter_s + network.link(dst, src).jitter_s)
        yield _check(link, "rtt_s", rtt_s, measurement.rtt_s[i], allowed_s)
    yield from _train_checks(measurement, network, scale, tolerance)
    rate_bps = expected_rate_bps(network, sample)
    if rate_bps is not None:
        expected = rate_bps / scale * goodput_ratio(network.mtu_bytes)
        goodputs = {1: measurement.goodput_bps}
        if sample.streams > 1:
            goodputs[sample.streams] = measurement.streams_goodput_bps
        for streams, found in goodputs.items():
            allowed = tolerance * expected
            yield _check(sample, "goodput_bps", expected, found, allowed, streams=streams)


def _train_checks(
    measurement: Measurement, network: Network, scale: float, tolerance: float
) -> Iterator[LinkCheck]:
    sample = measurement.sample
    src, dst = sample.src, sample.dsts[0]
    link = network.link(src, dst)
    there_s, back_s = (_echo_s(sample, network, *ends, scale) for ends in ((src, dst), (dst, src)))
    rtt_s = there_s + back_s
    # The jitter of a link without any is judged like its delay.
    resolution_s = JITTER_RESOLUTION_S + (0.0 if link.jitter_s else tolerance * rtt_s)
    for train, result in zip(measurement.trains, measurement.train_results, strict=True):
        for wanted in expectations(link, train, tolerance, resolution_s):
            found, sent = getattr(result, wanted.quantity), train.num_packets
            yield _check(
                sample, wanted.quantity, wanted.value, found, wanted.allowed, num_packets=sent
            )


def _check(
    sample: LinkSample,
    quantity: str,
    expected: float,
    measured: float | None,
    allowed: float,
    **more: int,
) -> LinkCheck:
    return LinkCheck(
        kind=sample.kind,
        src=sample.src,
        dsts=sample.dsts,
        srcs=sample.srcs,
        quantity=quantity,
        expected=expected,
        measured=measured,
        allowed=allowed,
        passed=measured is not None and abs(measured - expected) <= allowed,
        **more,
    )


def _echo_s(sample: LinkSample, network: Network, src: int, dst: int, scale: float) -> float:
    """Return the one-way time of an echo, seconds: the delay plus its frame at the rate.

    With `LinkSample.ingress`, a frame takes its time at the NIC that receives it, and on a link
    that is slower than the NIC of its sender.
    """
    link, caps_bps = network.link(src, dst), nic_caps_bps(network)
    per_bit_s = 1 / flow_bps(network, src, dst)
    if sample.ingress and math.isfinite(caps_bps[src]):
        has_rate = flow_bps(network, src, dst) < caps_bps[src] or link.jitter_s
        per_bit_s = (per_bit_s if has_rate else 0.0) + 1 / caps_bps[dst]
    return link.one_way_delay_s + FRAME_BYTES * 8 * scale * per_bit_s


def _where(sample: LinkSample | LinkCheck) -> str:
    sources = dict.fromkeys(sample.srcs or (sample.src,))
    src, to = (", ".join(map(str, ends)) for ends in (sources, dict.fromkeys(sample.dsts)))
    return f"{sample.kind} sample, node{'s' * (len(sources) > 1)} {src} to {to}"


WORDS: dict[str, tuple[str, Callable[[float, int], str]]] = {
    "one_way_s": ("one-way delay", format_time),
    "rtt_s": ("round-trip time", format_time),
    "jitter_s": ("jitter", format_time),
    "cold_message_s": ("time of a first message", format_time),
    "idle_message_s": ("time of a message after idleness", format_time),
    "goodput_bps": ("goodput", format_bandwidth),
    "loss": ("loss", lambda fraction, digits: f"{fraction:.{digits}g}"),
    "duplication": ("duplication", lambda fraction, digits: f"{fraction:.{digits}g}"),
    "reordering": ("reordering", lambda fraction, digits: f"{fraction:.{digits}g}"),
}
"""Quantity of a check -> its name in a message, and the format of its values."""

DIGITS = 4
"""Significant digits of a figure in a message."""


def _reason(check: LinkCheck) -> str:
    name, write = WORDS[check.quantity]
    by = f" by {check.streams} connections" if check.streams > 1 else ""
    where = f"{_where(check)}{by}"
    if check.num_bytes:
        where += f", message of {format_bytes(check.num_bytes)}"
    if check.measured is None:
        return f"{where}: no {name} was measured, expected {write(check.expected, DIGITS)}"
    found = write(check.measured, DIGITS)
    if check.num_packets:
        return (
            f"{where}: {name} is {write(check.measured, 3)} of {check.num_packets} packets, "
            f"expected {write(check.expected, 3)} ± {write(check.allowed, 2)}"
        )
    if not check.expected:
        most = write(check.allowed, DIGITS)
        return f"{where}: {name} is {found}, expected none (allowed {most})"
    error, allowed = check.measured / check.expected - 1, check.allowed / check.expected
    return (
        f"{where}: {name} is {found}, expected {write(check.expected, DIGITS)} "
        f"({error:+.1%}, allowed {allowed:.1%})"
    )
