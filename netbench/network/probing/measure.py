"""Measure samples by running `probe` on the nodes.

The probe is sent on standard input, so a node needs Python but not netbench.
"""

import json
import math
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from netbench.network.nodes import ALONE, Node, at_once, output_of, split
from netbench.network.probing import probe
from netbench.network.probing.packet_trains import (
    PacketTrain,
    PacketTrainResult,
    plan_trains,
    settle_s,
)
from netbench.network.probing.samples import (
    MEASURED_S,
    LinkSample,
    both_ways,
    expected_rate_bps,
    planned_trains,
    rounds,
    transfer_bytes,
)
from netbench.network.probing.verify import Arrivals, Measurement, goodput_bps
from netbench.network.shaping.segments import goodput_ratio
from netbench.scenario.measured.matrices import Matrix, Reading
from netbench.scenario.model import Link, Network

DEADLINE_S = 300.0
"""Deadline of a round of samples by the controller's clock, in addition to twice the time of its
transfers at the expected rate, seconds. A link scaled to 150 kbit/s takes minutes."""

MAX_ECHOES = 50

DIGITS = 4
"""Significant digits of figures of an unknown network."""

HALVED = "Delays are half of the smallest round trip: one way = RTT / 2."
WIRE = "Bandwidths are what links carry for the measured payload, headers of full frames included."

WARMUP_FRACTION = 0.3
"""Fraction of a transfer over a link of unknown rate that is warm-up, for slow start."""

UNKNOWN = Link(one_way_delay_s=0.0, bandwidth_bps=math.inf)

Progress = Callable[[int, int], None]
"""Called with the number of rounds done, and the number of rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoints:
    """Nodes to measure between.

    addresses: per node; the first of each is used. nodes: run the probe. python: the interpreter,
    of all nodes or per node. shared_clock: the nodes are on one kernel.
    """

    addresses: Sequence[Sequence[str]]
    nodes: Sequence[Node]
    python: str | Sequence[str] = sys.executable
    shared_clock: bool = True

    def python_of(self, node: int) -> str:
        return self.python if isinstance(self.python, str) else self.python[node]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Concurrency and deadlines of measurements.

    concurrent: samples that share nothing run together. This is exact in virtual time and on
    separate machines; on one machine in real time they would compete for the processor.
    measured_s: shortest time over which a transfer is timed, seconds. deadline_s: of a round of
    samples, seconds, see `DEADLINE_S`.
    """

    concurrent: bool = True
    measured_s: float = MEASURED_S
    deadline_s: float = DEADLINE_S


def measure(
    network: Network,
    samples: Sequence[LinkSample],
    endpoints: Endpoints,
    scale: float = 1.0,
    *,
    pace: Pace = Pace(),
    progress: Progress = lambda done, total: None,
) -> tuple[Measurement, ...]:
    """Measure every sample, in order of `samples`. A failure is in its measurement's `error`."""
    plans = [_plan_sample(network, scale, pace.measured_s, sample) for sample in samples]
    return _measure_all(network, plans, endpoints, pace, progress)


def measure_as_is(
    pairs: Sequence[tuple[int, int]],
    endpoints: Endpoints,
    streams: int,
    each_s: float,
    *,
    pace: Pace = Pace(),
    progress: Progress = lambda done, total: None,
) -> tuple[Measurement, ...]:
    """Measure (source, destination) pairs of an unknown network, in order of `pairs`.

    Each pair is measured by one connection and, if `streams` is more than one, by that many at
    once. Every transfer lasts for `each_s`; the first `WARMUP_FRACTION` of it is not counted.
    """
    num_nodes = len(endpoints.addresses)
    network = Network(
        regions=("",),
        links=((UNKNOWN,),),
        node_regions=(0,) * num_nodes,
        sharing="pair",
        nic_bps=(math.inf,) * num_nodes,
    )
    samples = [LinkSample(kind="link", src=src, dsts=(dst,), streams=streams) for src, dst in pairs]
    trains = plan_trains(UNKNOWN, UNKNOWN.bandwidth_bps, 1.0, True)
    plans = [SamplePlan(sample=sample, transfer_s=each_s, trains=trains) for sample in samples]
    return _measure_all(network, plans, endpoints, pace, progress)


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePlan:
    """Steps of the measurement of a sample.

    total_bytes: per connection, by transfer, of which `warmup_bytes` are not counted; empty: each
    transfer lasts `transfer_s`. expected_s: time of all transfers, 0 if unknown. settle_s: pause
    after a packet train. num_echoes, median: see `probe.measure`. congestion: of
    `probe.Transfers`.
    """

    sample: LinkSample
    total_bytes: tuple[int, ...] = ()
    warmup_bytes: tuple[int, ...] = ()
    transfer_s: float = 0.0
    expected_s: float = 0.0
    trains: tuple[PacketTrain, ...] = ()
    settle_s: float = 0.0
    num_echoes: int = probe.NUM_ECHOES
    median: bool = False
    congestion: str = ""


def _plan_sample(
    network: Network, scale: float, measured_s: float, sample: LinkSample
) -> SamplePlan:
    connections = sample.connections
    sizes = [transfer_bytes(network, sample, scale, n, measured_s) for n in connections]
    per_flow = sum(n * sum(size) for n, size in zip(connections, sizes, strict=True))
    num_bytes = len(sample.dsts) * per_flow
    links = both_ways(network, sample)
    return SamplePlan(
        sample=sample,
        total_bytes=tuple(warmup + measured for warmup, measured in sizes),
        warmup_bytes=tuple(warmup for warmup, _ in sizes),
        expected_s=8 * num_bytes * scale / (expected_rate_bps(network, sample) or math.inf),
        trains=planned_trains(network, sample, scale),
        settle_s=settle_s(links[0]),
        num_echoes=_num_echoes(max(link.mean_loss for link in links)),
        # ping accepts a damaged answer, with a damaged time in it.
        median=any(link.reordering or link.corruption for link in links),
        # Where TCP acts, cubic may leave slow start below the rate that is to be verified.
        congestion="reno" if network.tcp.acts else "",
    )


def _num_echoes(loss: float) -> int:
    """Return the smallest number of echoes of which one returns in all but one of 10^6 cases."""
    num = probe.NUM_ECHOES
    while (1 - (1 - loss) ** 2) ** num > 1e-6 and num < MAX_ECHOES:
        num += 1
    return num


def _measure_all(
    network: Network,
    plans: Sequence[SamplePlan],
    endpoints: Endpoints,
    pace: Pace,
    progress: Progress,
) -> tuple[Measurement, ...]:
    samples, plan_of = [plan.sample for plan in plans], {plan.sample: plan for plan in plans}
    groups = rounds(samples, network) if pace.concurrent else [(sample,) for sample in samples]
    found: dict[LinkSample, Measurement] = {}
    for done, group in enumerate(groups):
        progress(done, len(groups))
        found |= _measure_round([plan_of[sample] for sample in group], endpoints, pace.deadline_s)
    progress(len(groups), len(groups))
    return tuple(found[sample] for sample in samples)


def _measure_round(
    plans: Sequence[SamplePlan], endpoints: Endpoints, deadline_s: float
) -> dict[LinkSample, Measurement]:
    source = Path(probe.__file__).read_text(encoding="utf-8")
    calls: dict[tuple[str, int], Callable[[], dict[str, Any]]] = {}
    for plan in plans:
        for name, job in _jobs(plan, endpoints.addresses).items():
            argv = (endpoints.python_of(name[1]), *ALONE, "-")
            text = f"{source}\nmain({json.dumps(job)!r})\n"
            calls[name] = partial(_json_of, endpoints.nodes[name[1]], argv, text)
    slowest_s = max(plan.expected_s for plan in plans)
    answers = at_once(calls, deadline_s + 2 * slowest_s)
    return {plan.sample: _measurement(plan, answers, endpoints.shared_clock) for plan in plans}


def _jobs(
    plan: SamplePlan, addresses: Sequence[Sequence[str]]
) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the job of every node of a sample: (operation, node) -> arguments of `probe`."""
    sample, token = plan.sample, secrets.token_hex(probe.TOKEN_BYTES)
    sources, rendezvous = sample.sources, sample.dsts[0]
    transfers = probe.Transfers(
        sample.connections, plan.total_bytes or None, plan.transfer_s, plan.congestion
    )
    common = {"token": token, "transfers": transfers._asdict()}
    jobs: dict[tuple[str, int], dict[str, Any]] = {}
    for dst in dict.fromkeys(sample.dsts):
        jobs["serve", dst] = {
            **common,
            "op": "serve",
            "address": addresses[dst][0],
            "num_sources": sample.dsts.count(dst),
            "num_waiting": len(sources) if dst == rendezvous and len(sources) > 1 else 0,
        }
    for number, src in enumerate(sources):
        jobs["measure", src] = {
            **common,
            "op": "measure",
            "source": number,
            "addresses": [addresses[to][0] for at, to in sample.flows if at == src],
            "trains": [(t.num_packets, t.interval_s, plan.settle_s) for t in plan.trains],
            "num_echoes": plan.num_echoes,
            "median": plan.median,
            "wait_at": addresses[rendezvous][0] if len(sources) > 1 else "",
        }
    return jobs


def _measurement(
    plan: SamplePlan,
    answers: Mapping[tuple[str, int], dict[str, Any] | Exception],
    shared_clock: bool,
) -> Measurement:
    sample = plan.sample
    served, not_served = split({dst: answers["serve", dst] for dst in sample.dsts})
    measured, not_measured = split({src: answers["measure", src] for src in sample.sources})
    if failed := {**not_served, **not_measured}:
        words = "; ".join(f"node {node}: {failed[node]}" for node in sample.nodes if node in failed)
        return Measurement(sample=sample, error=words)
    figures = _by_flow(sample, measured)
    goodputs: list[float | None] = []
    for transfer in range(len(sample.connections)):
        flows = [
            arrivals if shared_clock else _shifted(arrivals, figures[i])
            for i, arrivals in _arrivals(sample, served, transfer)
        ]
        warmup = plan.warmup_bytes[transfer] if plan.warmup_bytes else 0
        goodputs.append(goodput_bps(flows, warmup, WARMUP_FRACTION * plan.transfer_s))
    results = {train: result for _, train, result in served[sample.dsts[0]]["trains"]}
    methods = {figure["method"] for figure in figures}
    return Measurement(
        sample=sample,
        method="ping" if methods == {"ping"} else "udp",
        rtt_s=tuple(figure["rtt_s"] for figure in figures),
        one_way_s=tuple(figure["one_way_s"] for figure in figures),
        goodput_bps=goodputs[0],
        streams_goodput_bps=goodputs[1] if len(goodputs) > 1 else None,
        trains=plan.trains,
        train_results=tuple(
            PacketTrainResult(num_packets=train.num_packets, **results.get(i, probe.describe([])))
            for i, train in enumerate(plan.trains)
        ),
    )


def _by_flow(sample: LinkSample, measured: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the delays of every flow, as its source measured them."""
    found = []
    for i, (src, _) in enumerate(sample.flows):
        at = [start for start, _ in sample.flows[:i]].count(src)
        delays = {name: measured[src][name][at] for name in ("rtt_s", "one_way_s", "offset_s")}
        found.append({"wait_offset_s": 0.0, **measured[src], **delays})
    return found


def _arrivals(
    sample: LinkSample, served: Mapping[int, dict[str, Any]], transfer: int
) -> list[tuple[int, Arrivals]]:
    """Return (flow, arrivals) of every connection; a server orders its own by source."""
    found: list[tuple[int, Arrivals]] = []
    for dst, answer in served.items():
        flows = [i for i, (_, to) in enumerate(sample.flows) if to == dst]
        flows.sort(key=lambda i: sample.sources.index(sample.flows[i][0]))
        streams = sample.connections[transfer]
        for number, arrivals in enumerate(answer["arrivals"][transfer]):
            found.append((flows[number // streams], arrivals))
    return found


def _shifted(arrivals: Arrivals, figure: Mapping[str, Any]) -> Arrivals:
    """Convert arrivals to one clock for all flows."""
    if figure["offset_s"] is None or figure["wait_offset_s"] is None:
        return []
    shift_ns = round(1e9 * (figure["wait_offset_s"] - figure["offset_s"]))
    return [(ns + shift_ns, count) for ns, count in arrivals]


def readings_of(
    names: Sequence[str], measurements: Sequence[Measurement], mtu_bytes: int = 1500
) -> Matrix:
    """Return measurements as a matrix between named nodes, rounded to `DIGITS`, without failures.

    The bandwidth is the rate of a link that would give the larger of the two goodputs.
    """
    found = {}
    for measurement in measurements:
        if measurement.error:
            continue
        ((src, dst),) = measurement.sample.flows
        (rtt_s,), train = measurement.rtt_s, next(iter(measurement.train_results), None)
        goodputs = (measurement.goodput_bps, measurement.streams_goodput_bps)
        payload_bps = max((goodput for goodput in goodputs if goodput), default=None)
        found[names[src], names[dst]] = Reading(
            one_way_delay_s=rtt_s and _rounded(rtt_s / 2),
            halved=True,
            bandwidth_bps=payload_bps and _rounded(payload_bps / goodput_ratio(mtu_bytes)),
            jitter_s=_rounded(train.jitter_s) if train else None,
            loss=_rounded(train.loss) if train else None,
        )
    return Matrix(places=tuple(names), readings=found, notes=(HALVED, WIRE))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _json_of(node: Node, argv: Sequence[str], stdin: str) -> dict[str, Any]:
    return dict(json.loads(output_of(node, argv, stdin)))
