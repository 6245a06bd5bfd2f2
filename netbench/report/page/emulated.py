"""Emulated times of the published cells, from the recorded runs: a table, and their errors."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from netbench.plan.maps import SEEDED
from netbench.plan.serial import plan_from_json
from netbench.records import Run
from netbench.report.numbers import exact_text, percent_text
from netbench.report.page.accuracy import accuracy
from netbench.report.page.published import KEY, case_name
from netbench.report.page.simulated import NOT_SIMULATED, TIMES, read_table
from netbench.report.tables.comparison import measured, run_source
from netbench.report.tables.grid import Grid, csv_text, markdown
from netbench.systems import find_variant, system_of

FILE = "emulated/iteration_times.csv"
"""Name of the table below `results`."""

FAITHFUL, FAST = "faithful", "fast"
"""Modes of an emulation, the more trusted one first: with TCP's windows, and without."""

INTRO = """\
Emulated runs of the published cases: the bytes cross a network that `tc netem` shapes, over the
kernel's TCP. Layers sleep as long as the published GPUs computed
([local testbed](../docs/local-testbed.md)). The page of each case has the runs themselves."""

MORE = """\
A reading of the guest's clock took 256 ns when cases 3 to 5 were recorded (but for dtfm-random of
cases 3 and 4), and deepspeed-pp, megatron-t8 and -p2t4 of case 2. Now it takes 16 ns:
dtfm-scheduled of case 1 takes 2% less time, zero3 3 to 9% ([why](../docs/local-testbed.md)). Sends
of DT-FM and DeepSpeed now wait for buffers. Runs before 2026-11-29 20:00 do not have
that. megatron-p8-random of case 5 is slow because idle connections start slowly again
([more on both](../docs/simulator.md#simulated-against-emulated)).

zero3 is emulated with `--unmerged`: it gathers matrix by matrix. Without that option it gathers all
layers beyond its live limit as one unit, for fewer messages ([why](../docs/zero3.md)). The table
then says *merged*.

To add times: `netbench run case3 --all --faithful`, which continues with `--resume`, then copy the
run's folder to `results/recorded/` and run `make reproduce-table`."""

DIFFERENCES = """\
Simulated against emulated: mean and largest difference of the simulated times from the emulated
ones ([what explains them](../docs/simulator.md#simulated-against-emulated))."""

MISSING = "not emulated yet"

COLUMNS = (
    *KEY, "seed", "published_s", "simulated_s", "emulated_s", "error", "mode", "run", "reason",
)  # fmt: skip


class EmulatedCell(NamedTuple):
    """The emulated time of a cell. in_parts: it was extended from two short iterations. merged:
    zero3 gathered the layers beyond its limit as one unit."""

    seconds: float
    mode: str
    in_parts: bool
    merged: bool
    run: str


Key = tuple[str, str, int, int, int | None]
"""Case, system, layers, batch, and the seed of a random placement."""


def emulated_csv(results: Path, runs: Mapping[str, Sequence[Run]]) -> str:
    """Return the table: a row for every published time of the cases. runs: by scenario."""
    table = _cells(results, runs)
    rows = () if table is None else tuple(map(tuple, table.astype(str).to_numpy()))
    return csv_text(Grid(head=COLUMNS, rows=rows)) + "\n"


def emulated_page(results: Path, runs: Mapping[str, Sequence[Run]]) -> str:
    """`results/emulated.md`: how many times are emulated, and their errors by system and case."""
    table = _cells(results, runs)
    if table is None:
        return f"# Emulated times\n\n{NOT_SIMULATED}"
    known = table[table["emulated_s"] != ""].astype({"emulated_s": "float64"})
    parts = [
        f"{len(known)} of {len(table)} published times are emulated ([table]({FILE})).\nMean "
        "absolute error, over the settings of which any time is emulated:"
    ]
    words = {
        FAITHFUL: "*faithful*: TCP's windows act as on the machines",
        FAST: "*fast*: rates and delays only",
    }
    for mode, meaning in words.items():
        rows = known[known["mode"].str.startswith(mode)]
        if not rows.empty:
            parts += [f"{meaning} ({len(rows)} times).", markdown(accuracy(_settings(rows)))]
    parts += [DIFFERENCES, markdown(_differences(known)), MORE]
    return "\n\n".join(["# Emulated times", INTRO, *parts]) + "\n"


def _settings(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds that are emulated, with the error of each setting."""
    means = rows.groupby(KEY, sort=False)[["published_s", "emulated_s"]].mean().reset_index()
    means["error"] = means["emulated_s"] / means["published_s"] - 1
    return means


def _differences(known: pd.DataFrame) -> Grid:
    """By system and case, for every time that is emulated."""
    apart = known.assign(apart=known["simulated_s"].astype(float) / known["emulated_s"] - 1)
    cases = sorted(set(apart["case"]))
    rows = []
    for system, of_system in apart.groupby("system"):
        by_case = dict(iter(of_system.groupby("case")["apart"]))
        texts = (_mean_and_largest(by_case[case]) if case in by_case else "-" for case in cases)
        rows.append((str(system), *texts))
    return Grid(head=("System", *map(case_name, cases)), rows=tuple(rows))


def _mean_and_largest(values: pd.Series) -> str:
    """`+1.2% / -3.4%`: the mean, and the value that is furthest from 0."""
    return f"{percent_text(values.mean())} / {percent_text(max(values, key=abs))}"


def _cells(results: Path, runs: Mapping[str, Sequence[Run]]) -> pd.DataFrame | None:
    """The rows of the table as text, but for the times; None if nothing is simulated."""
    table = read_table(results, TIMES)
    if table is None:
        return None
    found = _found(run for case in sorted(set(table["case"])) for run in runs.get(case, ()))
    rows = []
    for row in table.itertuples():
        key = (row.case, row.system, int(row.layers), int(row.batch))
        is_random = find_variant(str(row.system)).scheduler in SEEDED
        seed = None if pd.isna(row.seed) else int(row.seed)
        cell = found.get((*key, seed if is_random else None))
        shown = "" if seed is None else str(seed)
        start = (*key, shown, row.published_s, exact_text(float(row.simulated_s)))
        if cell is None:
            rows.append((*start, "", "", "", "", MISSING))
            continue
        error = f"{cell.seconds / float(row.published_s) - 1:.4f}"
        added = [", in parts"] * cell.in_parts + [", merged"] * cell.merged
        mode = "".join([cell.mode, *added])
        rows.append((*start, exact_text(cell.seconds), error, mode, cell.run, ""))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _found(runs: Iterator[Run]) -> dict[Key, EmulatedCell]:
    """The emulated time of every cell: a faithful one before a fast one, one that is not merged
    before one that is, then the newest."""
    found: dict[Key, EmulatedCell] = {}
    for run in runs:
        for key, cell in _cells_of(run):
            before = found.get(key, cell)
            if (cell.mode == FAITHFUL, not cell.merged) >= (
                before.mode == FAITHFUL, not before.merged
            ):  # fmt: skip
                found[key] = cell
    return found


def _cells_of(run: Run) -> Iterator[tuple[Key, EmulatedCell]]:
    """The cells of a run whose plans are as published: own network, placement and layers."""
    if run_source(run) != "emulated":
        return
    first = {record.plan_hash: record for record in reversed(run.records)}
    for plan_hash, plan in run.plans.items():
        times, record = measured(run, plan_hash), first.get(plan_hash)
        if times is None or record is None:
            continue
        scheduler = str(plan.get("scheduler", ""))
        if scheduler != find_variant(record.variant).scheduler or plan.get("network_name"):
            continue
        key = (record.scenario, record.variant, record.layers, record.batch)
        mode = FAITHFUL if "tcp" in plan["network"] else FAST
        is_partial = bool(record.parts_s) and record.iteration_s not in record.parts_s
        parsed = plan_from_json(json.dumps(plan))
        is_merged = system_of(parsed).is_merged(parsed)
        cell = EmulatedCell(times.mean_s, mode, is_partial, is_merged, run.run_id)
        yield (*key, record.seed if scheduler in SEEDED else None), cell
