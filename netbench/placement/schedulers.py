"""The schedulers, by name."""

from __future__ import annotations

import numpy as np

from netbench.placement.aligned import region_aligned
from netbench.placement.cost_search import search_cost
from netbench.placement.dtfm import dtfm
from netbench.placement.maps import Map, identity, random
from netbench.placement.ours import netbench
from netbench.placement.problem import Answer, Budget, Problem, Scheduler
from netbench.placement.sampled import NUM_SAMPLES, sampled


def _mapped(place: Map) -> Scheduler:
    """A map as a scheduler."""

    def scheduler(problem: Problem, seed: int, budget: Budget) -> Answer:
        placement = np.asarray(place(problem.ranks.size, seed))
        return Answer(grid=placement[problem.ranks], stage_layers=problem.stage_layers)

    return scheduler


SCHEDULERS: dict[str, Scheduler] = {
    "identity": _mapped(identity),
    "random": _mapped(random),
    f"random-{NUM_SAMPLES}": sampled,
    "region-aligned": region_aligned,
    "dtfm": dtfm,
    "least-cost": search_cost,
    "netbench": netbench,
}
