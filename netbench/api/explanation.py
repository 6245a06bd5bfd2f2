"""Explain where the time of a simulated iteration goes."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netbench.api.results import grid_html
from netbench.plan.model import Plan
from netbench.plan.serial import plan_hash
from netbench.report.pictures.picture import Picture
from netbench.report.tables.grid import Grid
from netbench.timelines import name_of_rank
from netbench.workload.costs import pflop_per_iteration

if TYPE_CHECKING:
    from pandas import DataFrame

    from netbench.explain.breakdown import Breakdown, PathStep
    from netbench.explain.losses import Loss
    from netbench.explain.usage import LinkUse
    from netbench.simulator.iteration import Simulation


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One simulated iteration of `simulation.plan`, attributed to its causes.

    Not slotted: what is asked for is computed once and kept.
    """

    simulation: Simulation

    @property
    def plan(self) -> Plan:
        """Return the plan that was simulated."""
        return self.simulation.plan

    @property
    def iteration_s(self) -> float:
        """Return the seconds of the iteration."""
        return self.simulation.iteration_s

    @property
    def range_s(self) -> tuple[float, float]:
        """Return the shortest and the longest iteration of those with random times of passes."""
        drawn_s = self.simulation.drawn_s or (self.iteration_s,)
        return drawn_s[0], drawn_s[-1]

    @property
    def pflops(self) -> float:
        """Return the sustained PFLOPS."""
        return pflop_per_iteration(self.plan.workload) / self.iteration_s

    @functools.cached_property
    def bound_s(self) -> float:
        """Return the seconds that compute alone would take."""
        from netbench.explain.breakdown import bound_s

        return bound_s(self.plan)

    @functools.cached_property
    def losses(self) -> tuple[Loss, ...]:
        """Return the largest losses against `bound_s`, each with a sentence."""
        from netbench.explain.losses import losses

        return losses(self.simulation)

    @functools.cached_property
    def breakdown(self) -> Breakdown:
        """Return the seconds of every rank by cause."""
        from netbench.explain.breakdown import breakdown

        return breakdown(self.simulation)

    @functools.cached_property
    def critical_path(self) -> tuple[PathStep, ...]:
        """Return the steps that determine when the iteration ends."""
        from netbench.explain.breakdown import critical_path

        return critical_path(self.simulation)

    @functools.cached_property
    def links(self) -> tuple[LinkUse, ...]:
        """Return the use of every link, busiest first."""
        from netbench.explain.usage import links

        return links(self.simulation)

    @property
    def table(self) -> DataFrame:
        """Return a row per rank: its name, and the seconds of each cause, e.g. `bubble_s`."""
        import pandas as pd

        from netbench.explain.causes import Cause

        ranks = range(self.plan.layout.num_ranks)
        seconds = {
            f"{cause.name.lower()}_s": self.breakdown.seconds[:, cause.value] for cause in Cause
        }
        return pd.DataFrame({"rank": [name_of_rank(self.plan, r) for r in ranks], **seconds})

    @property
    def link_table(self) -> DataFrame:
        """Return a row per link, busiest first: kind, name, payload_bytes, capacity_bps,
        utilisation (of the iteration, 0..1)."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(use) for use in self.links])

    def plot(self) -> Picture:
        """Draw a timeline of the iteration."""
        from netbench.explain.activity import activity
        from netbench.explain.breakdown import timelines
        from netbench.report.pictures.timeline import timeline_figure

        plan = self.plan
        parts = [
            (part.name, part.to_s - part.from_s, part.repeat)
            for _, _, parts in timelines(self.simulation)
            for part in parts
        ]
        title = (
            f"{plan.scenario}, {plan.variant}, {plan.workload.name}, batch "
            f"{plan.workload.batch}: {self.iteration_s:.4g} s per iteration"
        )
        return Picture(figure=timeline_figure(title, activity(self.simulation), parts))

    def write_trace(self, path: str | Path) -> None:
        """Write a trace for Perfetto (.json, .json.gz)."""
        from netbench.explain.perfetto import write_trace

        write_trace(self.simulation, Path(path))

    def as_dict(self) -> dict[str, Any]:
        """Return all figures, unrounded, as JSON values."""
        from netbench.explain import breakdown
        from netbench.explain.causes import Cause

        plan, found, steps = self.plan, self.breakdown, self.critical_path
        return {
            "plan_hash": plan_hash(plan),
            "scenario": plan.scenario,
            "variant": plan.variant,
            "iteration_s": self.iteration_s,
            "range_s": list(self.range_s),
            "pflops": self.pflops,
            "bound_s": self.bound_s,
            "phases": self.simulation.phases,
            "breakdown": {
                "mean_s": found.mean_s(),
                "worst_rank": found.worst_rank,
                "causes": [cause.name.lower() for cause in Cause],
                "by_rank_s": found.seconds.tolist(),
            },
            "losses": [dataclasses.asdict(loss) for loss in self.losses],
            "critical_path": {
                "by_kind_s": breakdown.seconds_by_kind(steps),
                "by_link_s": breakdown.seconds_by_link(steps, plan),
                "steps": [dataclasses.asdict(step) for step in steps],
            },
            "links": [dataclasses.asdict(use) for use in self.links],
        }

    def _repr_html_(self) -> str:
        mean_s = self.breakdown.mean_s()
        rows = tuple(
            (name.replace("_", " "), f"{seconds:.3f}", f"{seconds / self.iteration_s:.1%}")
            for name, seconds in mean_s.items()
        )
        grid = Grid(head=("mean rank", "seconds", "share"), rows=rows)
        return grid_html(grid, [loss.text for loss in self.losses])


def explain_plan(plan: Plan) -> Explanation:
    """Simulate one iteration of a plan and explain where its time goes.

    Raises PlanError for a plan that cannot be simulated.
    """
    from netbench.simulator import simulate  # numba: only when something is simulated

    return Explanation(simulation=simulate(plan))
