"""The table of layouts that `netbench reproduce --simulate` writes: for every published setting the
best plan found, beside the best of the published systems, both simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from netbench.commands.simulated import Row, number_text
from netbench.placement.problem import Budget
from netbench.plan import plan_memory
from netbench.report.published import SEED
from netbench.scenario import load_scenario
from netbench.simulator.layouts import Found, find_candidates, search_layouts
from netbench.simulator.parallel import in_workers

NUM_FINALISTS, NUM_EVALUATIONS = 2, 32
"""Layouts that are placed for a setting, and placements tried of all together: few, so that a check
takes minutes. `netbench schedule --layout auto` tries as many as its budget allows."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A published setting. system: the fastest there, simulated; simulated_s: its mean."""

    case: str
    layers: int
    batch: int
    system: str
    simulated_s: float


def layout_rows(settings: Sequence[Setting]) -> Iterator[Row]:
    """A row for each setting, over all cores."""
    for setting, found in zip(settings, in_workers(_find, settings), strict=True):
        layout = found.plan.layout
        need_bytes = max(part.total_bytes for part in plan_memory(found.plan))
        yield (
            setting.case, str(setting.layers), str(setting.batch), setting.system,
            number_text(setting.simulated_s), found.plan.variant,
            str(layout.pp), str(layout.tp), str(layout.dp), f"{need_bytes / 1e9:.1f}",
            number_text(found.unplaced_s), number_text(found.iteration_s),
            number_text(setting.simulated_s / found.iteration_s),
        )  # fmt: skip


def best_published(times: Sequence[Row]) -> list[Setting]:
    """The settings of `times`, the rows of published times with their simulated ones: of each the
    system with the lowest mean over the seeds."""
    by_system: dict[tuple[str, ...], list[float]] = {}
    for case, system, layers, batch, _seed, _published_s, simulated_s, _error in times:
        by_system.setdefault((case, layers, batch, system), []).append(float(simulated_s))
    best: dict[tuple[str, ...], tuple[float, str]] = {}
    for (case, layers, batch, system), seconds in by_system.items():
        mean_s = sum(seconds) / len(seconds)
        key = (case, layers, batch)
        best[key] = min(best.get(key, (mean_s, system)), (mean_s, system))
    return [
        Setting(case=case, layers=int(layers), batch=int(batch), system=system, simulated_s=mean_s)
        for (case, layers, batch), (mean_s, system) in best.items()
    ]


def _find(setting: Setting) -> Found:
    candidates = find_candidates(load_scenario(setting.case), setting.layers, setting.batch)
    budget = Budget(evaluations=NUM_EVALUATIONS)
    search = search_layouts(candidates, seed=SEED, budget=budget, num_finalists=NUM_FINALISTS)
    return search.found[0]
