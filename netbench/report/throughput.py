"""Throughput and scalability of models by name: a run beside what was published.

Published: `results/published/dp_scaling.csv`.
"""

from __future__ import annotations

from collections.abc import Sequence

from netbench.report.comparison import Comparison
from netbench.report.grid import Grid
from netbench.report.published import load
from netbench.report.tables import percent_text
from netbench.workload.models import MODELS

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
    """Two decimals; one where a simulated figure has no more (`number_text`)."""
    return "-" if value is None else f"{value:.{1 if value >= 10_000 else 2}f}"


def printed_text(value: float | None) -> str:
    """Two decimals, as published."""
    return "-" if value is None else f"{value:.2f}"


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
        texts = [unit_name(row.model), str(row.replicas), row.name]
        texts += [printed_text(printed)] if has_published else []
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
