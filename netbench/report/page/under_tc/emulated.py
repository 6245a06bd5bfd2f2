"""Emulated times of GPT-3 small's published cells, from the recorded runs of their plans."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from netbench.plan.serial import plan_to_json
from netbench.records import Run
from netbench.report.numbers import exact_text
from netbench.report.page.simulated import SMALL, read_table
from netbench.report.page.under_tc.small import CELL, cells
from netbench.report.tables.comparison import measured
from netbench.report.tables.grid import Grid, csv_text

FILE = f"emulated/{SMALL}.csv"
"""Name of the table below `results`."""

COLUMNS = (*CELL, "published_s", "simulated_s", "emulated_s", "error", "run")


def emulated_cells(results: Path, runs: Sequence[Run]) -> pd.DataFrame | None:
    """Return the emulated cells with `COLUMNS`, error against published; None without simulated
    times. runs: of these plans; the newest last."""
    simulated = read_table(results, SMALL)
    if simulated is None:
        return None
    rows = []
    for cell, simulated_s in zip(cells(), simulated["simulated_s"], strict=True):
        wanted = _but_for_transport(json.loads(plan_to_json(cell.emulated())))
        found = [
            (times, run.run_id)
            for run in runs
            for key, plan in run.plans.items()
            if _but_for_transport(plan) == wanted and (times := measured(run, key)) is not None
        ]
        if found:
            times, name = found[-1]
            error = times.mean_s / cell.published_s - 1
            rows.append((*cell.key, cell.published_s, simulated_s, times.mean_s, error, name))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _but_for_transport(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan without the constants of its library, which may have changed since it ran."""
    return {name: value for name, value in plan.items() if name != "transport"}


def emulated_cells_csv(results: Path, runs: Sequence[Run]) -> str:
    """Return the table as CSV."""
    table = emulated_cells(results, runs)
    rows = () if table is None else table.itertuples(index=False)
    texts = tuple(
        (
            *row[: len(CELL)],
            f"{row.published_s:g}",
            exact_text(row.simulated_s),
            exact_text(row.emulated_s),
            f"{row.error:.4f}",
            row.run,
        )
        for row in rows
    )
    return csv_text(Grid(head=COLUMNS, rows=texts)) + "\n"
