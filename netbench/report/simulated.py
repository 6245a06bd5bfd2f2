"""What the simulator says about every published time, and how far it is out.

`results/simulated/*.csv` are written by `netbench reproduce --simulate`; this module reads them, so
that `results/README.md` is made without simulating. `predictions` does the same for what has not
been published.
"""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from netbench.errors import RecordError
from netbench.report.grid import Grid, csv_text, markdown
from netbench.report.published import CASES, KEY, Sample, data_folder, iteration_times
from netbench.report.tables import percent_text, seconds_text, setting_name
from netbench.scenario.schema import Section
from netbench.scenario.source import read_source
from netbench.scenario.validate import validate

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "simulated"
"""Of `results`."""

PICTURE, SCALING_PICTURE = "published.png", "dp-scaling.png"
REASONS = "reasons.yaml"

TIMES = "iteration_times"
PLACED = "placements"
TRANSFERS = "p2p_under_tc"
PIPELINES = "gpt3-small"
COLLECTIVES = "collectives"
SWEEPS = ("fluidstack2", "fluidstack3")
SCALING = "dp-scaling"
LAYOUTS = "layouts"
COLUMNS = {
    TIMES: (*KEY, "seed", "published_s", "simulated_s", "error"),
    PLACED: (*KEY, "scheduler", "seed", "bound_s", "simulated_s"),
    TRANSFERS: (
        "delay_one_way_ms", "bandwidth_gbps", "backend", "message_mb", "published_ms",
        "simulated_ms", "error", "simulated_again_ms",
    ),
    **dict.fromkeys(SWEEPS, ("system", "layers", "batch", "seed", "simulated_s")),
    PIPELINES: ("network", "system", "micro_batch", "backend", "dtype", "simulated_s"),
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
"""Of each CSV file in `FOLDER`. A column `simulated_*` is the simulator's; `error` follows."""

COMMAND = "netbench reproduce --simulate"

TOLERANCE = 1e-3
"""Of a simulated time, relative: another processor rounds otherwise, and events may change places.
An error follows its time, so it may differ by a little more than so much."""

FITTED, PREDICTED = ("case1", "case2"), ("case3", "case4", "case5")
"""Cases with rows that constants are fitted on (docs/calibration.md says which), and without."""

FAR = 0.15
"""A cell out by more than this is marked and listed."""

UNKNOWN = "Not known."

PLACED_NAME, BESIDE_PLACED = "netbench scheduled", "dtfm-scheduled"
"""The same system, as netbench's scheduler and as the published placement put it."""

NONE_PLACED: Mapping[tuple[str, int, int], float] = {}

WIDTH = 100
"""Of lines of prose."""


def placement_path(case: str, layers: int, batch: int) -> Path:
    """What `netbench schedule` wrote for a published setting (`make placements`)."""
    return data_folder(PLACED) / f"{case}-L{layers}-B{batch}.json"


def layout_path(case: str, layers: int, batch: int) -> Path:
    """What `netbench schedule --layout auto` wrote for a published setting (`make layouts`)."""
    placed = placement_path(case, layers, batch)
    return placed.parent / "layouts" / placed.name


def table_path(results: Path, name: str) -> Path:
    """The CSV file of a table."""
    return results / FOLDER / f"{name}.csv"


def table_text(name: str, rows: Sequence[Sequence[str]]) -> str:
    """The CSV file of a table, from its cells."""
    return csv_text(Grid(head=COLUMNS[name], rows=tuple(map(tuple, rows)))) + "\n"


def read_table(results: Path, name: str) -> pd.DataFrame | None:
    """A table with the types of its columns; None where it has not been made.

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
    """What makes one text of a table another, a line each; none if times agree within
    `TOLERANCE` and all else is equal."""
    ours, theirs = _lines(found), _lines(wanted)
    if len(ours) != len(theirs) or not ours or ours[0] != theirs[0]:
        return [f"{len(ours)} lines, {len(theirs)} expected, or another head"]
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


def simulated_settings(results: Path) -> pd.DataFrame | None:
    """One row per published setting of a system, in printed order, both means over its seeds.

    Columns: `KEY`, num (times), published_s, simulated_s, min_s, max_s (of the simulated ones),
    error (simulated over published - 1). None where nothing has been simulated.
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
            min_s=("simulated_s", "min"),
            max_s=("simulated_s", "max"),
        )
        .reset_index()
    )
    rows["error"] = rows["simulated_s"] / rows["published_s"] - 1
    return rows


def simulated_sample(
    settings: pd.DataFrame, case: str, system: str, layers: int, batch: int
) -> Sample | None:
    """The simulated times of one setting over its seeds; None if it was not published."""
    found = settings[(settings[KEY] == [case, system, layers, batch]).all(axis=1)]
    if found.empty:
        return None
    row = found.iloc[0]
    num = int(row["num"]) if row["max_s"] > row["min_s"] else 1
    return Sample(
        mean_s=float(row["simulated_s"]),
        min_s=float(row["min_s"]),
        max_s=float(row["max_s"]),
        num=num,
    )


def placed_seconds(results: Path) -> dict[tuple[str, int, int], float]:
    """Simulated seconds per iteration of dtfm where netbench's scheduler put it: by case, layers
    and batch."""
    table = read_table(results, PLACED)
    rows = [] if table is None else table.itertuples()
    return {(row.case, int(row.layers), int(row.batch)): float(row.simulated_s) for row in rows}


def accuracy(settings: pd.DataFrame) -> Grid:
    """Mean absolute and mean error, and how many settings, by system and case."""
    groups = {
        **{f"{case} ({'fitted' if case in FITTED else 'predicted'})": (case,) for case in CASES},
        "cases 1-2, fitted": FITTED,
        "cases 3-5, predicted": PREDICTED,
    }
    rows = [
        (system, *(_errors(of_system[of_system["case"].isin(cases)]) for cases in groups.values()))
        for system, of_system in settings.groupby("system")
    ]
    everything = (_errors(settings[settings["case"].isin(cases)]) for cases in groups.values())
    return Grid(
        head=("System", *groups), rows=(*rows, ("all", *everything)), num_labels=1
    )  # fmt: skip


def _errors(rows: pd.DataFrame) -> str:
    if rows.empty:
        return "-"
    size, mean = 100 * rows["error"].abs().mean(), percent_text(rows["error"].mean(), 1)
    return f"{size:.1f}% / {mean} ({len(rows)})"


def beside_published(
    settings: pd.DataFrame, case: str, placed: Mapping[tuple[str, int, int], float] = NONE_PLACED
) -> Grid:
    """Seconds per iteration, published → simulated, in the layout of the published table; and last,
    where there are any, those of `placed`, beside the simulated ones of dtfm-scheduled."""
    rows = settings[settings["case"] == case]
    systems = list(rows["system"].unique())
    table = []
    for (layers, batch), cells in rows.groupby(["layers", "batch"], sort=False):
        texts = {cell.system: _cell(cell) for cell in cells.itertuples()}
        row = [setting_name(layers, batch), *(texts.get(name, "-") for name in systems)]
        if placed:
            ours_s = placed.get((case, layers, batch))
            listed = cells[cells["system"] == BESIDE_PLACED]["simulated_s"].mean()
            row.append(_placed_cell(ours_s, float(listed)) if ours_s else "-")
        table.append(tuple(row))
    last = (PLACED_NAME,) if placed else ()
    return Grid(head=("Setting", *systems, *last), rows=tuple(table))


def _placed_cell(placed_s: float, listed_s: float) -> str:
    return f"{seconds_text(placed_s)} ({percent_text(placed_s / listed_s - 1, 1)})"


def _cell(cell: object) -> str:
    published_s, simulated_s, error = (
        float(getattr(cell, name)) for name in ("published_s", "simulated_s", "error")
    )
    percent = percent_text(error)
    if abs(error) > FAR:
        percent = f"**{percent}**"
    return f"{seconds_text(published_s)} → {seconds_text(simulated_s)} ({percent})"


class Reason(Section):
    """Why systems are out in cases, as far as known."""

    cases: list[str]
    systems: list[str]
    reason: str


class ReasonsForm(Section):
    """The whole of `REASONS`."""

    reasons: list[Reason]


@dataclass(frozen=True, kw_only=True, slots=True)
class FarColumn:
    """Cells of one case and system that are out by more than `FAR`. num: settings of the column.

    cells: (setting, error) of those out, in printed order.
    """

    case: str
    system: str
    num: int
    cells: tuple[tuple[str, float], ...]
    reason: str


def far_columns(results: Path, settings: pd.DataFrame) -> Iterator[FarColumn]:
    """Every column with a cell out by more than `FAR`, and why, in printed order."""
    path = results / FOLDER / REASONS
    reasons = validate(read_source(path), ReasonsForm).reasons if path.exists() else []
    for (case, system), rows in settings.groupby(["case", "system"], sort=False):
        far = rows[rows["error"].abs() > FAR]
        if far.empty:
            continue
        known = [r.reason for r in reasons if case in r.cases and system in r.systems]
        yield FarColumn(
            case=case,
            system=system,
            num=len(rows),
            cells=tuple(
                (setting_name(row.layers, row.batch), float(row.error)) for row in far.itertuples()
            ),
            reason=" ".join(" ".join(known).split()) or UNKNOWN,
        )


def far_markdown(columns: Sequence[FarColumn]) -> str:
    """Every cell, by case and system, beneath the reason that they share."""
    lines = []
    reasons = dict.fromkeys(column.reason for column in columns)
    for reason in sorted(reasons, key=lambda reason: reason == UNKNOWN):
        lines.append(bullet(reason))
        for column in columns:
            if column.reason == reason:
                cells = ", ".join(
                    f"{name} {percent_text(error, 1)}" for name, error in column.cells
                )
                count = f"{len(column.cells)} of {column.num}"
                text = f"**{column.case}, {column.system}** ({count}): {cells}"
                lines.append(textwrap.indent(bullet(text), "  "))
    return "\n".join(lines)


def bullet(text: str) -> str:
    """An item of a list, in lines that can be read."""
    return textwrap.fill(
        text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


NOT_SIMULATED = f"""\
Nothing has been simulated yet; do it with: `{COMMAND}` (`make simulate`).
"""


def placed_note(results: Path) -> str:
    """What the last column of the tables is, and how far it may be from the best there is; empty
    where nothing was placed."""
    table = read_table(results, PLACED)
    if table is None or table.empty:
        return ""
    gaps = (table["simulated_s"] / table["bound_s"] - 1).groupby(table["case"])
    by_case = ", ".join(f"{gap.max():.1%} in {case}" for case, gap in gaps)
    return f"""
*{PLACED_NAME}* is `{BESIDE_PLACED}` where `netbench schedule` places it, with as many layers in
each stage as it chooses, simulated only; in brackets, against the simulated `{BESIDE_PLACED}`. The
[files](placements), one per setting, say how long was searched. No placement with those layers is
below a lower bound ([how](../docs/placement.md#how-far-from-optimal)); above it they are by up to
{by_case}.
"""


def simulated_markdown(results: Path) -> str:
    """The section: accuracy, picture, a table per case, and what is far out."""
    settings = simulated_settings(results)
    if settings is None:
        return NOT_SIMULATED
    columns = list(far_columns(results, settings))
    num_far = sum(len(column.cells) for column in columns)
    placed = placed_seconds(results)
    tables = "\n\n".join(
        f"### Case {case.removeprefix('case')}, published → simulated\n\n"
        f"{markdown(beside_published(settings, case, placed))}"
        for case in CASES
    )
    return f"""\
What `netbench.simulator` says about the published runs: all {settings["num"].sum()} times, each in
[{TIMES}.csv]({FOLDER}/{TIMES}.csv). A run without random placement is simulated once for all its
seeds. Constants are fitted on cases 1 and 2, though not on every system there, and on the
point-to-point transfers below ([how](../docs/calibration.md)). Cases 3, 4 and 5 are predictions.
{placed_note(results)}
### Accuracy

Mean absolute error / mean error, of means over the seeds (number of settings):

{markdown(accuracy(settings))}

![Simulated against published, with a band of ±{FAR:.0%}]({FOLDER}/{PICTURE})

{tables}

### Out by more than {FAR:.0%}

{num_far} of {len(settings)} settings of a system (bold in the tables above):

{far_markdown(columns) or "None."}
"""
