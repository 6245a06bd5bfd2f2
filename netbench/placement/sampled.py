"""The best of many random placements: what looking at the network has to beat."""

from __future__ import annotations

import time

import numpy as np

from netbench.errors import PlanError
from netbench.placement.problem import Answer, Budget, Grid, Problem, Step

NUM_SAMPLES = 1000

AT_ONCE = 8
"""Placements that are timed between two looks at the budget."""


def sampled(problem: Problem, seed: int, budget: Budget) -> Answer:
    """The best by simulated time of `NUM_SAMPLES` placements, drawn uniformly; fewer where the
    budget ends first. Raises PlanError where none of them fits its devices' memory."""
    started = time.perf_counter()
    generator = np.random.default_rng(seed)
    limit = int(min(NUM_SAMPLES, budget.evaluations))
    steps: list[Step] = []
    num_evaluated, elapsed_s = 0, 0.0
    while num_evaluated < limit and not (num_evaluated and budget.over(elapsed_s, num_evaluated)):
        grids = [_draw(problem, generator) for _ in range(min(AT_ONCE, limit - num_evaluated))]
        fitting = [grid for grid in grids if problem.fits(grid).all()]
        times_s = problem.objective.times_s(np.array(fitting)) if fitting else np.empty(0)
        num_evaluated += len(grids)
        elapsed_s = time.perf_counter() - started
        for grid, value in zip(fitting, times_s, strict=True):
            if steps and value >= steps[-1].value:
                continue
            step = Step(
                elapsed_s=elapsed_s,
                num_evaluated=num_evaluated,
                value=float(value),
                grid=grid,
                stage_layers=problem.stage_layers,
            )
            steps.append(step)
            if budget.progress:
                budget.progress(step)
    if not steps:
        raise PlanError(
            f"none of {num_evaluated} random placements fits the memory of its devices; take "
            "another scheduler"
        )
    return Answer(
        grid=steps[-1].grid,
        stage_layers=problem.stage_layers,
        steps=tuple(steps),
        num_evaluated=num_evaluated,
        elapsed_s=elapsed_s,
    )


def _draw(problem: Problem, generator: np.random.Generator) -> Grid:
    devices = generator.permutation(problem.num_devices)[: problem.ranks.size]
    return devices.reshape(problem.shape)
