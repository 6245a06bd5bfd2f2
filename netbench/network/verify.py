"""What measured links must show, and whether they did. Pure. Which are measured: `samples`.

Goodput of TCP is the rate x (MTU - 52) / (MTU + 14): 40 bytes of headers and 12 of timestamps are
not payload, 14 of Ethernet are counted by the qdisc but not in the MTU (1448/1514 at MTU 1500).
An echo takes the delay of both ways, and its own 98 bytes at the rate of each.
What several flows get together is counted over one common stretch of time: flows that share a queue
do not get equal parts of it, and each alone over its own time would add up to more than there is.
Jitter, loss, duplication and reordering are told by trains of packets, see `trains`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from netbench.network.queues import link_bps
from netbench.network.samples import (
    MEASURED_BDPS,
    WARMUP_BDPS,
    Sample,
    all_pairs,
    expected_rate_bps,
    sample_links,
)
from netbench.network.trains import SIGMAS, Train, TrainResult, expectations
from netbench.scenario.model import Network

__all__ = [
    "ECHO_FRAME_BYTES",
    "MEASURED_BDPS",
    "REAL_TIME_TOLERANCE",
    "VIRTUAL_TIME_TOLERANCE",
    "WARMUP_BDPS",
    "Arrivals",
    "Check",
    "Measurement",
    "Probe",
    "Sample",
    "all_pairs",
    "evaluate",
    "goodput_bps",
    "goodput_ratio",
    "sample_links",
]

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

PACKET_SHARES = ("loss", "duplication", "reordering")

Arrivals = Sequence[tuple[int, int]]
"""(nanoseconds, bytes received so far), in order; of one transfer."""

JITTER_SPREAD = 4.0
"""Standard deviations the smallest of a few echoes may be off where a link has jitter."""


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
