"""`results/predictions.md`: simulated runs that have not been published, and transfers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import pandas as pd

from netbench.records import Run
from netbench.report.numbers import percent_text, seconds_text
from netbench.report.page.layouts import layouts_markdown
from netbench.report.page.scaling import scaling_markdown
from netbench.report.page.simulated import (
    COLLECTIVES,
    FOLDER,
    NOT_SIMULATED,
    PIPELINES,
    TRANSFERS,
    read_table,
)
from netbench.report.tables.comparison import compare, run_source
from netbench.report.tables.grid import Grid, bullet, markdown
from netbench.report.tables.run import provenance, run_markdown
from netbench.report.tables.throughput import TESTBEDS
from netbench.scenario import Scenario, load_scenario
from netbench.units import format_bytes

PIPELINE_SYSTEMS = {"dtfm-scheduled": "GPipe", "dtfm-scheduled-1f1b": "1F1B"}
"""Variants of `PIPELINES`, and the pipeline schedule of each."""

PRINTED_NETWORK, PRINTED_MICRO_BATCH = "10ms-1Gbit", 4
PRINTED = {"dtfm-scheduled": ("8.97", 8.97), "dtfm-scheduled-1f1b": ("about 11", 11.0)}
"""Published seconds for that network and micro-batch: as printed, and as a number. Source:
scenarios/gpt3-small.yaml."""


def predictions_page(results: Path, runs: Mapping[str, Sequence[Run]]) -> str:
    """The page: scenarios without published times, layouts, transfers, collectives.

    runs: recorded ones by scenario.
    """
    names = (PIPELINES, TRANSFERS, COLLECTIVES)
    tables = {name: read_table(results, name) for name in names}
    found = {name: table for name, table in tables.items() if table is not None}
    shown = (PIPELINES, *TESTBEDS) if len(found) == len(names) else ()
    rest = "".join(_emulated(runs, name) for name in runs if name not in shown)
    if len(found) < len(names):
        return f"# Predictions\n\n{NOT_SIMULATED}{rest}"
    size = format_bytes(int(found[COLLECTIVES]["payload_bytes"].iloc[0]))
    return f"""\
# Predictions

Simulated times of scenarios for which few or no times have been published, with nothing fitted on
them. Data: [{FOLDER}/]({FOLDER}). [All results](README.md)

{_pipelines(found[PIPELINES], runs)}
{scaling_markdown(results)}{"".join(_emulated(runs, name) for name in TESTBEDS)}
{layouts_markdown(results)}
## Point to point under `tc`

[Published transfers](published/README.md) between two machines, in milliseconds, published →
simulated. They were timed on the receiver's clock, over a connection that had been idle for a
second and starts slowly. *Again* is the next transfer, as `netbench collective p2p` times it.

{markdown(transfers(found[TRANSFERS]))}

{_transfer_errors(found[TRANSFERS])}

## Collectives

Milliseconds of `netbench collective OP --testbed sim` with {size} on uniform networks: one rate per
pair of nodes, MTU 1500. [{COLLECTIVES}.csv]({FOLDER}/{COLLECTIVES}.csv) has the closed forms beside
them.

{markdown(collectives(found[COLLECTIVES]))}
{rest}"""


def _emulated(runs: Mapping[str, Sequence[Run]], name: str) -> str:
    """The recorded runs of a scenario as tables; empty if there are none."""
    return "".join(
        f"\n### {name}, {run_source(run)}\n\n{run_markdown(run)}\n" for run in runs.get(name, ())
    )


def _assumptions(scenario: Scenario) -> str:
    workload = scenario.workload
    recomputation = "with" if workload.recomputation else "without"
    lines = [
        scenario.notes,
        f"Workload: hidden {workload.hidden}, {workload.heads} heads, sequence "
        f"{workload.sequence}, {workload.dtype}, {recomputation} recomputation, "
        f"{workload.embedding_parameters / 1e6:g}M parameters of embeddings.",
        *(f"{device.name}: {device.source}." for device in scenario.devices.values()),
        f"Other assumptions: see the [scenario](../scenarios/{scenario.name}.yaml).",
    ]
    return "\n".join(bullet(line) for line in lines if line)


def _pipelines(table: pd.DataFrame, runs: Mapping[str, Sequence[Run]]) -> str:
    scenario = load_scenario(PIPELINES)
    workload = scenario.workload
    named = table[table["dtype"] == workload.dtype]
    parts = "\n\n".join(
        f"Simulated with {backend}:\n\n{markdown(pipelines(named[named['backend'] == backend]))}"
        for backend in named["backend"].unique()
    )
    recorded = "".join(map(_pipelines_emulated, runs.get(PIPELINES, ())))
    return f"""\
## {scenario.name}

{scenario.title}.

{_assumptions(scenario)}

Seconds per iteration by network, pipeline schedule and micro-batch (b1: one sequence). A network is
named after its one-way delay and its rate. What the name leaves out is not shaped.

{parts}
{recorded}
Two times were printed, both for {PRINTED_NETWORK} and micro-batches of {PRINTED_MICRO_BATCH}. The
number type of the messages was not: {workload.dtype} is assumed, and fp32 doubles the bytes.
{_order(table)}

{markdown(printed(table))}
"""


def _pipelines_emulated(run: Run) -> str:
    """The table of a recorded run of `PIPELINES`, its distance from the simulation, and where it
    ran."""
    rows = compare(run)
    errors: dict[str, list[float]] = {}
    for row in rows:
        if row.found and row.simulated_s:
            error = abs(row.simulated_s / row.found.mean_s - 1)
            errors.setdefault(PIPELINE_SYSTEMS.get(row.name, row.name), []).append(error)
    means = ", ".join(
        f"{fmean(some):.0%} in the {len(some)} cells of {name}" for name, some in errors.items()
    )
    times = {(r.network, r.name, r.workload.micro_batch): r.found.mean_s for r in rows if r.found}
    lines = [
        f"Run {run.run_id}, without warm-up iterations.",
        f"Mean absolute difference of the simulated times of the same plans: {means}.",
        *provenance(run),
    ]
    bullets = "\n".join(f"- {line}" for line in lines)
    return f"\nEmulated:\n\n{markdown(_by_network(times))}\n\n{bullets}\n"


def pipelines(table: pd.DataFrame) -> Grid:
    """Seconds of one backend: a row per network, a column per schedule and micro-batch."""
    keys = zip(table["network"], table["system"], table["micro_batch"], strict=True)
    return _by_network(dict(zip(keys, table["simulated_s"], strict=True)))


def _by_network(seconds: Mapping[tuple[str, str, int], float]) -> Grid:
    """seconds: by network, system and micro-batch."""
    columns = sorted(
        {(list(PIPELINE_SYSTEMS).index(name), size, name) for _, name, size in seconds}
    )
    rows = [
        (network, *(seconds_text(seconds[network, name, size]) for _, size, name in columns))
        for network in dict.fromkeys(network for network, _, _ in seconds)
    ]
    head = (f"{PIPELINE_SYSTEMS[name]} b{size}" for _, size, name in columns)
    return Grid(head=("Network", *head), rows=tuple(rows))


def printed(table: pd.DataFrame) -> Grid:
    """The two printed times, and the simulated ones for every backend and number type."""
    choices = _beside_printed(table)
    rows = [
        (
            name,
            PRINTED[system][0],
            *(
                f"{seconds_text(times[system])} "
                f"({percent_text(times[system] / PRINTED[system][1] - 1)})"
                for times in choices.values()
            ),
        )
        for system, name in PIPELINE_SYSTEMS.items()
    ]
    return Grid(head=("Schedule", "printed", *choices), rows=tuple(rows))


def _order(table: pd.DataFrame) -> str:
    """In how many columns the two schedules are in the printed order."""
    choices = _beside_printed(table).values()
    gpipe, one = PIPELINE_SYSTEMS
    num_same = sum(
        (times[one] > times[gpipe]) == (PRINTED[one][1] > PRINTED[gpipe][1]) for times in choices
    )
    return f"In {num_same} of {len(choices)} columns the two are in the printed order."


def _beside_printed(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Seconds by variant, by backend and number type, for the printed network and micro-batch."""
    there = (table["network"] == PRINTED_NETWORK) & (table["micro_batch"] == PRINTED_MICRO_BATCH)
    choices: dict[str, dict[str, float]] = {}
    for row in table[there].itertuples():
        choices.setdefault(f"{row.backend} {row.dtype}", {})[row.system] = row.simulated_s
    return choices


def transfers(table: pd.DataFrame) -> Grid:
    """Milliseconds: a row per network and size, published → simulated for both backends."""
    backends = list(table["backend"].unique())
    rows = []
    keys = ["delay_one_way_ms", "bandwidth_gbps", "message_mb"]
    for (delay, rate, size), cells in table.groupby(keys, sort=False, dropna=False):
        texts = [
            text
            for _, cell in cells.set_index("backend").loc[backends].iterrows()
            for text in (
                f"{cell['published_ms']:.0f} → {cell['simulated_ms']:.1f} "
                f"({percent_text(cell['error'])})",
                f"{cell['simulated_again_ms']:.1f}",
            )
        ]
        limits = ("-" if value != value else f"{value:g}" for value in (delay, rate))
        rows.append((*limits, f"{size:g}", *texts))
    head = [text for backend in backends for text in (backend, "again")]
    return Grid(
        head=("Delay, ms", "Rate, Gbit/s", "MiB", *head), rows=tuple(rows), num_labels=3
    )  # fmt: skip


def _transfer_errors(table: pd.DataFrame) -> str:
    errors = table.groupby("backend", sort=False)["error"]
    parts = (
        f"{backend} {error.abs().mean():.1%} (largest {error.abs().max():.1%})"
        for backend, error in errors
    )
    return (
        f"Mean absolute error: {', '.join(parts)}. The transport profiles are fitted on these rows."
    )


def collectives(table: pd.DataFrame) -> Grid:
    """Milliseconds: a row per op and number of nodes, a column per network and backend."""
    times: dict[tuple[str, int], dict[str, str]] = {}
    for row in table.itertuples():
        network = f"{row.delay_one_way_ms:g} ms, {row.bandwidth_gbps:g} Gbit/s"
        cells = times.setdefault((row.op, row.nodes), {})
        cells[f"{network}, {row.backend}"] = f"{row.simulated_ms:.0f}"
    columns = next(iter(times.values()))
    rows = [
        (op, str(nodes), *(cells[column] for column in columns))
        for (op, nodes), cells in times.items()
    ]
    return Grid(head=("Op", "Nodes", *columns), rows=tuple(rows), num_labels=2)
