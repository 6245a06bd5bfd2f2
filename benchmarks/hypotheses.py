"""Ideas on what slows down GPUs that share a NIC, each with all constants fitted again.

    python -m benchmarks.hypotheses            print both tables
    python -m benchmarks.hypotheses --write    and write them to docs/calibration.md

The first table has an idea per row. The second has the rate of a NIC with which each system of
cases 1 and 2 would take its published time on the average, with the built-in constants.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from benchmarks.calibrate_v100 import PAGE, TABLES, mean_error, with_table
from benchmarks.fit_v100 import (
    FITTED_ON,
    PREDICTED,
    Bench,
    Calibration,
    Constants,
    Simulator,
    Times,
    calibrate,
    read_published,
    sequence_flops,
)
from netbench.plan.model import Plan
from netbench.scenario.load import load_scenario
from netbench.simulator import TransportProfile, load_transport
from netbench.systems import find_variant

HEAD = (
    "| | p8 | t8 | p2t4 | p4t2 | scheduled | random | zero3 "
    "| scheduled | random | p8 | p8-random | zero3 | layer, ms |"
)

FITTED = (
    "megatron-p8", "megatron-t8", "megatron-p2t4", "megatron-p4t2", "dtfm-scheduled",
    "dtfm-random", "zero3",
)  # fmt: skip
FORESEEN = ("dtfm-scheduled", "dtfm-random", "megatron-p8", "megatron-p8-random", "zero3")

LOWEST_BPS, HIGHEST_BPS = 2e9, 100e9
"""Rates of a NIC between which one is searched."""

STEPS = 9
"""Halvings of that range, on a logarithmic scale: to 1%."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Idea:
    """A hypothesis. change: of every plan. transport: values of the profile that differ."""

    name: str
    meaning: str
    change: Callable[[Plan], Plan] | None = None
    transport: Mapping[str, float] = dataclasses.field(default_factory=dict)


def with_network(plan: Plan, **changes: Any) -> Plan:
    """Return the plan on a network with other fields."""
    return dataclasses.replace(plan, network=dataclasses.replace(plan.network, **changes))


def with_nics(plan: Plan, factor: float) -> Plan:
    """Return the plan with NICs whose rate, in each direction, is `factor` times as high."""
    return with_network(plan, nic_bps=tuple(factor * bps for bps in plan.network.nic_bps))


def with_nics_of(plan: Plan, bps: float) -> Plan:
    """Return the plan with NICs of another rate."""
    return with_network(plan, nic_bps=(bps,) * plan.network.num_nodes)


def with_both_ways(plan: Plan, factor: float) -> Plan:
    """Return the plan with hosts that carry `factor` times their NIC's rate, both ways together."""
    return with_network(plan, host_bps=tuple(factor * bps for bps in plan.network.nic_bps))


def with_hosts_of(plan: Plan, bps: float, per_gpu: bool = False) -> Plan:
    """Return the plan with hosts that carry `bps` in and out together, or that for each GPU."""
    gpus = np.bincount(plan.device_nodes, minlength=plan.network.num_nodes)
    return with_network(
        plan, host_bps=tuple(bps * (int(count) if per_gpu else 1) for count in gpus)
    )


def with_pairs_of(plan: Plan, bps: float) -> Plan:
    """Return the plan with `bps` at most from one node to another."""
    links = tuple(
        tuple(dataclasses.replace(link, bandwidth_bps=min(bps, link.bandwidth_bps)) for link in row)
        for row in plan.network.links
    )
    return with_network(plan, links=links)


def with_jitter(plan: Plan, jitter: float) -> Plan:
    """Return the plan with passes whose times vary more or less."""
    return dataclasses.replace(plan, jitter=jitter)


IDEAS = (
    Idea(name="adopted", meaning="the constants above"),
    Idea(
        name="in step",
        meaning="passes take equal times, so pipelines use a NIC at the same moments",
        change=partial(with_jitter, jitter=0.0),
    ),
    Idea(
        name="jitter 0.3%",
        meaning="passes vary by 0.3% instead of 1%",
        change=partial(with_jitter, jitter=0.003),
    ),
    Idea(
        name="NIC 96%",
        meaning="each direction of a NIC carries 96% of its rate",
        change=partial(with_nics, factor=0.96),
    ),
    Idea(
        name="NIC 87%",
        meaning="each direction carries 87%",
        change=partial(with_nics, factor=0.87),
    ),
    Idea(
        name="both ways 1.72",
        meaning="both directions of a NIC together carry 1.72 times its rate",
        change=partial(with_both_ways, factor=1.72),
    ),
    Idea(
        name="both ways 1",
        meaning="both directions together carry its rate",
        change=partial(with_both_ways, factor=1.0),
    ),
    Idea(
        name="host 17.2",
        meaning="the sockets of a host carry 17.2 Gbit/s for each of its GPUs, in and out together",
        change=partial(with_hosts_of, bps=17.2e9, per_gpu=True),
    ),
    Idea(
        name="node 26",
        meaning="a node carries 26 Gbit/s, in and out together; hosts have no other limit",
        change=partial(with_hosts_of, bps=26e9),
    ),
    Idea(
        name="pair 5",
        meaning="one node sends 5 Gbit/s to another, at most",
        change=partial(with_pairs_of, bps=5e9),
    ),
    Idea(
        name="FIFO 4 MiB",
        meaning="NCCL's FIFO holds 4 MiB",
        transport={"fifo_bytes": 4 << 20},
    ),
)  # fmt: skip


def ideas(times: Times, pool: Executor) -> Iterator[str]:
    """Yield the lines of the first table, and what its rows mean."""
    yield HEAD
    yield "|---|" + "--:|" * (HEAD.count("|") - 2)
    for idea in IDEAS:
        transport = load_transport("nccl").model_copy(update=dict(idea.transport))
        yield _line(idea.name, calibrate(times, pool, transport, idea.change))
    yield ""
    yield from (f"- *{idea.name}*: {idea.meaning}." for idea in IDEAS)


def _line(name: str, found: Calibration) -> str:
    groups = [
        [row for row in found.rows if row.variant == variant and row.case in cases]
        for cases, variants in ((FITTED_ON, FITTED), (PREDICTED, FORESEEN))
        for variant in variants
    ]
    cells = [f"{100 * mean_error(group):.1f}" for group in groups]
    layer_ms = 1e3 * found.constants.layer_s["megatron"]
    layer = f"{layer_ms:.1f}" if layer_ms > 0 else "< 0"  # no time is left for the layer
    return f"| {name} | {' | '.join(cells)} | {layer} |"


def rates(times: Times, pool: Executor) -> Iterator[str]:
    """Yield the lines of the second table."""
    bench, transport = Bench(times, pool), load_transport("nccl")
    yield "| | " + " | ".join(FITTED_ON) + " |"
    yield "|---|" + "--:|" * len(FITTED_ON)
    for variant in FITTED:
        cells = [_rate(bench, transport, case, variant) for case in FITTED_ON]
        yield f"| {variant} | {' | '.join(cells)} |"


def _rate(bench: Bench, transport: TransportProfile, case: str, variant: str) -> str:
    """Return the rate in Gbit/s at which the mean error is 0, by bisection; it falls with the rate.

    If even the lowest rate is too fast, return `< ` and that rate. If even the highest is too slow,
    say so.
    """

    def error(bps: float) -> float:
        change = partial(with_nics_of, bps=bps)
        simulator = Simulator(constants=built_in(), transport=transport, change=change)
        return float(np.mean(bench.errors(simulator, (case,), (variant,))))

    low, high = LOWEST_BPS, HIGHEST_BPS
    if error(low) < 0:
        return f"< {low / 1e9:g}"
    if error(high) > 0:
        return "any is too slow"
    for _ in range(STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if error(middle) > 0 else (low, middle)
    return f"{math.sqrt(low * high) / 1e9:.1f}"


def built_in() -> Constants:
    """Return the constants of the built-in profile."""
    scenario = load_scenario(FITTED_ON[0])
    (profile,) = {scenario.devices[node.device].name: scenario.devices[node.device]
                  for node in scenario.nodes}.values()  # fmt: skip
    work = sequence_flops(scenario.workload)
    systems = {find_variant(variant).system for variant in FITTED}
    return Constants(
        layer_s={system: work / profile.flops[system] for system in systems},
        optimizer_s=profile.optimizer_s_per_parameter["dtfm"],
        collective_s=profile.collective_s["zero3"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write them to {PAGE.name}")
    arguments = parser.parse_args()
    page, times = PAGE.read_text(encoding="utf-8"), read_published()
    with ProcessPoolExecutor() as pool:
        for name, table in zip(TABLES, (ideas, rates), strict=True):
            lines = []
            for line in table(times, pool):
                print(line, flush=True)
                lines.append(line)
            page = with_table(page, name, "\n" + "\n".join(lines) + "\n\n")
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
