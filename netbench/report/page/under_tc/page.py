"""`results/under_tc.md`: published runs on equal machines under tc, beside the simulated ones."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from netbench.records import Run
from netbench.report.numbers import percent_text, seconds_text
from netbench.report.page.simulated import FOLDER, NOT_SIMULATED, SMALL, UNDER_TC, read_table
from netbench.report.page.under_tc.emulated import FILE, emulated_cells
from netbench.report.page.under_tc.machines import IN_PARTS, network_name
from netbench.report.page.under_tc.small import CELL, SERIES, TERAFLOPS, cells
from netbench.report.tables.grid import Grid, bullet, markdown

IMPOSSIBLE = {
    "op": "dp-central-ps", "nodes": 4, "delay_one_way_ms": 10, "message_mb": 1024
}  # fmt: skip
"""The published time that is shorter than the wire allows. Source: results/published/README.md."""


def under_tc_page(results: Path, runs: Sequence[Run] = ()) -> str:
    """The page: GPT-3 small, then collectives. runs: emulated ones of GPT-3 small's cells."""
    small, collectives = (read_table(results, name) for name in (SMALL, UNDER_TC))
    if small is None or collectives is None:
        return f"# Under tc\n\n{NOT_SIMULATED}"
    possible = collectives[~is_impossible(collectives)]
    speeds = ", ".join(
        f"{schedule} {dtype} with micro-batches of {size}: {value:g}"
        for (schedule, dtype, size), value in TERAFLOPS.items()
    )
    return f"""\
# Under tc

Published runs on equal machines ([data](published/README.md)) beside simulated ones. Each machine
has one root netem with a delay, one way, and a rate, so all destinations share its egress. Its NIC
has 10 Gbit/s, and its 8 vCPUs move 17.2 Gbit/s through their sockets, in and out together
([calibration](../docs/calibration.md)). [All results](README.md)

## GPT-3 small

Pipelines of 3 machines, 4 layers of hidden size 768 per stage, 64 sequences per pipeline. Seconds
per iteration, published → simulated (error)
([{SMALL}.csv]({FOLDER}/{SMALL}.csv)). Cells marked with =
fix the compute, because a device profile that is fitted on hidden size 2048 does not know these
layers. All other cells are predictions.

{markdown(small_grid(small))}

Mean absolute error of the predictions, and mean error:

{markdown(errors_grid(_predicted(small), list(SERIES)))}

{bullet(f"TFLOPS with which those cells come out: {speeds}.")}
- `allreduce` calls a collective for each tensor of the gradients: a ring for each matrix, two trees
  for each vector. The dtype of the gradients is not documented. fp32 is assumed, because the cells
  on the LAN agree better: 2.55 and 2.63 s with 4 and 16 replicas; in fp16 2.41 and 2.45 s.
- `zero3-fsdp` is `fsdp` on 12 machines, with one micro-step per iteration. Its units are not
  documented. torch's default is assumed: the model is one unit. (With the 8 units of `fsdp`, 24
  rings at 50 ms would take longer than published.) Its embeddings are assumed to be GPT-2's.
- The embeddings of the pipelines are those of the [scenario](../scenarios/gpt3-small.yaml).

{_emulated_text(results, runs)}

## Collectives

Milliseconds, published → simulated (error)
([{UNDER_TC}.csv]({FOLDER}/{UNDER_TC}.csv)). Operations that begin
with `{IN_PARTS}` are n operations of an n-th of the bytes on n machines. The overhead of NCCL's
chains (broadcast, reduce, and the two servers) is fitted on the rows of 4 machines
([how](../docs/calibration.md#transport)); those of 16 are predictions.

{markdown(collectives_grid(collectives))}

Mean absolute error, and mean error; without dp-central-ps of 1024 MiB on 4 machines with 10 ms,
which is shorter than the wire allows:

{markdown(errors_grid(possible, ["op", "backend", "nodes"]))}

Over all operations: {_by_nodes(possible)}.
"""


def _emulated_text(results: Path, runs: Sequence[Run]) -> str:
    """The section on the emulated cells."""
    table = emulated_cells(results, runs)
    if table is None or table.empty:
        return "None of these cells has been emulated yet."
    apart = table["emulated_s"] / table["simulated_s"] - 1
    by_schedule = apart.abs().groupby(table["schedule"], sort=False)
    medians = ", ".join(f"{name} {value:.1%}" for name, value in by_schedule.median().items())
    return f"""\
### Emulated

The same plans over real TCP (`python -m benchmarks.emulate_gpt3_small`, faithful), {len(table)} of
{len(cells())} cells ([table]({FILE})). Published → emulated (error):

{markdown(small_grid(table, "emulated_s"))}

Mean absolute error and mean error, without the cells that fix the compute:

{markdown(errors_grid(_predicted(table), list(SERIES)))}

Emulated and simulated times differ in the median by {medians}."""


def small_grid(table: pd.DataFrame, time: str = "simulated_s") -> Grid:
    """Published → another time: a row per series, micro-batch and number of pipelines, a column per
    network. time: column of `table`."""
    fixed = {cell.key for cell in cells() if cell.fixes_compute}
    texts = {
        key: f"{_arrow(row, time)}{' =' if key in fixed else ''}"
        for key, row in zip(_keys(table), table.itertuples(), strict=True)
    }
    links = list(dict.fromkeys(cell.link for cell in cells()))
    rows: dict[tuple[str, ...], dict[tuple[float, float], str]] = {}
    for cell in cells():
        label = (*cell.series, str(cell.micro_batch), str(cell.dp))
        rows.setdefault(label, {})[cell.link] = texts.get(cell.key, "-")
    return Grid(
        head=("Schedule", "Type", "Mode", "Micro-batch", "dp", *map(network_name, links)),
        rows=tuple(
            (*label, *(found.get(link, "-") for link in links)) for label, found in rows.items()
        ),
        num_labels=5,
    )


def collectives_grid(table: pd.DataFrame) -> Grid:
    """Published → simulated: a row per operation, library, machines and size."""
    keys = ["op", "backend", "nodes", "message_mb"]
    pairs = table[["delay_one_way_ms", "bandwidth_gbps"]].drop_duplicates()
    links = [(float(delay), float(rate)) for delay, rate in pairs.itertuples(index=False)]
    rows = []
    for label, found in table.groupby(keys, sort=False):
        texts = {
            (float(row.delay_one_way_ms), float(row.bandwidth_gbps)): (
                f"{row.published_ms:.0f} → {row.simulated_ms:.0f} ({percent_text(row.error)})"
            )
            for row in found.itertuples()
        }
        rows.append((*map(str, label), *(texts.get(link, "-") for link in links)))
    head = ("Operation", "Library", "Machines", "MiB", *map(network_name, links))
    return Grid(head=head, rows=tuple(rows), num_labels=4)


def errors_grid(table: pd.DataFrame, keys: Sequence[str]) -> Grid:
    """Number of cells, mean absolute error and mean error by `keys`."""
    rows = [
        (
            *map(str, label),
            str(len(error)),
            f"{error.abs().mean():.1%}",
            percent_text(float(error.mean())),
        )
        for label, error in table.groupby(list(keys), sort=False)["error"]
    ]
    head = (*(key.replace("_", " ") for key in keys), "Cells", "Absolute", "Mean")
    return Grid(head=head, rows=tuple(rows), num_labels=len(keys))


def _predicted(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of cells that do not fix compute, and are not another series' cell again."""
    again = (table["dp_mode"].isin(["allreduce", "central-ps"])) & (table["dp"].astype(int) == 1)
    fixing = {cell.key for cell in cells() if cell.fixes_compute}
    return table[~again & ~pd.Series([key in fixing for key in _keys(table)], index=table.index)]


def _keys(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return `SmallCell.key` of every row."""
    return [
        tuple(value if isinstance(value, str) else f"{value:g}" for value in row)
        for row in table[list(CELL)].itertuples(index=False)
    ]


def is_impossible(table: pd.DataFrame) -> "pd.Series[bool]":
    """Return the rows of collectives that `IMPOSSIBLE` describes, as a mask."""
    same: pd.Series[bool] = (table[list(IMPOSSIBLE)] == pd.Series(IMPOSSIBLE)).all(axis=1)
    return same


def _by_nodes(table: pd.DataFrame) -> str:
    return ", ".join(
        f"{error.abs().mean():.1%} on {nodes} machines"
        for nodes, error in table.groupby("nodes")["error"]
    )


def _arrow(row: object, time: str) -> str:
    published_s, other_s, error = (
        float(getattr(row, name)) for name in ("published_s", time, "error")
    )
    return f"{seconds_text(published_s)} → {seconds_text(other_s)} ({percent_text(error)})"
