"""The best of many random placements: a baseline that ignores the network."""

import numpy as np

from netbench.errors import PlanError
from netbench.placement.problem import Answer, Budget, Problem
from netbench.placement.search.incumbent import Incumbent

NUM_SAMPLES = 1000

AT_ONCE = 8
"""Placements that are simulated between two checks of the budget."""


def sampled(problem: Problem, seed: int, budget: Budget) -> Answer:
    """Return the fastest of `NUM_SAMPLES` uniformly drawn placements, by simulated time; of fewer
    where the budget ends first. Raises PlanError where none fits its devices' memory."""
    incumbent, generator = Incumbent(budget), np.random.default_rng(seed)
    limit = int(min(NUM_SAMPLES, budget.evaluations))
    while (left := limit - incumbent.num_evaluated) > 0:
        orders = [generator.permutation(problem.num_devices) for _ in range(min(AT_ONCE, left))]
        grids = [order[: problem.ranks.size].reshape(problem.shape) for order in orders]
        incumbent.num_evaluated += len(grids)
        fitting = [grid for grid in grids if problem.fits(grid).all()]
        times_s = problem.objective.times_s(np.array(fitting)) if fitting else np.empty(0)
        for grid, value in zip(fitting, times_s.tolist(), strict=True):
            incumbent.keep(value, grid, problem.stage_layers)
        if budget.over(incumbent.elapsed_s, incumbent.num_evaluated):
            break
    if incumbent.value == np.inf:
        raise PlanError(
            f"none of {incumbent.num_evaluated} random placements fits the memory of its devices; "
            "take another scheduler"
        )
    return incumbent.answer()
