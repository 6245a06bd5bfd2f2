"""What the simulator says about runs that have not been published, and about transfers.

Made from the files of `netbench.report.simulated`; see there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from netbench.report.grid import Grid, markdown
from netbench.report.layouts import layouts_markdown
from netbench.report.published import Sample
from netbench.report.scaling import scaling_markdown
from netbench.report.simulated import (
    COLLECTIVES,
    FOLDER,
    NOT_SIMULATED,
    PIPELINES,
    SWEEPS,
    TRANSFERS,
    bullet,
    read_table,
)
from netbench.report.tables import percent_text, seconds_text, setting_name, spread_text
from netbench.scenario import Scenario, load_scenario
from netbench.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

PIPELINE_SYSTEMS = {"dtfm-scheduled": "GPipe", "dtfm-scheduled-1f1b": "1F1B"}
"""Variants of `PIPELINES` and the schedule that they stand for."""

PRINTED_NETWORK, PRINTED_MICRO_BATCH = "10ms-1Gbit", 4
PRINTED = {"dtfm-scheduled": ("8.97", 8.97), "dtfm-scheduled-1f1b": ("about 11", 11.0)}
"""As printed, and in seconds, for that network and micro-batch. Source:
scenarios/gpt3-small.yaml."""


def predictions_markdown(results: Path) -> str:
    """The section: scenarios without published times, transfers, collectives."""
    names = (*SWEEPS, PIPELINES, TRANSFERS, COLLECTIVES)
    tables = {name: read_table(results, name) for name in names}
    found = {name: table for name, table in tables.items() if table is not None}
    if len(found) < len(names):
        return NOT_SIMULATED
    size = format_bytes(int(found[COLLECTIVES]["payload_bytes"].iloc[0]))
    sweeps = "\n".join(_sweep(name, found[name]) for name in SWEEPS)
    return f"""\
Simulated seconds per iteration of scenarios for which no times, or few, have been published, with
nothing fitted on them. Data: [{FOLDER}/]({FOLDER}).

{sweeps}
{_pipelines(found[PIPELINES])}
{scaling_markdown(results)}
{layouts_markdown(results)}
### Point to point under `tc`

The [published transfers](published/README.md) between two machines, in milliseconds, published →
simulated as they were timed: on the receiver's clock, over a connection that was idle for a second
and starts slowly. *Again*: one more right after it, as `netbench collective p2p` times it.

{markdown(transfers(found[TRANSFERS]))}

{_transfer_errors(found[TRANSFERS])}

### Collectives

Milliseconds of `netbench collective OP --testbed sim` with {size} on uniform networks (a rate per
pair of nodes, MTU 1500), NCCL and gloo. The closed forms are beside them in
[{COLLECTIVES}.csv]({FOLDER}/{COLLECTIVES}.csv).

{markdown(collectives(found[COLLECTIVES]))}
"""


def _sweep(name: str, table: pd.DataFrame) -> str:
    scenario = load_scenario(name)
    return f"""\
### {name}: {scenario.title}

{_assumptions(scenario)}

{markdown(sweep(table))}
"""


def _assumptions(scenario: Scenario) -> str:
    workload = scenario.workload
    recomputation = "with" if workload.recomputation else "without"
    lines = [
        scenario.notes,
        f"Workload: hidden {workload.hidden}, {workload.heads} heads, sequence "
        f"{workload.sequence}, {workload.dtype}, {recomputation} recomputation, "
        f"{workload.embedding_parameters / 1e6:g}M parameters of embeddings.",
        *(f"{device.name}: {device.source}." for device in scenario.devices.values()),
        f"[Scenario](../scenarios/{scenario.name}.yaml), which says what else is assumed.",
    ]
    return "\n".join(bullet(line) for line in lines if line)


def sweep(table: pd.DataFrame) -> Grid:
    """Seconds by setting and system, mean over the seeds ± half their range."""
    systems = list(table["system"].unique())
    rows = []
    for (layers, batch), cells in table.groupby(["layers", "batch"], sort=False):
        texts = {
            system: spread_text(
                Sample(
                    mean_s=float(times.mean()),
                    min_s=float(times.min()),
                    max_s=float(times.max()),
                    num=len(times),
                )
            )
            for system, times in cells.groupby("system")["simulated_s"]
        }
        rows.append((setting_name(layers, batch), *(texts[system] for system in systems)))
    return Grid(head=("Setting", *systems), rows=tuple(rows))


def _pipelines(table: pd.DataFrame) -> str:
    scenario = load_scenario(PIPELINES)
    workload = scenario.workload
    named = table[table["dtype"] == workload.dtype]
    parts = "\n\n".join(
        f"With {backend}:\n\n{markdown(pipelines(named[named['backend'] == backend]))}"
        for backend in named["backend"].unique()
    )
    return f"""\
### {scenario.name}: {scenario.title}

{_assumptions(scenario)}

Seconds by network, schedule and micro-batch (b). The network is delay one way - rate; what a name
leaves out is as unshaped.

{parts}

Two times were printed, both for {PRINTED_NETWORK} and micro-batches of {PRINTED_MICRO_BATCH}. The
type of what is sent was not: {workload.dtype} is assumed, and fp32 has twice the bytes.
{_order(table)}

{markdown(printed(table))}
"""


def pipelines(table: pd.DataFrame) -> Grid:
    """Seconds of one backend: a row per network, a column per schedule and micro-batch."""
    columns = list(dict.fromkeys(zip(table["system"], table["micro_batch"], strict=True)))
    rows = []
    for network, cells in table.groupby("network", sort=False):
        keys = zip(cells["system"], cells["micro_batch"], strict=True)
        times = dict(zip(keys, cells["simulated_s"], strict=True))
        rows.append((str(network), *(seconds_text(times[column]) for column in columns)))
    head = (f"{PIPELINE_SYSTEMS[system]} b{size}" for system, size in columns)
    return Grid(head=("Network", *head), rows=tuple(rows))


def printed(table: pd.DataFrame) -> Grid:
    """The two printed times, and the simulated ones for every backend and type, with errors."""
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
    """Whether the two schedules come out in the printed order."""
    choices = _beside_printed(table).values()
    gpipe, one = PIPELINE_SYSTEMS
    num_same = sum(
        (times[one] > times[gpipe]) == (PRINTED[one][1] > PRINTED[gpipe][1]) for times in choices
    )
    return f"In {num_same} of {len(choices)} columns the two are in the printed order."


def _beside_printed(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Backend and type -> seconds by variant, where two are printed."""
    there = (table["network"] == PRINTED_NETWORK) & (table["micro_batch"] == PRINTED_MICRO_BATCH)
    choices: dict[str, dict[str, float]] = {}
    for row in table[there].itertuples():
        choices.setdefault(f"{row.backend} {row.dtype}", {})[row.system] = row.simulated_s
    return choices


def transfers(table: pd.DataFrame) -> Grid:
    """Milliseconds, a row per network and size; published → simulated of both backends."""
    backends = list(table["backend"].unique())
    rows = []
    keys = ["delay_one_way_ms", "bandwidth_gbps", "message_mb"]
    for (delay, rate, size), cells in table.groupby(keys, sort=False, dropna=False):
        texts = [
            text
            for _, cell in cells.set_index("backend").loc[backends].iterrows()
            for text in (
                f"{cell['published_ms']:.0f} → {cell['simulated_ms']:.1f} "
                f"({percent_text(cell['error'], 1)})",
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
