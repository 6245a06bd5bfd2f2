"""Made-up simulated tables for tests of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from netbench.commands.reproduce.simulated import (
    FastestPublished,
    Row,
    Task,
    Transfer,
    best_published,
    plan_tables,
    rows_of,
    tasks_of,
)
from netbench.plan.model import Plan
from netbench.report.numbers import exact_text
from netbench.report.page.published import sample
from netbench.report.page.simulated import LAYOUTS, TIMES, table_path, table_text

Seconds = Callable[[Task], float]


tables_to_write = cache(plan_tables)
"""Every table with its tasks. Planning them takes over a second."""

sample_of = cache(sample)


def published_mean(task: Task) -> float:
    """The published mean of a task; one second if there is none."""
    if not isinstance(task, Plan):
        return 1.0
    found = sample_of(task.scenario, task.variant, task.workload.layers, task.workload.batch)
    return found.mean_s if found else 1.0


def off_by(factor: float, **where: object) -> Seconds:
    """`published_mean`, times `factor` for tasks whose scenario, variant, layers and batch are
    those in `where`."""

    def seconds(task: Task) -> float:
        mean_s = published_mean(task)
        if isinstance(task, Transfer):
            return mean_s
        is_there = isinstance(task, Plan) and all(
            getattr(task if hasattr(task, name) else task.workload, name) == value
            for name, value in where.items()
        )
        return factor * mean_s if is_there else mean_s

    return seconds


def found_layouts(settings: Sequence[FastestPublished]) -> Iterator[Row]:
    """Rows in which p4d16 takes 80% of the best published time, and 90% before placement."""
    for setting in settings:
        seconds = (setting.simulated_s, 0.9 * setting.simulated_s, 0.8 * setting.simulated_s)
        published, listed, placed = map(exact_text, seconds)
        plan = ("dtfm-scheduled-p4-sharded-ps", "4", "1", "16", "2.5")
        setting_of = (setting.case, str(setting.layers), str(setting.batch), setting.system)
        yield (*setting_of, published, *plan, listed, placed, "1.25")


def write(results: Path, seconds: Seconds = published_mean) -> Path:
    """Write every table to `results`; return `results`."""
    tables = tables_to_write()
    times = {task: seconds(task) for task in tasks_of(tables)}
    rows = {name: rows_of(cells, times) for name, cells in tables.items()}
    rows[LAYOUTS] = list(found_layouts(best_published(rows[TIMES])))
    for name, table in rows.items():
        path = table_path(results, name)
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(table_text(name, table), encoding="utf-8")
    return results
