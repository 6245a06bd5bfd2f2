"""Run `probe` on the nodes: samples in, measurements out.

The probe is sent to the node on standard input, so a node needs Python and nothing of netbench.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from netbench.network import probe
from netbench.network.command import Run, at_once, output_of
from netbench.network.verify import Measurement, Sample, goodput_bps, rounds, transfer_bytes
from netbench.scenario.model import Network

DEADLINE_S = 300.0
"""For one round of samples, by the clock of the controller (virtual in virtual time)."""


def measure(
    network: Network,
    samples: Sequence[Sample],
    addresses: Sequence[Sequence[str]],
    run: Run,
    scale: float = 1.0,
    *,
    at_the_same_time: bool = True,
    python: str = sys.executable,
    deadline_s: float = DEADLINE_S,
) -> tuple[Measurement, ...]:
    """Measure every sample, in order of `samples`. What fails is in its measurement's `error`.

    addresses: per node; the first of each is used. at_the_same_time: samples that share no node
    run together, which is exact in virtual time; in real time they would compete for the processor.
    """
    groups = rounds(samples) if at_the_same_time else tuple((sample,) for sample in samples)
    found: dict[Sample, Measurement] = {}
    for group in groups:
        found |= _measure_round(network, group, addresses, run, scale, python, deadline_s)
    return tuple(found[sample] for sample in samples)


def _measure_round(
    network: Network,
    group: Sequence[Sample],
    addresses: Sequence[Sequence[str]],
    run: Run,
    scale: float,
    python: str,
    deadline_s: float,
) -> dict[Sample, Measurement]:
    source = Path(probe.__file__).read_text(encoding="utf-8")
    tasks: dict[int, Callable[[], dict[str, Any]]] = {}

    def add(node: int, *words: object) -> None:
        argv = (python, "-", *(str(word) for word in words))
        tasks[node] = partial(_json_of, run, node, argv, source)

    for sample in group:
        warmup, measured = transfer_bytes(network, sample, scale)
        for dst in sample.dsts:
            add(dst, "serve", addresses[dst][0], warmup + measured)
        add(sample.src, "measure", warmup + measured, *(addresses[dst][0] for dst in sample.dsts))
    results = at_once(tasks, deadline_s)
    return {sample: _measurement(network, sample, results, scale) for sample in group}


def _measurement(
    network: Network, sample: Sample, results: dict[int, dict[str, Any] | Exception], scale: float
) -> Measurement:
    warmup, _ = transfer_bytes(network, sample, scale)
    nodes = (sample.src, *sample.dsts)
    errors = [f"node {n}: {results[n]}" for n in nodes if isinstance(results[n], Exception)]
    figures = {n: r for n in nodes if not isinstance(r := results[n], Exception)}
    if errors:
        return Measurement(sample=sample, error="; ".join(errors))
    source = figures[sample.src]
    return Measurement(
        sample=sample,
        method=source["method"],
        rtt_s=tuple(source["rtt_s"]),
        one_way_s=tuple(source["one_way_s"]),
        goodput_bps=goodput_bps([figures[dst]["arrivals"] for dst in sample.dsts], warmup),
    )


def _json_of(run: Run, node: int, argv: Sequence[str], stdin: str) -> dict[str, Any]:
    printed = output_of(run, node, argv, stdin)
    found: dict[str, Any] = json.loads(printed)
    return found
