"""Throughput and scalability of models that every replica holds whole: tables of a run, and the
simulated ones beside what was published (`results/published/dp_scaling.csv`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netbench.report.grid import Grid, markdown
from netbench.report.published import load
from netbench.report.simulated import FOLDER, SCALING, SCALING_PICTURE, bullet, read_table
from netbench.report.tables import percent_text
from netbench.scenario import load_scenario
from netbench.workload.models import MODELS

if TYPE_CHECKING:
    import pandas as pd

    from netbench.report.emulated import Comparison

TESTBEDS = {"dp-scaling": "AWS", "dp-scaling-1gbit": "lm1", "dp-scaling-node": "lm6"}
"""Scenarios and the published testbed that each stands for, by its speed of one replica."""

PRINTED_MODELS = {
    "resnet18": "ResNet18",
    "resnet101": "ResNet101",
    "bert-base": "Bert-base (len 128)",
}
"""As the published rows call them."""


def published_throughput(scenario: str, model: str, replicas: int) -> float | None:
    """As printed, in the model's unit per second; None where nothing was."""
    rows = load("dp_scaling")
    found = rows[
        (rows["testbed"] == TESTBEDS.get(scenario))
        & (rows["model"] == PRINTED_MODELS.get(model))
        & (rows["replicas"] == replicas)
    ]
    return None if found.empty else float(found["throughput"].iloc[0])


def unit_name(model: str) -> str:
    """`resnet18, images/s`."""
    return f"{model}, {MODELS[model].unit}/s"


def throughput_text(value: float | None) -> str:
    """Two decimals, as printed; one where a simulated figure has no more (`number_text`)."""
    return "-" if value is None else f"{value:.{1 if value >= 10_000 else 2}f}"


def scaling_text(value: float) -> str:
    """`10.15x`, as printed."""
    return f"{value:.2f}x"


def run_grid(rows: Sequence[Comparison], source: str) -> Grid:
    """A run of named models: throughput, and scalability over one replica by its device profile."""
    published = [_published(row) for row in rows]
    predicted = [None if row.simulated_s is None else _rate(row, row.simulated_s) for row in rows]
    has_published, has_predicted = any(published), any(predicted)
    head = ["Model", "Replicas", "System"]
    head += ["published"] if has_published else []
    head += ["simulated"] if has_predicted else []
    head += [source, "n", *(["error"] if has_published else []), "scalability"]
    cells = []
    for row, printed, before in zip(rows, published, predicted, strict=True):
        found = _rate(row, row.found.mean_s) if row.found else None
        error = percent_text(found / printed - 1, 1) if found and printed else "-"
        texts = [unit_name(row.model), str(row.replicas), row.variant]
        texts += [throughput_text(printed)] if has_published else []
        texts += [throughput_text(before)] if has_predicted else []
        texts += [throughput_text(found), str(row.found.num if row.found else 0)]
        texts += [error] if has_published else []
        texts += [scaling_text(row.replicas * row.alone_s / row.found.mean_s) if row.found else "-"]
        cells.append(tuple(texts))
    return Grid(head=tuple(head), rows=tuple(cells), num_labels=3)


def run_caption(rows: Sequence[Comparison]) -> list[str]:
    """What the columns of `run_grid` mean."""
    if not any(row.model for row in rows):
        return []
    words = ["scalability: over one replica alone, as its device profile has it."]
    if any(_published(row) for row in rows):
        words += ["published: one value (results/published/dp_scaling.csv); how gradients were "
                  "summed is not documented. error: of the throughput."]  # fmt: skip
    return [" ".join(words)]


def _rate(row: Comparison, iteration_s: float) -> float:
    return row.batch * MODELS[row.model].units_per_sample / iteration_s


def _published(row: Comparison) -> float | None:
    return published_throughput(row.scenario, row.model, row.replicas)


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
        published = "-" if printed != printed else _with_scaling(printed, printed / alone)
        texts = [_simulated(cell) for cell in cells.itertuples()]
        rows.append((unit_name(str(model)), str(replicas), published, *texts))
    return Grid(head=("Model", "Replicas", "published", *systems), rows=tuple(rows), num_labels=2)


def _with_scaling(throughput: float, scaling: float) -> str:
    return f"{throughput_text(throughput)} ({scaling_text(scaling)})"


def _simulated(cell: Any) -> str:
    text = _with_scaling(cell.simulated_throughput, cell.simulated_scaling)
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
