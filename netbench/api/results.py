"""Iteration times of plans, simulated or emulated: tables, pictures, and whether to trust them."""

from __future__ import annotations

import dataclasses
import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from netbench.plan.model import Plan
from netbench.plan.serial import plan_from_json
from netbench.records import Run, read_run
from netbench.report.pictures.picture import Picture
from netbench.report.tables.comparison import Comparison, compare, run_source
from netbench.report.tables.grid import Grid
from netbench.report.tables.run import caption, comparison_grid

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """Iteration times of plans.

    run: records of a folder, or of a simulation that is in memory only. source: `simulated`,
    `emulated` or `measured`.
    """

    run: Run

    @property
    def source(self) -> str:
        """Return where the times come from."""
        return run_source(self.run)

    @property
    def path(self) -> Path | None:
        """Return the record file; None for a simulation in memory."""
        return self.run.path if self.run.sessions else None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Return the plans, in their order."""
        return tuple(plan_from_json(json.dumps(plan)) for plan in self.run.plans.values())

    @property
    def rows(self) -> tuple[Comparison, ...]:
        """Return one row per system and setting, pooled over seeds."""
        return compare(self.run)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return why the times are not trustworthy; empty if they are."""
        return self.run.reasons

    @property
    def table(self) -> DataFrame:
        """Return a row per system and setting.

        Columns: scenario, network, system, layers, batch, micro_batch, seeds, mean_s, min_s, max_s,
        num_iterations, pflops, published_s, error (relative, of the mean), simulated_s (before an
        emulation).
        """
        import pandas as pd

        return pd.DataFrame([_cells(row) for row in self.rows])

    @property
    def iterations(self) -> DataFrame:
        """Return a row per iteration, warm-ups included, with the fields of `records.Record`."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(record) for record in self.run.records])

    def plot(self) -> Picture:
        """Draw the times beside published ones. Raises UsageError if there are none."""
        from netbench.report.pictures.run import run_figure

        return Picture(figure=run_figure(self.run))

    def _repr_html_(self) -> str:
        lines = caption(self.run) if self.run.sessions else []
        return grid_html(comparison_grid(self.run), lines)


def open_run(path: str | Path) -> Results:
    """Read a run from its folder or record file. Raises RecordError for a damaged one."""
    return Results(run=read_run(Path(path)))


def grid_html(grid: Grid, lines: list[str] | None = None) -> str:
    """Return a table as HTML, and sentences beneath it."""

    def cells(row: tuple[str, ...], tag: str) -> str:
        aligned = (
            f'<{tag} style="text-align:{"left" if at < grid.num_labels else "right"}">'
            f"{html.escape(text)}</{tag}>"
            for at, text in enumerate(row)
        )
        return f"<tr>{''.join(aligned)}</tr>"

    body = "".join(cells(row, "td") for row in grid.rows)
    table = f"<table><thead>{cells(grid.head, 'th')}</thead><tbody>{body}</tbody></table>"
    return table + "".join(f"<p>{html.escape(line)}</p>" for line in lines or ())


def _cells(row: Comparison) -> dict[str, object]:
    found, published = row.found, row.published
    return {
        "scenario": row.scenario,
        "network": row.network,
        "system": row.name,
        "layers": row.workload.layers,
        "batch": row.workload.batch,
        "micro_batch": row.workload.micro_batch,
        "seeds": row.seeds,
        "mean_s": found.mean_s if found else None,
        "min_s": found.min_s if found else None,
        "max_s": found.max_s if found else None,
        "num_iterations": found.num if found else 0,
        "pflops": row.pflop / found.mean_s if found and row.pflop is not None else None,
        "published_s": published.mean_s if published else None,
        "error": row.error,
        "simulated_s": row.simulated_s,
    }
