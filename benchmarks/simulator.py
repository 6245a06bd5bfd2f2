"""Rows of `make bench` for the simulator: time per iteration, all published cells, growth.

    python -m benchmarks.simulator                     the rows, JSON lists
    python -m benchmarks.simulator cells               every published cell, for a cold start
    python -m benchmarks.simulator grow VARIANT GPUS REGIONS    [seconds, peak bytes]

A row is [what, method of netbench, seconds, alternative, seconds]; the last two are null without an
alternative, which is a plain SimPy model of the same graph (`simpy_model`).
"""

from __future__ import annotations

import csv
import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.fit_v100 import PUBLISHED, SEEDS, read_published
from benchmarks.simpy_model import last_end, never_slow
from netbench.errors import PlanError
from netbench.plan.build import build_plan
from netbench.plan.maps import SEEDED
from netbench.plan.model import Execution, Plan
from netbench.scenario.load import load_scenario
from netbench.scenario.model import Scenario, Setting
from netbench.simulator import load_transport, simulate
from netbench.simulator.iteration import forget
from netbench.systems import find_variant

LAYERS, BATCH, SEED = 24, 4096, 2022
CASES = ("case3", "case5")
PIPELINES = ("dtfm-scheduled", "megatron-p8")
OTHERS = ("dtfm-random", "megatron-p8-random", "zero3")
GROWTH = ((64, 8), (256, 8), (1024, 16), (4096, 32))
"""(GPUs, regions)."""
REPEATS = 20
TOLERANCE = 0.02
"""Relative difference from the SimPy model, which lacks max-min fairness."""

Row = tuple[str, str, float, str | None, float | None]


def rows() -> Iterator[Row]:
    """Yield all rows."""
    for case in CASES:
        scenario = load_scenario(case)
        for variant in PIPELINES:
            yield against_simpy(plan_of(scenario, variant))
        for variant in OTHERS:
            plan = plan_of(scenario, variant)
            yield (title(plan), "simulated, warm", warm_seconds(plan), None, None)
        plans = [plan_of(scenario, PIPELINES[0], batch) for batch in (BATCH // 2, BATCH)]
        what = f"{title(plans[1])}, after B{BATCH // 2}"
        yield (what, "simulated", next_batch_seconds(*plans), None, None)
    started = time.perf_counter()
    cells, simulations = json.loads(_child("cells"))
    cold_s = time.perf_counter() - started
    what = f"all {cells} published cells from a cold start"
    yield (what, f"{simulations} simulations", cold_s, None, None)
    for variant in PIPELINES:
        for gpus, regions in GROWTH:
            seconds, peak_bytes = json.loads(_child("grow", variant, str(gpus), str(regions)))
            what = f"{variant}, {gpus} GPUs in {regions} regions"
            yield (what, f"simulated, {peak_bytes / 1e9:.2f} GB at most", seconds, None, None)


def against_simpy(plan: Plan) -> Row:
    """Time the warm simulator from plan to result, and SimPy on the same graphs."""
    simulation = simulate(plan, never_slow(load_transport(plan.backend)))
    timelines = {id(part.timeline): part.timeline for part in simulation.parts}
    simpy_s = 0.0
    for timeline in timelines.values():
        started = time.perf_counter()
        end_s = last_end(timeline, simulation.fabric)
        simpy_s += time.perf_counter() - started
        expected_s = float(timeline.end_s.max())
        if abs(end_s - expected_s) > TOLERANCE * expected_s:
            raise AssertionError(f"{title(plan)}: SimPy ends at {end_s:g} s, not {expected_s:g} s")
    return (title(plan), "simulated, warm", warm_seconds(plan), "SimPy, the same graph", simpy_s)


def title(plan: Plan) -> str:
    return f"an iteration of {plan.scenario} {plan.variant}, 64 GPUs, B{plan.workload.batch}"


def plan_of(scenario: Scenario, variant: str, batch: int = BATCH, seed: int = SEED) -> Plan:
    return build_plan(
        scenario,
        variant,
        Setting(layers=LAYERS, batch=batch, seed=seed),
        Execution(iterations=2, warmup_iterations=1, scale=1.0),
    )


def warm_seconds(plan: Plan) -> float:
    """Return the least time of a few simulations, with compiled code and the schedule's wiring
    loaded but no part of the plan known."""
    simulate(plan)
    seconds = []
    for _ in range(REPEATS):
        forget()
        started = time.perf_counter()
        simulate(plan)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def next_batch_seconds(before: Plan, plan: Plan) -> float:
    """Return the time of a simulation after one of another batch, whose parts are the same."""
    simulate(before)
    started = time.perf_counter()
    simulate(plan)
    return time.perf_counter() - started


def stretch(scenario: Scenario, num_gpus: int, num_regions: int) -> Scenario:
    """Return `scenario` with more regions, evenly filled with single-GPU nodes.

    Region i is a copy of region i modulo their number. Two copies of one region are joined by its
    link to the next region.
    """
    if num_gpus % num_regions:
        raise PlanError(f"{num_gpus} GPUs do not divide into {num_regions} regions")
    base, known = scenario.network, len(scenario.network.regions)

    def link(a: int, b: int) -> tuple[int, int]:
        here, there = a % known, b % known
        return here, (here + 1) % known if a != b and here == there else there

    links = tuple(
        tuple(base.links[i][j] for i, j in (link(a, b) for b in range(num_regions)))
        for a in range(num_regions)
    )
    regions = tuple(f"{base.regions[i % known]}{i // known}" for i in range(num_regions))
    home = tuple(i for i in range(num_regions) for _ in range(num_gpus // num_regions))
    nodes = tuple(
        dataclasses.replace(scenario.nodes[0], name=f"node{n}", region=regions[i])
        for n, i in enumerate(home)
    )
    network = dataclasses.replace(
        base,
        regions=regions,
        links=links,
        node_regions=home,
        nic_bps=tuple(node.nic_bps for node in nodes),
    )
    return dataclasses.replace(scenario, network=network, nodes=nodes)


def simulate_cells() -> tuple[int, int]:
    """Simulate every published cell; return the numbers of cells and of simulations.

    Cells that differ only by a seed that their placement ignores are one simulation.
    """
    with PUBLISHED.open(newline="", encoding="utf-8") as lines:
        cells = sum(1 for _ in csv.DictReader(lines))
    scenarios: dict[str, Scenario] = {}
    simulations = 0
    for case, variant, layers, batch in read_published():
        scenario = scenarios.setdefault(case, load_scenario(case))
        for seed in SEEDS if find_variant(variant).scheduler in SEEDED else SEEDS[:1]:
            simulate(
                build_plan(
                    scenario,
                    variant,
                    Setting(layers=layers, batch=batch, seed=seed),
                    Execution(iterations=2, warmup_iterations=1, scale=1.0),
                )
            )
            simulations += 1
    return cells, simulations


def grow(variant: str, num_gpus: int, num_regions: int) -> tuple[float, int]:
    """Return seconds of processor time from scenario to result, and the process's peak memory,
    bytes."""
    simulate(plan_of(load_scenario("case5"), variant))  # compiled code is loaded
    started = time.process_time()
    scenario = stretch(load_scenario("case5"), num_gpus, num_regions)
    simulate(plan_of(scenario, variant, BATCH * num_gpus // 64))
    seconds = time.process_time() - started
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _child(*arguments: str) -> str:
    argv = [sys.executable, "-m", "benchmarks.simulator", *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def main() -> None:
    if sys.argv[1:2] == ["cells"]:
        print(json.dumps(simulate_cells()))
    elif sys.argv[1:2] == ["grow"]:
        print(json.dumps(grow(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
    else:
        for row in rows():
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
