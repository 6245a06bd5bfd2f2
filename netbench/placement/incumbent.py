"""The best placement that a search has simulated so far, and when the search is over."""

from __future__ import annotations

import math
import time

import numpy as np

from netbench.placement.problem import Answer, Budget, Floats, Grid, Problem, Step


class Incumbent:
    """Counts what is simulated, keeps the best and tells of it."""

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self.value = np.inf
        self.num_evaluated = 0
        self._budget = budget
        self._started_s = time.perf_counter()
        self._steps: list[Step] = []
        self._grid: Grid = np.empty(problem.shape, np.int64)
        self._stage_layers = problem.stage_layers

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._started_s

    @property
    def over(self) -> bool:
        """Whether the budget is used up; never before anything was found."""
        if self.value == np.inf:
            return False
        return self._budget.over(self.elapsed_s, self.num_evaluated)

    def room(self, at_once: int) -> int:
        """How many of `at_once` candidates the budget has left."""
        return math.ceil(min(at_once, self._budget.evaluations - self.num_evaluated))

    def offer(self, problem: Problem, grids: Grid) -> Floats:
        """Simulated seconds of grids (n, dp * tp, pp) of a problem; the best is kept."""
        times_s = problem.objective.times_s(grids)
        self.num_evaluated += len(grids)
        best = int(np.argmin(times_s))
        if times_s[best] < self.value:
            self.value = float(times_s[best])
            self._grid, self._stage_layers = grids[best].copy(), problem.stage_layers
            step = Step(
                elapsed_s=self.elapsed_s,
                num_evaluated=self.num_evaluated,
                value=self.value,
                grid=self._grid,
                stage_layers=self._stage_layers,
            )
            self._steps.append(step)
            if self._budget.progress is not None:
                self._budget.progress(step)
        return times_s

    def answer(self) -> Answer:
        return Answer(
            grid=self._grid,
            stage_layers=self._stage_layers,
            steps=tuple(self._steps),
            num_evaluated=self.num_evaluated,
            elapsed_s=self.elapsed_s,
        )
