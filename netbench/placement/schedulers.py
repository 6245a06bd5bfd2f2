"""The registry of schedulers by name."""

import numpy as np

from netbench.errors import PlanError
from netbench.placement.dtfm.scheduler import dtfm
from netbench.placement.problem import Answer, Budget, Problem, Scheduler
from netbench.placement.search.aligned import region_aligned
from netbench.placement.search.sampled import NUM_SAMPLES, sampled
from netbench.placement.search.scheduler import netbench
from netbench.plan.maps import MAPS


def _mapped(name: str) -> Scheduler:
    def scheduler(problem: Problem, seed: int, budget: Budget) -> Answer:
        devices = problem.node[: problem.ranks.size].tolist()
        grid = np.asarray(MAPS[name](devices, seed))[problem.ranks]
        fitting = problem.fits(grid)
        if not fitting.all():
            raise PlanError(
                f"{name} ignores memory: {np.sum(~fitting)} of {fitting.size} devices cannot hold "
                "the stage that it gives them; choose another scheduler, e.g. netbench or "
                "region-aligned"
            )
        return Answer(grid=grid, stage_layers=problem.stage_layers)

    return scheduler


SCHEDULERS: dict[str, Scheduler] = {
    "identity": _mapped("identity"),
    "random": _mapped("random"),
    "random-nodes": _mapped("random-nodes"),
    f"random-{NUM_SAMPLES}": sampled,
    "region-aligned": region_aligned,
    "dtfm": dtfm,
    "netbench": netbench,
}
