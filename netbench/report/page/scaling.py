"""Data-parallel scaling, simulated and published: a section of `results/predictions.md`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from netbench.report.numbers import percent_text, scaling_text, throughput_text
from netbench.report.page.published import load
from netbench.report.page.simulated import FOLDER, SCALING, SCALING_PICTURE, read_table
from netbench.report.tables.grid import Grid, bullet, markdown
from netbench.report.tables.throughput import printed_text, unit_name
from netbench.scenario import load_scenario


def scaling_markdown(results: Path) -> str:
    """The section; empty if nothing has been simulated."""
    table = read_table(results, SCALING)
    if table is None:
        return ""
    parts = "\n\n".join(_scenario(str(name), rows) for name, rows in _by(table, "scenario"))
    return f"""\
## Data parallel scaling

Throughput and, in brackets, scalability: throughput over that of one replica. The speed of a device
is the published one of one replica, so the rows with one replica agree by construction. Nothing is
fitted on the others. The percentage is the error of the simulated throughput.

{parts}

{_findings(table)}

![Scalability over replicas, simulated and published]({FOLDER}/{SCALING_PICTURE}.svg)
"""


def _scenario(name: str, rows: pd.DataFrame) -> str:
    scenario = load_scenario(name)
    return f"""\
### {name}

{scenario.title}.

{bullet(scenario.notes)}

{markdown(scaling(rows))}"""


def scaling(table: pd.DataFrame) -> Grid:
    """One scenario: a row per model and number of replicas, a column per system."""
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
    """Range of the errors, and the printed speed-ups that do not follow from the throughputs."""
    several = table[table["error"].notna() & (table["replicas"] > 1)]
    errors = {
        str(system): f"{percent_text(rows['error'].min())} to {percent_text(rows['error'].max())}"
        for system, rows in several.groupby("system", sort=False)
    }
    ranges = ", ".join(f"{error} ({system})" for system, error in errors.items())
    lines = [f"Errors with several replicas: {ranges}.", *odd_speedups()]
    return "\n".join(bullet(line) for line in lines)


def odd_speedups() -> Iterator[str]:
    """Yield a sentence for every testbed and model whose printed speed-ups do not follow from the
    printed throughputs."""
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
                f"{scale} for {number} replicas, where {scaling_text(ratio)} follows"
                for number, scale, ratio in wrong
            )
            yield (
                f"{testbed}, {model}: the printed speed-ups do not follow from the throughputs: "
                f"{'; '.join(texts)}."
            )


def _by(table: pd.DataFrame, keys: str | list[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    return iter(table.groupby(keys, sort=False))
