"""Cost of simulating a placement in a search: rows of `make bench`, and the error of composition.

    python -m benchmarks.objective                     the rows, JSON lists
    python -m benchmarks.objective near                [scenario, variant, least, median, most] of
                                                       composed over simulated seconds

Rows are as in `benchmarks.simulator`, in processor time. Placements differ by an exchange of two
devices, as in a local search, so most of their parts are known.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.simulator import BATCH, LAYERS, Row, stretch
from netbench.placement.objective import PlanObjective
from netbench.placement.plan_problem import Request, placement_of
from netbench.placement.problem import Floats, Grid, Problem
from netbench.scenario.load import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator.iteration import simulate

VARIANTS = ("dtfm-random", "megatron-p8")
WAYS = (("composed", "composed_s"), ("put together", "times_s"))
AT_ONCE, REPEATS, SEED = 32, 5, 1
NUM_RANDOM = 50
LARGE = ((1024, 16), (4096, 32))
"""(GPUs, regions)."""
NEAR = (
    ("uneven-regions", "dtfm-random", 24, 1024),
    ("uneven-regions", "dtfm-random-1f1b", 24, 1024),
    ("uneven-regions", "dtfm-random-allreduce", 24, 1024),
    ("uneven-regions", "dtfm-random-sharded-ps", 24, 1024),
    ("uneven-regions", "megatron-p8", 24, 1024),
    ("worldwide-10", "dtfm-random", 24, 1080),
    ("worldwide-10", "megatron-p6", 24, 1080),
    ("spot-mix", "dtfm-random", 24, 1024),
    ("spot-mix", "megatron-p8", 24, 1024),
    ("mixed-gpu", "dtfm-random", 40, 384),
)
"""(scenario, variant, layers, batch)."""


def rows() -> Iterator[Row]:
    for variant in VARIANTS:
        yield from search_rows(variant)
    for variant in VARIANTS:
        for num_gpus, num_regions in LARGE:
            yield from large_rows(variant, num_gpus, num_regions)


def search_rows(variant: str) -> Iterator[Row]:
    """Time the next placements of a search on uneven-regions, per placement."""
    request = Request(
        scenario=load_scenario("uneven-regions"),
        variant=variant,
        setting=Setting(layers=LAYERS, batch=BATCH),
    )
    problem, random = request.problem(), np.random.default_rng(SEED)
    base = random.permutation(problem.num_devices)[: problem.ranks.size].reshape(problem.shape)
    grids = np.array([exchanged(base, problem.region, random) for _ in range(AT_ONCE)])
    simulated = whole_seconds(request, grids)
    what = f"{variant}, 64 GPUs in uneven regions, two exchanged"
    for name, timed in WAYS:
        for how, batches in (("one by one", grids[:, None]), (f"{AT_ONCE} at once", grids[None])):
            seconds = []
            for _ in range(REPEATS):
                objective = PlanObjective(request.plan())
                objective.composed_s(base[None])
                taken = sum(seconds_of(getattr(objective, timed), batch) for batch in batches)
                seconds.append(taken / AT_ONCE)
            yield (what, f"{name}, {how}", min(seconds), "simulated whole", simulated)


def large_rows(variant: str, num_gpus: int, num_regions: int) -> Iterator[Row]:
    """Time a placement whose parts are known."""
    request = Request(
        scenario=stretch(load_scenario("case5"), num_gpus, num_regions),
        variant=variant,
        setting=Setting(layers=LAYERS, batch=BATCH * num_gpus // 64),
    )
    problem = request.problem()
    grid = np.random.default_rng(SEED).permutation(num_gpus).reshape(problem.shape)
    what = f"{variant}, {num_gpus} GPUs in {num_regions} regions, parts known"
    problem.objective.composed_s(grid[None])
    simulated = whole_seconds(request, grid[None])
    for name, timed in WAYS:
        seconds = seconds_of(getattr(problem.objective, timed), grid[None])
        yield (what, name, seconds, "simulated whole", simulated)


def whole_seconds(request: Request, grids: Grid) -> float:
    """Return the least time of a few simulations of a plan."""
    plan, seconds = request.plan(), []
    for grid in grids[:REPEATS]:
        placed = dataclasses.replace(plan, placement=placement_of(plan, grid))
        started = time.process_time()
        simulate(placed)
        seconds.append(time.process_time() - started)
    return min(seconds)


def seconds_of(timed: Callable[[Grid], Floats], grids: Grid) -> float:
    started = time.process_time()
    timed(grids)
    return time.process_time() - started


def exchanged(grid: Grid, region: Grid, random: np.random.Generator) -> Grid:
    """Return the grid with two devices of different regions exchanged."""
    devices = grid.ravel().copy()
    pair = random.choice(devices.size, 2, replace=False)
    while len(set(region[devices[pair]])) == 1:
        pair = random.choice(devices.size, 2, replace=False)
    devices[pair] = devices[pair[::-1]]
    return devices.reshape(grid.shape)


def nearness(problem: Problem) -> list[float]:
    """Return composed over simulated seconds of random placements: least, median, most."""
    random, size = np.random.default_rng(SEED), problem.ranks.size
    grids = np.array(
        [
            random.permutation(problem.num_devices)[:size].reshape(problem.shape)
            for _ in range(NUM_RANDOM)
        ]
    )
    objective = problem.objective
    simulated_s = objective.times_s(grids)
    ratios = objective.composed_s(grids) / simulated_s
    return [float(np.quantile(ratios, part)) for part in (0.0, 0.5, 1.0)]


def main() -> None:
    if sys.argv[1:] == ["near"]:
        for name, variant, layers, batch in NEAR:
            scenario = load_scenario(name)
            request = Request(
                scenario=scenario, variant=variant, setting=Setting(layers=layers, batch=batch)
            )
            print(json.dumps([name, variant, *nearness(request.problem())]), flush=True)
    else:
        for row in rows():
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
