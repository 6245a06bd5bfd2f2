"""The schedulers' rows of `make bench`: time to equal cost.

    python -m benchmarks.placement         the rows, JSON lists

Both search DT-FM's communication cost of the same problem, one after the other in one process. The
cost to reach is the one at which the published search ends; compared are the times at which each
first had groups of it or less, the mean of a few seeds. For both the clock starts with the problem
in memory and all code compiled, and stops before the groups are made a grid (0.2 ms). What takes
less than half a second is timed a few times more, for the median: one interruption by another
process would be the most of it. A candidate of the published search is a whole partition, locally
improved; one of ours is a layout or a swap, of which only what changes is evaluated.

Not every problem is a search: where regions are as large as pipelines, the published search has
its cost before any evolution, in its random partitions after local search, and ours in its first
layout. Such a row, which says so, compares what it takes to begin.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from statistics import mean, median

from benchmarks.simulator import Row
from netbench.placement.cost_search import search_cost
from netbench.placement.dtfm import POPULATION, dtfm
from netbench.placement.problem import Answer, Budget, Problem, Scheduler, Step
from netbench.scenario.load import load_scenario
from netbench.simulator.scheduling import Request

SETTINGS = {
    "case5": ("dtfm-scheduled", 24, 1024),
    "uneven-regions": ("dtfm-scheduled", 24, 1024),
    "spot-mix": ("dtfm-scheduled", 24, 1024),
    "mixed-gpu": ("dtfm-scheduled", 40, 384),
    "worldwide-10": ("dtfm-scheduled-p6", 24, 960),
}
"""Variant, layers and batch by scenario: case 5, and all that tell schedulers apart."""

SEEDS = range(5)

PUBLISHED, OURS = Budget(), Budget(seconds=2.0)
"""The published search ends by itself, after 5,000 candidates: at the same cost in every run."""

QUICK_S, REPEATS = 0.5, 5
"""What is timed again, and how often."""

FEW = Budget(evaluations=100)
"""Enough for everything to be compiled."""


def rows() -> Iterator[Row]:
    """One per scenario."""
    for name in SETTINGS:
        yield to_equal_cost(name, problem_of(name))


def problem_of(scenario: str) -> Problem:
    variant, layers, batch = SETTINGS[scenario]
    return Request(
        scenario=load_scenario(scenario), variant=variant, layers=layers, batch=batch
    ).problem()


def to_equal_cost(name: str, problem: Problem) -> Row:
    """Both searches of one problem, seed by seed."""
    dtfm(problem, 0, FEW)
    search_cost(problem, 0, FEW)
    theirs = [dtfm(problem, seed, PUBLISHED).steps[-1] for seed in SEEDS]
    ours = [
        first_at_most(search_cost(problem, seed, OURS), step.value)
        for seed, step in zip(SEEDS, theirs, strict=True)
    ]
    ours_s = [seconds(search_cost, problem, *pair) for pair in zip(SEEDS, ours, strict=True)]
    theirs_s = [seconds(dtfm, problem, *pair) for pair in zip(SEEDS, theirs, strict=True)]
    cost_s = mean(step.value for step in theirs)
    at_once = all(step.num_evaluated <= POPULATION for step in theirs)
    return (
        f"a placement of DT-FM cost {cost_s:.4g} s, {name}",
        f"search_cost, {_candidates(ours)}",
        mean(ours_s),
        f"dtfm, {_candidates(theirs)}{' before evolution' if at_once else ''}",
        mean(theirs_s),
    )


def _candidates(steps: list[Step]) -> str:
    return f"{mean(step.num_evaluated for step in steps):,.0f} candidates"


def first_at_most(answer: Answer, cost_s: float) -> Step:
    """The first step of this cost, or of less; costs are added up in different orders."""
    for step in answer.steps:
        if step.value <= cost_s * (1 + 1e-9):
            return step
    found_s = answer.steps[-1].value
    raise AssertionError(f"search_cost ends at {found_s:g} s, dtfm at {cost_s:g} s")


def seconds(search: Scheduler, problem: Problem, seed: int, reached: Step) -> float:
    """Of a search until it reached a step."""
    if reached.elapsed_s >= QUICK_S:
        return reached.elapsed_s
    until = Budget(evaluations=reached.num_evaluated)
    return median(
        step.elapsed_s
        for _ in range(REPEATS)
        for step in search(problem, seed, until).steps
        if step.num_evaluated == reached.num_evaluated
    )


if __name__ == "__main__":
    for row in rows():
        json.dump(row, sys.stdout)
        print(flush=True)
