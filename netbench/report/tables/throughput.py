"""Throughput and scalability of models by name: a run beside the published figures, which are in
`results/published/dp_scaling.csv`."""

from collections.abc import Mapping, Sequence

from netbench.report.numbers import or_dash, percent_text, scaling_text, throughput_text
from netbench.report.page.published import load
from netbench.report.tables.comparison import Comparison
from netbench.report.tables.cost import MILLION, money
from netbench.report.tables.grid import Grid
from netbench.workload.models import MODELS, model_of

TESTBEDS = {"dp-scaling": "AWS", "dp-scaling-1gbit": "lm1", "dp-scaling-node": "lm6"}
"""Scenarios, and the published testbed whose speed of one replica each of them has."""

SYSTEM = "ddp"
"""The system that is compared with the published figures: all-reduce, which frameworks default to.
A figure beside every system would be an error of one and an accident of the others."""

PRINTED_MODELS = {
    "resnet18": "ResNet18",
    "resnet101": "ResNet101",
    "bert-base": "Bert-base (len 128)",
}
"""Names of the models in the published rows."""


def published_throughput(scenario: str, model: str, replicas: int) -> float | None:
    """The published throughput in the model's unit per second; None if there is none."""
    rows = load("dp_scaling")
    found = rows[
        (rows["testbed"] == TESTBEDS.get(scenario))
        & (rows["model"] == PRINTED_MODELS.get(model))
        & (rows["replicas"] == replicas)
    ]
    return None if found.empty else float(found["throughput"].iloc[0])


def unit_name(model: str) -> str:
    """`resnet18, images/s`; samples of a model given by its parameters."""
    return f"{model}, {MODELS[model].unit if model in MODELS else 'samples'}/s"


def printed_text(value: float) -> str:
    """Two decimals, as published."""
    return f"{value:.2f}"


def run_grid(rows: Sequence[Comparison], source: str, usd: Mapping[str, float]) -> Grid:
    """A run of models by name: throughput, and scalability over one replica by device profile.

    usd: see `cost.run_usd`.
    """
    published = [_published(row) for row in rows]
    predicted = [None if row.simulated_s is None else _rate(row, row.simulated_s) for row in rows]
    has_published, has_predicted = any(published), any(predicted)
    has_peers = any(row.peers for row in rows)
    head = ["Model", "Replicas", "System"]
    if has_peers:
        head = ["Model", "Peers", "Batch", "System"]
    head += ["published"] if has_published else []
    head += ["simulated"] if has_predicted else []
    head += [source, "n", *(["error"] if has_published else []), "scalability"]
    head += [MILLION] if usd else []
    cells = []
    for row, printed, before in zip(rows, published, predicted, strict=True):
        found = _rate(row, row.found.mean_s) if row.found else None
        error = percent_text(found / printed - 1) if found and printed else "-"
        sizes = [row.peers, str(row.workload.batch)] if has_peers else [str(row.replicas)]
        texts = [unit_name(row.workload.model), *sizes, row.name]
        texts += [or_dash(printed_text, printed)] if has_published else []
        texts += [or_dash(throughput_text, before)] if has_predicted else []
        texts += [or_dash(throughput_text, found), str(row.found.num if row.found else 0)]
        texts += [error] if has_published else []
        texts += [scaling_text(row.replicas * row.alone_s / row.found.mean_s) if row.found else "-"]
        texts += [or_dash(money, usd.get(row.plan_hash))] if usd else []
        cells.append(tuple(texts))
    return Grid(head=tuple(head), rows=tuple(cells), num_labels=head.index("System") + 1)


def run_caption(rows: Sequence[Comparison]) -> list[str]:
    """Explain the columns of `run_grid`."""
    if not any(row.workload.model for row in rows):
        return []
    words = ["scalability: over the throughput of one replica in its device profile."]
    if any(_published(row) for row in rows):
        words += ["published: one value (results/published/dp_scaling.csv), compared with "
                  f"{SYSTEM}; how gradients were summed is not documented. error: of the "
                  "throughput."]  # fmt: skip
    return [" ".join(words)]


def _rate(row: Comparison, iteration_s: float) -> float:
    return row.workload.batch * model_of(row.workload).units_per_sample / iteration_s


def _published(row: Comparison) -> float | None:
    if row.variant != SYSTEM:
        return None
    return published_throughput(row.scenario, row.workload.model, row.replicas)
