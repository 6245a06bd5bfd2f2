"""The best placement found so far, and the budget of a search."""

import math
import time

import numpy as np

from netbench.placement.problem import Answer, Budget, Floats, Grid, Improvement, Problem


class Incumbent:
    """Counts placements, keeps the best and reports each improvement."""

    def __init__(self, budget: Budget) -> None:
        self.value = np.inf
        self.num_evaluated = 0
        self._budget = budget
        self._started_s = time.perf_counter()
        self._steps: list[Improvement] = []

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._started_s

    @property
    def over(self) -> bool:
        """True if the budget is used up and a placement was found."""
        if self.value == np.inf:
            return False
        return self._budget.over(self.elapsed_s, self.num_evaluated)

    def room(self, at_once: int) -> int:
        """Return how many of `at_once` candidates the budget still allows."""
        return math.ceil(min(at_once, self._budget.evaluations - self.num_evaluated))

    def offer(self, problem: Problem, grids: Grid) -> Floats:
        """Return simulated seconds of grids (n, dp * tp, pp) of a problem; keep the best."""
        times_s = problem.objective.times_s(grids)
        self.num_evaluated += len(grids)
        best = int(np.argmin(times_s))
        self.keep(float(times_s[best]), grids[best], problem.stage_layers)
        return times_s

    def keep(self, value: float, grid: Grid, stage_layers: tuple[int, ...]) -> None:
        """Keep and report a grid if its value is the least so far."""
        if value < self.value:
            self.value = value
            step = Improvement(
                elapsed_s=self.elapsed_s,
                num_evaluated=self.num_evaluated,
                value=value,
                grid=grid.copy(),
                stage_layers=stage_layers,
            )
            self._steps.append(step)
            if self._budget.progress is not None:
                self._budget.progress(step)

    def answer(self) -> Answer:
        """Return the best grid. At least one must have been kept."""
        return Answer(
            grid=self._steps[-1].grid,
            stage_layers=self._steps[-1].stage_layers,
            improvements=tuple(self._steps),
            num_evaluated=self.num_evaluated,
            elapsed_s=self.elapsed_s,
        )
