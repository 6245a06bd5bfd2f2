"""The simulated tables, `results/simulated/*.csv`: their columns, reading and comparing them.

`netbench reproduce --simulate` writes them. The pages are made from them, without simulating.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from netbench.errors import RecordError
from netbench.report.page.published import KEY, data_folder, iteration_times
from netbench.report.tables.grid import Grid, csv_text

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "simulated"
"""Folder in `results`."""

PICTURE, SCALING_PICTURE = "published", "dp-scaling"
"""Names of the pictures in `FOLDER`, each in all of `FORMATS`."""

FORMATS = ("svg", "png")

TIMES = "iteration_times"
PLACED = "placements"
TRANSFERS = "p2p_under_tc"
PIPELINES = "gpt3-small"
COLLECTIVES = "collectives"
SWEEPS = ("fluidstack2", "fluidstack3")
"""Scenarios with published times of their own, beside cases 1-5."""

BLIND = "blind"
SMALL, UNDER_TC = "gpt3_small_iteration_times", "collectives_under_tc"
"""Published runs under tc."""

SCALING = "dp-scaling"
LAYOUTS = "layouts"
COLUMNS = {
    TIMES: (*KEY, "seed", "published_s", "simulated_s", "error"),
    PLACED: (*KEY, "scheduler", "seed", "bound_s", "simulated_s"),
    TRANSFERS: (
        "delay_one_way_ms", "bandwidth_gbps", "backend", "message_mb", "published_ms",
        "simulated_ms", "error", "simulated_again_ms",
    ),
    **dict.fromkeys(
        SWEEPS, ("system", "layers", "batch", "seed", "published_s", "simulated_s", "error")
    ),
    PIPELINES: ("network", "system", "micro_batch", "backend", "dtype", "simulated_s"),
    SMALL: (
        "schedule", "dtype", "dp_mode", "delay_one_way_ms", "bandwidth_gbps", "micro_batch", "dp",
        "published_s", "simulated_s", "error",
    ),
    UNDER_TC: (
        "op", "nodes", "delay_one_way_ms", "bandwidth_gbps", "backend", "message_mb",
        "published_ms", "simulated_ms", "error",
    ),
    BLIND: ("scenario", "experiment", "model", "batch", "unit", "simulated_value"),
    SCALING: (
        "scenario", "model", "system", "replicas", "published_throughput", "simulated_throughput",
        "error", "simulated_scaling",
    ),
    COLLECTIVES: (
        "op", "nodes", "payload_bytes", "delay_one_way_ms", "bandwidth_gbps", "backend",
        "simulated_ms", "closed_form_ms",
    ),
    LAYOUTS: (
        "case", "layers", "batch", "published_system", "simulated_published_s", "plan", "pp", "tp",
        "dp", "memory_gb", "simulated_listed_s", "simulated_s", "simulated_speedup",
    ),
}  # fmt: skip
"""Columns of each CSV file in `FOLDER`. The simulator computes `simulated_*`; `error` follows."""

COMMAND = "netbench reproduce --simulate"

NOT_SIMULATED = f"""\
Nothing has been simulated yet. To simulate: `{COMMAND}` (`make simulate`).
"""

TOLERANCE = 1e-3
"""Relative difference allowed between a recorded and a repeated simulated time: processors round
differently, which may swap events. An error follows its time and may differ by a little more."""

PLACED_NAME, BESIDE_PLACED = "netbench scheduled", "dtfm-scheduled"
"""The same system, placed by netbench's scheduler and as published."""


def placement_path(case: str, layers: int, batch: int) -> Path:
    """File that `netbench schedule` wrote for a published setting (`make placements`)."""
    return data_folder(PLACED) / f"{case}-L{layers}-B{batch}.json"


def layout_path(case: str, layers: int, batch: int) -> Path:
    """File that `netbench schedule --layout auto` wrote for a setting (`make layouts`)."""
    placed = placement_path(case, layers, batch)
    return placed.parent / "layouts" / placed.name


def table_path(results: Path, name: str) -> Path:
    """Path of the CSV file of a table."""
    return results / FOLDER / f"{name}.csv"


def table_text(name: str, rows: Sequence[Sequence[str]]) -> str:
    """Text of the CSV file of a table."""
    return csv_text(Grid(head=COLUMNS[name], rows=tuple(map(tuple, rows)))) + "\n"


def read_table(results: Path, name: str) -> "pd.DataFrame | None":
    """Read a table with the types of its columns; None if the file does not exist.

    Raises RecordError if the file has other columns, or text where a number belongs.
    """
    import pandas as pd

    path = table_path(results, name)
    if not path.exists():
        return None
    try:
        table = pd.read_csv(path)
        numbers = [column for column in table if str(column).startswith(("simulated_", "error"))]
        table = table.astype(dict.fromkeys(numbers, "float64"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read: {error}; write it with {COMMAND}") from error
    if tuple(table.columns) != COLUMNS[name]:
        raise RecordError(
            f"{path}: has columns {', '.join(map(str, table.columns))}; expected "
            f"{', '.join(COLUMNS[name])}: write it with {COMMAND}"
        )
    return table.astype({"seed": "Int64"}) if "seed" in table else table


def differences(found: str, wanted: str) -> list[str]:
    """Lines that differ between two texts of a table; none if times agree within `TOLERANCE` and
    everything else is equal."""
    ours, theirs = _lines(found), _lines(wanted)
    if len(ours) != len(theirs) or not ours or ours[0] != theirs[0]:
        return [f"{len(ours)} lines, {len(theirs)} expected, or different columns"]
    return [
        f"line {number}: {','.join(a)}; simulated again: {','.join(b)}"
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1)
        if not all(map(_agree, ours[0], a, b))
    ]


def _lines(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines()))


def _agree(column: str, found: str, wanted: str) -> bool:
    if found == wanted:
        return True
    try:
        a, b = float(found), float(wanted)
    except ValueError:
        return False
    if column == "error":
        return abs(a - b) <= 2 * TOLERANCE * (1 + abs(b))
    return column.startswith("simulated_") and abs(a - b) <= TOLERANCE * abs(b)


def simulated_settings(results: Path) -> "pd.DataFrame | None":
    """One row per published setting and system, in printed order, with means over the seeds.

    Columns: `KEY`, num (times), published_s, simulated_s, error (simulated over published - 1).
    None if nothing has been simulated.
    Raises RecordError if the simulated rows are not those of the published times.
    """
    table = read_table(results, TIMES)
    if table is None:
        return None
    published = iteration_times().rename(columns={"iteration_s": "published_s"})
    same = [*KEY, "seed", "published_s"]
    if not table[same].reset_index(drop=True).equals(published[same].reset_index(drop=True)):
        path = table_path(results, TIMES)
        raise RecordError(f"{path}: rows are not the published times: write it with {COMMAND}")
    rows = (
        table.groupby(KEY, sort=False)
        .agg(
            num=("published_s", "count"),
            published_s=("published_s", "mean"),
            simulated_s=("simulated_s", "mean"),
        )
        .reset_index()
    )
    rows["error"] = rows["simulated_s"] / rows["published_s"] - 1
    return rows


def all_settings(results: Path) -> "pd.DataFrame | None":
    """`simulated_settings`, and those of `SWEEPS` with their scenario as the case; case, system,
    layers, batch, published_s and simulated_s. None if nothing has been simulated."""
    import pandas as pd

    cases = simulated_settings(results)
    if cases is None:
        return None
    tables = {name: read_table(results, name) for name in SWEEPS}
    means = [
        table.groupby(KEY[1:], sort=False)[["published_s", "simulated_s"]]
        .mean()
        .reset_index()
        .assign(case=name)
        for name, table in tables.items()
        if table is not None
    ]
    return pd.concat([cases, *means], ignore_index=True)[[*KEY, "published_s", "simulated_s"]]


def placed_seconds(results: Path) -> dict[tuple[str, int, int], float]:
    """Simulated seconds per iteration of `PLACED_NAME`, by (case, layers, batch)."""
    table = read_table(results, PLACED)
    rows = [] if table is None else table.itertuples()
    return {(row.case, int(row.layers), int(row.batch)): float(row.simulated_s) for row in rows}
