"""Run `probe` on the nodes: samples in, measurements out.

The probe is sent to the node on standard input, so a node needs Python and nothing of netbench.
"""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from netbench.network import probe
from netbench.network.command import ALONE, Run, at_once, output_of
from netbench.network.samples import (
    MEASURED_S,
    Sample,
    expected_rate_bps,
    planned_trains,
    rounds,
    transfer_bytes,
)
from netbench.network.trains import Train, TrainResult, plan_trains, settle_s
from netbench.network.verify import Arrivals, Measurement, goodput_bps, goodput_ratio
from netbench.scenario.matrices import Matrix, Reading
from netbench.scenario.model import Link, Network

DEADLINE_S = 300.0
"""For one round of samples, beside twice the time that its transfers take at the expected rate; by
the clock of the controller (virtual in virtual time). A link scaled to 150 kbit/s takes minutes."""

MAX_ECHOES = 50

DIGITS = 4
"""Significant ones of what is measured of an unknown network."""

HALVED = "Delays are half of the smallest round trip: one way = RTT / 2."
WIRE = "Bandwidths are what links carry for the measured payload, headers of full frames included."

WARMUP_SHARE = 0.3
"""Of a transfer over a link of unknown rate: what slow start is given."""

UNKNOWN = Link(one_way_delay_s=0.0, bandwidth_bps=math.inf)

Progress = Callable[[int, int], None]
"""Called with the number of rounds that are done, and of all."""


def _silent(done: int, total: int) -> None:
    """No progress is shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Where and how to measure.

    addresses: per node; the first of each is used. python: the interpreter, of all or per node.
    shared_clock: nodes are on one kernel. at_the_same_time: samples that share nothing run
    together, which is exact in virtual time and on separate machines; on one machine in real time
    they would compete for the processor. measured_s: shortest time a transfer is timed over.
    deadline_s: of a round of samples.
    """

    addresses: Sequence[Sequence[str]]
    run: Run
    shared_clock: bool = True
    at_the_same_time: bool = True
    python: str | Sequence[str] = sys.executable
    measured_s: float = MEASURED_S
    deadline_s: float = DEADLINE_S
    progress: Progress = _silent


def measure(
    network: Network,
    samples: Sequence[Sample],
    addresses: Sequence[Sequence[str]],
    run: Run,
    scale: float = 1.0,
    *,
    at_the_same_time: bool = True,
    python: str | Sequence[str] = sys.executable,
    deadline_s: float = DEADLINE_S,
    shared_clock: bool = True,
    measured_s: float = MEASURED_S,
    progress: Progress = _silent,
) -> tuple[Measurement, ...]:
    """Measure every sample, in order of `samples`. What fails is in its measurement's `error`.

    The arguments after `samples` are those of `Setting`.
    """
    setting = Setting(
        addresses=addresses,
        run=run,
        shared_clock=shared_clock,
        at_the_same_time=at_the_same_time,
        python=python,
        measured_s=measured_s,
        deadline_s=deadline_s,
        progress=progress,
    )
    return _measure_all(samples, network, setting, partial(_task, network, scale, setting))


def measure_as_is(
    pairs: Sequence[tuple[int, int]], setting: Setting, streams: int, each_s: float
) -> tuple[Measurement, ...]:
    """Measure (source, destination) pairs of which nothing is known, in order of `pairs`.

    Every transfer, by one connection and if `streams` is more than one by so many, lasts for
    `each_s`; the first `WARMUP_SHARE` of it is not counted.
    """
    num_nodes = len(setting.addresses)
    network = Network(
        regions=("",),
        links=((UNKNOWN,),),
        node_regions=(0,) * num_nodes,
        sharing="pair",
        nic_bps=(math.inf,) * num_nodes,
    )
    samples = [Sample(kind="link", src=src, dsts=(dst,), streams=streams) for src, dst in pairs]
    return _measure_all(samples, network, setting, partial(_open_task, each_s))


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """How a sample is transferred. streams: connections per flow, by transfer. total_bytes: per
    connection, by transfer, of which `warmup_bytes` are not counted; empty: for `transfer_s`.
    expected_s: that all transfers take together, 0 where unknown. settle_s: to wait after a train.
    num_echoes, middle: as `probe.measure` has them."""

    sample: Sample
    streams: tuple[int, ...]
    total_bytes: tuple[int, ...] = ()
    warmup_bytes: tuple[int, ...] = ()
    transfer_s: float = 0.0
    expected_s: float = 0.0
    trains: tuple[Train, ...] = ()
    settle_s: float = 0.0
    num_echoes: int = probe.NUM_ECHOES
    middle: bool = False


def _task(network: Network, scale: float, setting: Setting, sample: Sample) -> Task:
    """What a sample of a known network takes."""
    streams = (1, sample.streams) if sample.streams > 1 else (1,)
    sizes = [transfer_bytes(network, sample, scale, n, setting.measured_s) for n in streams]
    num_bytes = len(sample.dsts) * sum(
        n * sum(size) for n, size in zip(streams, sizes, strict=True)
    )
    link = network.link(*sample.flows[0])
    both = [network.link(*ends) for src, dst in sample.flows for ends in ((src, dst), (dst, src))]
    return Task(
        sample=sample,
        streams=streams,
        total_bytes=tuple(warmup + measured for warmup, measured in sizes),
        warmup_bytes=tuple(warmup for warmup, _ in sizes),
        expected_s=8 * num_bytes * scale / (expected_rate_bps(network, sample) or math.inf),
        trains=planned_trains(network, sample, scale),
        settle_s=settle_s(link),
        num_echoes=_num_echoes(max(link.mean_loss for link in both)),
        # ping counts a damaged answer, and the time that is damaged in it.
        middle=any(link.reordering or link.corruption for link in both),
    )


def _open_task(each_s: float, sample: Sample) -> Task:
    """What a link takes of which nothing is known."""
    streams = (1, sample.streams) if sample.streams > 1 else (1,)
    trains = plan_trains(UNKNOWN, UNKNOWN.bandwidth_bps, 1.0, True)
    return Task(sample=sample, streams=streams, transfer_s=each_s, trains=trains)


def _num_echoes(loss: float) -> int:
    """Enough that one comes back, but for one time in a million, and not more than needed."""
    num = probe.NUM_ECHOES
    while (1 - (1 - loss) ** 2) ** num > 1e-6 and num < MAX_ECHOES:
        num += 1
    return num


def _measure_all(
    samples: Sequence[Sample], network: Network, setting: Setting, task_of: Callable[[Sample], Task]
) -> tuple[Measurement, ...]:
    together = setting.at_the_same_time
    groups = rounds(samples, network) if together else tuple((sample,) for sample in samples)
    found: dict[Sample, Measurement] = {}
    for done, group in enumerate(groups):
        setting.progress(done, len(groups))
        found |= _measure_round([task_of(sample) for sample in group], setting)
    setting.progress(len(groups), len(groups))
    return tuple(found[sample] for sample in samples)


def _measure_round(tasks: Sequence[Task], setting: Setting) -> dict[Sample, Measurement]:
    source = Path(probe.__file__).read_text(encoding="utf-8")
    calls: dict[tuple[str, int], Callable[[], dict[str, Any]]] = {}
    for task in tasks:
        for name, job in _jobs(task, setting.addresses).items():
            python = setting.python
            argv = (python if isinstance(python, str) else python[name[1]], *ALONE, "-")
            text = f"{source}\nmain({json.dumps(job)!r})\n"
            calls[name] = partial(_json_of, setting.run, name[1], argv, text)
    slowest_s = max(task.expected_s for task in tasks)
    answers = at_once(calls, setting.deadline_s + 2 * slowest_s)
    return {task.sample: _measurement(task, answers, setting.shared_clock) for task in tasks}


def _jobs(task: Task, addresses: Sequence[Sequence[str]]) -> dict[tuple[str, int], dict[str, Any]]:
    """What every node of a sample is to do: (operation, node) -> the arguments of `probe`."""
    sample, token = task.sample, secrets.token_hex(probe.TOKEN_BYTES)
    sources, meeting = sample.sources, sample.dsts[0]
    common = {
        "token": token,
        "streams": task.streams,
        "total_bytes": task.total_bytes or None,
        "transfer_s": task.transfer_s,
    }
    jobs: dict[tuple[str, int], dict[str, Any]] = {}
    for dst in dict.fromkeys(sample.dsts):
        jobs["serve", dst] = {
            **common,
            "op": "serve",
            "address": addresses[dst][0],
            "num_sources": sample.dsts.count(dst),
            "num_waiting": len(sources) if dst == meeting and len(sources) > 1 else 0,
        }
    for number, src in enumerate(sources):
        jobs["measure", src] = {
            **common,
            "op": "measure",
            "source": number,
            "addresses": [addresses[to][0] for at, to in sample.flows if at == src],
            "trains": [(t.num_packets, t.interval_s, task.settle_s) for t in task.trains],
            "num_echoes": task.num_echoes,
            "middle": task.middle,
            "wait_at": addresses[meeting][0] if len(sources) > 1 else "",
        }
    return jobs


def _measurement(
    task: Task, answers: Mapping[tuple[str, int], dict[str, Any] | Exception], shared_clock: bool
) -> Measurement:
    sample = task.sample
    served = {dst: answers["serve", dst] for dst in sample.dsts}
    measured = {src: answers["measure", src] for src in sample.sources}
    failed = {n: r for n, r in {**served, **measured}.items() if isinstance(r, Exception)}
    if failed:
        words = "; ".join(f"node {node}: {failed[node]}" for node in sample.nodes if node in failed)
        return Measurement(sample=sample, error=words)
    figures = _by_flow(sample, {n: r for n, r in measured.items() if isinstance(r, dict)})
    answers_of = {n: r for n, r in served.items() if isinstance(r, dict)}
    goodputs: list[float | None] = []
    for transfer in range(len(task.streams)):
        flows = [
            arrivals if shared_clock else _shifted(arrivals, figures[i])
            for i, arrivals in _arrivals(task, answers_of, transfer)
        ]
        warmup = task.warmup_bytes[transfer] if task.warmup_bytes else 0
        goodputs.append(goodput_bps(flows, warmup, WARMUP_SHARE * task.transfer_s))
    results = {train: result for _, train, result in answers_of[sample.dsts[0]]["trains"]}
    methods = {figure["method"] for figure in figures}
    return Measurement(
        sample=sample,
        method="ping" if methods == {"ping"} else "udp",
        rtt_s=tuple(figure["rtt_s"] for figure in figures),
        one_way_s=tuple(figure["one_way_s"] for figure in figures),
        goodput_bps=goodputs[0],
        streams_goodput_bps=goodputs[1] if len(goodputs) > 1 else None,
        trains=task.trains,
        train_results=tuple(
            TrainResult(num_packets=train.num_packets, **results.get(i, probe.describe([])))
            for i, train in enumerate(task.trains)
        ),
    )


def _by_flow(sample: Sample, measured: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """What its source found out about every flow."""
    found = []
    for i, (src, _) in enumerate(sample.flows):
        at = [start for start, _ in sample.flows[:i]].count(src)
        answer = measured[src]
        found.append(
            {
                "method": answer["method"],
                **{name: answer[name][at] for name in ("rtt_s", "one_way_s", "offset_s")},
                "wait_offset_s": answer.get("wait_offset_s", 0.0),
            }
        )
    return found


def _arrivals(
    task: Task, served: Mapping[int, dict[str, Any]], transfer: int
) -> list[tuple[int, Arrivals]]:
    """(flow, what came of it) of every connection: a server has its own in order of sources."""
    found: list[tuple[int, Arrivals]] = []
    for dst, answer in served.items():
        flows = [i for i, (_, to) in enumerate(task.sample.flows) if to == dst]
        flows.sort(key=lambda i: task.sample.sources.index(task.sample.flows[i][0]))
        streams = task.streams[transfer]
        for number, arrivals in enumerate(answer["arrivals"][transfer]):
            found.append((flows[number // streams], arrivals))
    return found


def _shifted(arrivals: Arrivals, figure: Mapping[str, Any]) -> Arrivals:
    """Arrivals by one clock for all flows: the source's, or that of where the sources met."""
    if figure["offset_s"] is None or figure["wait_offset_s"] is None:
        return []
    shift_ns = round(1e9 * (figure["wait_offset_s"] - figure["offset_s"]))
    return [(ns + shift_ns, count) for ns, count in arrivals]


def readings_of(
    names: Sequence[str], measurements: Sequence[Measurement], mtu_bytes: int = 1500
) -> Matrix:
    """What was measured between nodes of these names, rounded to `DIGITS`; failed ones left out.

    The bandwidth is the rate of a link that gives the larger of the two goodputs.
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


def _json_of(run: Run, node: int, argv: Sequence[str], stdin: str) -> dict[str, Any]:
    printed = output_of(run, node, argv, stdin)
    found: dict[str, Any] = json.loads(printed)
    return found
