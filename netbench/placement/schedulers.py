"""The schedulers, by name."""

from __future__ import annotations

import numpy as np

from netbench.errors import PlanError
from netbench.placement.aligned import region_aligned
from netbench.placement.cost_search import search_cost
from netbench.placement.dtfm import dtfm
from netbench.placement.maps import MAPS
from netbench.placement.ours import netbench
from netbench.placement.problem import Answer, Budget, Problem, Scheduler
from netbench.placement.sampled import NUM_SAMPLES, sampled


def _mapped(name: str) -> Scheduler:
    """A map as a scheduler."""

    def scheduler(problem: Problem, seed: int, budget: Budget) -> Answer:
        grid = np.asarray(MAPS[name](problem.ranks.size, seed))[problem.ranks]
        fitting = problem.fits(grid)
        if not fitting.all():
            raise PlanError(
                f"{name} looks at no memory: {np.sum(~fitting)} of {fitting.size} devices cannot "
                "hold the stage it gives them; take a scheduler that does, e.g. netbench or "
                "region-aligned"
            )
        return Answer(grid=grid, stage_layers=problem.stage_layers)

    return scheduler


SCHEDULERS: dict[str, Scheduler] = {
    "identity": _mapped("identity"),
    "random": _mapped("random"),
    f"random-{NUM_SAMPLES}": sampled,
    "region-aligned": region_aligned,
    "dtfm": dtfm,
    "least-cost": search_cost,
    "netbench": netbench,
}
