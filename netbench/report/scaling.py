"""Data parallel scaling, simulated and published, as a section of `results/README.md`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netbench.report.grid import Grid, markdown
from netbench.report.published import load
from netbench.report.simulated import FOLDER, SCALING, SCALING_PICTURE, bullet, read_table
from netbench.report.tables import percent_text
from netbench.report.throughput import printed_text, scaling_text, throughput_text, unit_name
from netbench.scenario import load_scenario

if TYPE_CHECKING:
    import pandas as pd


def scaling_markdown(results: Path) -> str:
    """The section on data parallel scaling; empty where it has not been simulated."""
    table = read_table(results, SCALING)
    if table is None:
        return ""
    parts = "\n\n".join(_scenario(str(name), rows) for name, rows in _by(table, "scenario"))
    return f"""\
### Data parallel scaling

Throughput and, in brackets, scalability: how many times that of one replica alone. Speeds of a
device are the published ones of one replica, so those rows agree as they must; nothing is fitted on
the others. Where there is a published figure, the error of the simulated one is behind it.

{parts}

{_findings(table)}

![Scalability over replicas, with the ideal line]({FOLDER}/{SCALING_PICTURE})
"""


def _scenario(name: str, rows: pd.DataFrame) -> str:
    scenario = load_scenario(name)
    return f"""\
#### {name}: {scenario.title}

{bullet(scenario.notes)}

{markdown(scaling(rows))}"""


def scaling(table: pd.DataFrame) -> Grid:
    """Of one scenario: a row per model and number of replicas, a column per system."""
    systems = list(table["system"].unique())
    rows = []
    for (model, replicas), cells in _by(table, ["model", "replicas"]):
        first = cells.iloc[0]
        alone = float(first["simulated_throughput"] / first["simulated_scaling"])
        printed = first["published_throughput"]
        published = "-"
        if printed == printed:
            published = f"{printed_text(printed)} ({scaling_text(printed / alone)})"
        texts = [_simulated(cell) for cell in cells.itertuples()]
        rows.append((unit_name(str(model)), str(replicas), published, *texts))
    return Grid(head=("Model", "Replicas", "published", *systems), rows=tuple(rows), num_labels=2)


def _simulated(cell: Any) -> str:
    text = f"{throughput_text(cell.simulated_throughput)} ({scaling_text(cell.simulated_scaling)})"
    is_predicted = cell.replicas > 1 and cell.error == cell.error
    return f"{text} {percent_text(cell.error)}" if is_predicted else text


def _findings(table: pd.DataFrame) -> str:
    """How far the predictions are out, and what of the printed speed-ups does not follow."""
    several = table[table["error"].notna() & (table["replicas"] > 1)]
    errors = {
        str(system): f"{percent_text(rows['error'].min())} to {percent_text(rows['error'].max())}"
        for system, rows in several.groupby("system", sort=False)
    }
    ranges = ", ".join(f"{error} ({system})" for system, error in errors.items())
    lines = [f"Predictions of several replicas are out by {ranges}.", *odd_speedups()]
    return "\n".join(bullet(line) for line in lines)


def odd_speedups() -> Iterator[str]:
    """Printed speed-ups that do not follow from the printed throughputs, one line per testbed and
    model."""
    rows = load("dp_scaling")
    for (testbed, model), found in rows.groupby(["testbed", "model"], sort=False):
        alone = float(found.loc[found["replicas"] == 1, "throughput"].iloc[0])
        printed = found[found["printed_scaling"].notna()]
        wrong = [
            (row.replicas, row.printed_scaling, row.throughput / alone)
            for row in printed.itertuples()
            if abs(row.throughput / alone - float(row.printed_scaling.rstrip("x"))) > 0.01
        ]
        if wrong:
            texts = (
                f"{scale} of {number} replicas where {scaling_text(ratio)} follows"
                for number, scale, ratio in wrong
            )
            yield (
                f"{testbed}, {model}: printed speed-ups do not follow from the throughputs: "
                f"{', '.join(texts)}."
            )


def _by(table: pd.DataFrame, keys: str | list[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    return iter(table.groupby(keys, sort=False))
