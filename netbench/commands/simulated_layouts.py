"""The table of layouts that `netbench reproduce --simulate` writes: for every published setting the
plan that `make layouts` found, timed again, beside the best of the published systems."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from netbench.commands.simulated import Row, number_text
from netbench.plan import Plan, plan_memory
from netbench.report.simulated import layout_path
from netbench.scenario import load_scenario
from netbench.simulator.parallel import time_plans
from netbench.simulator.placement_file import Placed, read_placed


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A published setting. system: the fastest there, simulated; simulated_s: its mean."""

    case: str
    layers: int
    batch: int
    system: str
    simulated_s: float


def layout_rows(settings: Sequence[Setting]) -> Iterator[Row]:
    """A row for each setting whose layout was searched, over all cores."""
    paths = {setting: layout_path(setting.case, setting.layers, setting.batch)
             for setting in settings}  # fmt: skip
    found = [(setting, read_placed(path, load_scenario(setting.case)))
             for setting, path in paths.items() if path.exists()]  # fmt: skip
    plans = [plan for _, placed in found for plan in (placed.request.listed(), placed.plan())]
    seconds = [timing.iteration_s for timing in time_plans(plans)]
    for (setting, placed), listed_s, placed_s in zip(
        found, seconds[::2], seconds[1::2], strict=True
    ):
        yield _row(setting, placed, placed.plan(), listed_s, placed_s)


def _row(setting: Setting, placed: Placed, plan: Plan, listed_s: float, placed_s: float) -> Row:
    need_bytes = max(part.total_bytes for part in plan_memory(plan))
    return (
        setting.case, str(setting.layers), str(setting.batch), setting.system,
        number_text(setting.simulated_s), placed.request.variant,
        str(plan.layout.pp), str(plan.layout.tp), str(plan.layout.dp), f"{need_bytes / 1e9:.1f}",
        number_text(listed_s), number_text(placed_s), number_text(setting.simulated_s / placed_s),
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
