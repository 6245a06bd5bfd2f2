"""`results/ledger.md`: predictions that were registered before anyone compared them.

A row of `ledger/predictions.csv` is one predicted value, with the hash of its plan, the date, and
the commit of the code that computed it. Rows are only ever added (`netbench reproduce --register`).
`ledger/measured.csv` has what was measured, once that is known.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from netbench.errors import RecordError
from netbench.plan.experiment import experiment_hash
from netbench.plan.serial import plan_hash
from netbench.report.numbers import percent_text
from netbench.report.page.blind import BlindPrediction
from netbench.report.page.multicloud.data import HELD_OUT, UNITS, Experiment, predict
from netbench.report.tables.grid import Grid, csv_of, markdown
from netbench.units import counted

FOLDER, PREDICTIONS, MEASURED = "ledger", "predictions.csv", "measured.csv"
COLUMNS = (
    "date", "commit", "plan_hash", "scenario", "experiment", "model", "batch", "quantity", "unit",
    "predicted",
)  # fmt: skip
MEASURED_COLUMNS = ("experiment", "model", "batch", "quantity", "measured", "source")
DIGITS = 5
"""Significant digits of a registered value."""

SHOWN = {
    "throughput": "samples/s",
    "granularity": "granularity",
    "granularity_timers": "as published",
    "comm_time_per_round": "communication s",
    "egress_per_peer_per_round": "egress MB",
    "usd_per_hour_spot": "$/h",
    "usd_per_million_spot": "$/million",
    "iteration_s": "s",
    "time_ms": "ms",
}
"""Quantities of the page, and their heads."""

INTRO = """\
# Ledger of predictions

Predictions that were registered before they were compared with anything. Each has the hash of its
plan, the date, and the commit of the code that computed it: [ledger/predictions.csv](ledger/{file})
has all quantities. `netbench reproduce --register` adds what is missing and never changes a row.
A measured value goes to `ledger/{measured}` (columns {columns}). This page then shows it beside the
prediction, with the error.

The experiments of `multicloud-*` are those of [multicloud.md](multicloud.md) that are held out.
Granularity is that of the wall clock. *As published* is that of timers which miss part of the
computation. Communication and egress are per round. Egress is the mean over peers as their NICs
count it. Prices are those of spot machines where there are any. Machines on premises cost nothing.
All other predictions are seconds per iteration (`s`) or milliseconds per operation (`ms`).

DeepSpeed's pipeline engine was predicted twice. (2) was registered after the comparison with cases
1 to 3: a send ends when NCCL's buffers hold the rest of its message, not when all has arrived.
Collectives were predicted twice as well. (2) was registered after the comparison with 4 and 16
machines. gloo's rings: the receiving host copies a message after the wire has carried it. NCCL's:
a host carries 17.2 Gbit/s in and out together, chains move more than their message, and a sharded
server reduces all parts at once. (2) of Megatron on
FluidStack sums gradients in fp16, not fp32; cases 3 to 5 had shown it. The last ones of shuffled
nodes in two regions have the documented order of the nodes, where a seed's had been assumed.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEntry:
    """A registered value. error: of the prediction, None if nothing was measured."""

    date: str
    commit: str
    plan_hash: str
    scenario: str
    experiment: str
    model: str
    batch: str
    quantity: str
    predicted: float
    measured: float | None

    @property
    def subject(self) -> tuple[str, str, str]:
        """Experiment, model and batch."""
        return self.experiment, self.model, self.batch

    @property
    def error(self) -> float | None:
        return None if self.measured is None else self.predicted / self.measured - 1


def new_rows(
    results: Path, experiments: Iterable[Experiment], date: str, commit: str
) -> list[tuple[object, ...]]:
    """Return rows for the held-out experiments and quantities that are not registered yet.

    date, commit: of the registration.
    """
    known = {(*entry.subject, entry.quantity) for entry in entries(results)}
    rows: list[tuple[object, ...]] = []
    for experiment in experiments:
        if experiment.part != HELD_OUT:
            continue
        name, model, batch = experiment.key
        for quantity, value in predict(experiment).items():
            if (name, model, str(batch), quantity) not in known:
                rows.append(
                    (date, commit, plan_hash(experiment.plan), experiment.scenario.name, name,
                     model, batch, quantity, UNITS[quantity], f"{value:.{DIGITS}g}")
                )  # fmt: skip
    return rows


def blind_rows(
    timed: Iterable[tuple[BlindPrediction, float]], date: str, commit: str
) -> list[tuple[object, ...]]:
    """Return rows for predictions with their values. date, commit: of the registration."""
    return [
        (date, commit, experiment_hash(each.plan()), each.scenario, each.experiment, each.model,
         each.batch, *each.quantity, f"{value:.{DIGITS}g}")
        for each, value in timed
    ]  # fmt: skip


def unregistered(
    results: Path, predictions: Iterable[BlindPrediction]
) -> tuple[BlindPrediction, ...]:
    """Return the predictions that the ledger lacks."""
    known = {(*entry.subject, entry.quantity) for entry in entries(results)}
    return tuple(each for each in predictions if each.key not in known)


def register(results: Path, rows: Sequence[Sequence[object]]) -> Path:
    """Append rows to the ledger, and return its file."""
    path = results / FOLDER / PREDICTIONS
    path.parent.mkdir(exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.exists() else csv_of(COLUMNS, ()) + "\n"
    lines = [",".join(map(str, row)) for row in rows]
    text = "".join(f"{line}\n" for line in lines)
    path.write_text(before + text, encoding="utf-8")
    return path


def entries(results: Path) -> tuple[LedgerEntry, ...]:
    """Return all registered values in order. Raises RecordError for a file of another form."""
    measured = {
        (row["experiment"], row["model"], row["batch"], row["quantity"]): float(row["measured"])
        for row in _rows(results / FOLDER / MEASURED, MEASURED_COLUMNS)
    }
    return tuple(
        LedgerEntry(
            **{name: row[name] for name in COLUMNS if name not in ("predicted", "unit")},
            predicted=float(row["predicted"]),
            measured=measured.get((row["experiment"], row["model"], row["batch"], row["quantity"])),
        )
        for row in _rows(results / FOLDER / PREDICTIONS, COLUMNS)
    )


def check_registered(
    results: Path, experiments: Iterable[Experiment], blind: Iterable[BlindPrediction] = ()
) -> None:
    """Raise RecordError unless every held-out experiment and every blind prediction is registered
    once. A folder without a ledger has nothing to check."""
    if not (results / FOLDER / PREDICTIONS).exists():
        return
    found = [(*entry.subject, entry.quantity) for entry in entries(results)]
    if len(set(found)) < len(found):
        twice = next(key for i, key in enumerate(found) if key in found[:i])
        raise RecordError(f"the ledger has {' '.join(twice)} twice; restore the file")
    for experiment in experiments:
        name, model, batch = experiment.key
        for quantity in UNITS if experiment.part == HELD_OUT else ():
            if (name, model, str(batch), quantity) not in found:
                raise RecordError(
                    f"the ledger has no {quantity} of {name} {model}; register it with: "
                    "netbench reproduce --register"
                )
    if missing := unregistered(results, blind):
        raise RecordError(
            f"the ledger lacks {counted(len(missing), 'prediction')}, the first of "
            f"{missing[0].experiment}; register with: netbench reproduce --register"
        )


def ledger_page(results: Path) -> str:
    """Return the page: a table per scenario."""
    found = entries(results)
    columns = ", ".join(MEASURED_COLUMNS)
    parts = [INTRO.format(file=PREDICTIONS, measured=MEASURED, columns=columns)]
    for scenario in dict.fromkeys(entry.scenario for entry in found):
        of_scenario = [entry for entry in found if entry.scenario == scenario]
        when = sorted({f"{entry.date}, commit {entry.commit}" for entry in of_scenario})
        parts.append(f"## {scenario}\n\nRegistered {'; '.join(when)}.\n")
        parts.append(markdown(_grid(of_scenario)) + "\n")
    return "\n".join(parts)


def _grid(found: Sequence[LedgerEntry]) -> Grid:
    rows = []
    quantities = dict.fromkeys(entry.quantity for entry in found)
    shown = {name: head for name, head in SHOWN.items() if name in quantities}
    by_subject: dict[tuple[str, str, str], dict[str, LedgerEntry]] = {}
    for entry in found:
        by_subject.setdefault(entry.subject, {})[entry.quantity] = entry
    for subject, values in by_subject.items():
        plan = next(iter(values.values())).plan_hash
        rows.append((*subject, plan, *(_cell(values[quantity]) for quantity in shown)))
    return Grid(
        head=("Experiment", "Model", "Batch", "Plan", *shown.values()),
        rows=tuple(rows),
        num_labels=4,
    )


def _cell(entry: LedgerEntry) -> str:
    predicted = f"{entry.predicted:.4g}"
    if entry.error is None:
        return predicted
    return f"{predicted} ({entry.measured:.4g}, {percent_text(entry.error)})"


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != tuple(columns):
            raise RecordError(f"{path}: its columns are not {', '.join(columns)}; restore the file")
        return list(reader)
