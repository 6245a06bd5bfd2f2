"""`results/case1.md` to `case5.md`: all times of one case, of every source."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from netbench.records import Run
from netbench.report.numbers import or_dash, percent_text, seconds_text, spread_text
from netbench.report.page.accuracy import FAR, absolute_and_mean_error, far_columns, far_markdown
from netbench.report.page.layouts import case_layouts_markdown
from netbench.report.page.published import CASES, DEEPSPEED, case_title, setting_name
from netbench.report.page.published_tables import NOTABLE, efficiency_table, printed_times
from netbench.report.page.simulated import (
    BESIDE_PLACED,
    BLIND,
    FOLDER,
    NOT_SIMULATED,
    PLACED,
    PLACED_NAME,
    TIMES,
    placed_seconds,
    read_table,
    simulated_settings,
)
from netbench.report.tables.comparison import Comparison, compare, run_source
from netbench.report.tables.grid import Column, Grid, markdown, table_of
from netbench.report.tables.run import provenance

NONE_PLACED: Mapping[tuple[str, int, int], float] = {}

NO_RUN = """\
No run of this case has been recorded. To make one: `netbench run {case}`, then copy its folder from
`results/` to `results/recorded/` and run `make reproduce-table`."""


def case_page(results: Path, case: str, runs: Sequence[Run]) -> str:
    """The page of a case. runs: the recorded ones, oldest first."""
    measured = [run for run in runs if run_source(run) == "measured"]
    emulated = "\n\n".join(_executed(run) for run in runs if run not in measured)
    on_machines = "".join(f"## Measured\n\n{_executed(run)}\n\n" for run in measured)
    return f"""\
# {case_title(case)}

{CASES[case].hardware} ([scenario](../scenarios/{case}.yaml), [all results](README.md))

`L24 B1024` is a model of 24 layers trained with a global batch of 1024 sequences of 2048 tokens.

## Published and simulated

{_simulated(results, case)}
## Emulated

{emulated or NO_RUN.format(case=case)}

{on_machines}{case_layouts_markdown(results, case)}\
## Published iteration times

Seconds per iteration as printed, one column per seed.

{markdown(printed_times(case))}

## Published efficiency

PFLOPS: the work of an iteration over its time. *Printed* figures are reproduced here from the
times, each with the [estimator](anomalies.md) of its column. The *mean* is work over the mean time,
± half the range of the seeds. **Bold**: the printed figure is more than {NOTABLE:.0%} away from it.

{markdown(efficiency_table(case))}
"""


def _simulated(results: Path, case: str) -> str:
    settings = simulated_settings(results)
    if settings is None:
        return NOT_SIMULATED
    far = [column for column in far_columns(results, settings) if column.case == case]
    num_far, num = sum(len(c.errors) for c in far), int((settings["case"] == case).sum())
    reasons = (
        f"\n{num_far} of {num} settings are more than {FAR:.0%} off:\n\n{far_markdown(far)}\n"
        if far
        else ""
    )
    return f"""\
Seconds per iteration, published → simulated (error), means over the seeds. **Bold**: more than
{FAR:.0%} off. Every single time is in [{TIMES}.csv]({FOLDER}/{TIMES}.csv).

{markdown(beside_published(settings, case, placed_seconds(results)))}
{_placed_note(results, case)}{_blind_note(results, case)}{reasons}"""


def beside_published(
    settings: pd.DataFrame, case: str, placed: Mapping[tuple[str, int, int], float] = NONE_PLACED
) -> Grid:
    """Seconds per iteration, published → simulated, in the layout of the published table.

    The last row has the mean absolute and the mean error of each system. If `placed` has times, the
    last column has them with their difference from the simulated `BESIDE_PLACED`.
    """
    rows = settings[settings["case"] == case]
    systems = list(rows["system"].unique())
    table = []
    for (layers, batch), cells in rows.groupby(["layers", "batch"], sort=False):
        texts = {cell.system: _cell(cell) for cell in cells.itertuples()}
        row = [setting_name(layers, batch), *(texts.get(name, "-") for name in systems)]
        if placed:
            placed_s = placed.get((case, layers, batch))
            listed_s = float(cells[cells["system"] == BESIDE_PLACED]["simulated_s"].mean())
            row.append(
                f"{seconds_text(placed_s)} ({percent_text(placed_s / listed_s - 1)})"
                if placed_s
                else "-"
            )
        table.append(tuple(row))
    errors = [absolute_and_mean_error(rows[rows["system"] == name]) for name in systems]
    last = (PLACED_NAME,) if placed else ()
    table.append(("error, absolute / mean", *errors, *("-" for _ in last)))
    return Grid(head=("Setting", *systems, *last), rows=tuple(table))


def _cell(cell: object) -> str:
    published_s, simulated_s, error = (
        float(getattr(cell, name)) for name in ("published_s", "simulated_s", "error")
    )
    percent = percent_text(error)
    if abs(error) > FAR:
        percent = f"**{percent}**"
    return f"{seconds_text(published_s)} → {seconds_text(simulated_s)} ({percent})"


def _placed_note(results: Path, case: str) -> str:
    """Explain the last column, with the distance from the lower bound; empty if nothing was
    placed."""
    table = read_table(results, PLACED)
    rows = None if table is None else table[table["case"] == case]
    if rows is None or rows.empty:
        return ""
    gap = (rows["simulated_s"] / rows["bound_s"] - 1).max()
    return f"""
*{PLACED_NAME}* is `{BESIDE_PLACED}` placed by `netbench schedule`, which also chooses the number of
layers of each stage ([placements](placements)). It is simulated only; the percentage is relative to
the simulated `{BESIDE_PLACED}`. It is at most {gap:.1%} above a
[lower bound](../docs/placement.md#how-far-from-optimal) for all placements with these layers.
"""


def _blind_note(results: Path, case: str) -> str:
    """The simulated times of the system whose published ones nobody here has seen; empty if there
    are none."""
    table = read_table(results, BLIND)
    rows = None if table is None else table[table["scenario"] == case]
    if rows is None or rows.empty:
        return ""
    means = rows.groupby(["model", "batch"], sort=False)["simulated_value"].mean()
    batches = list(dict.fromkeys(rows["batch"]))
    grid = Grid(
        head=("Model", *(f"B{batch}" for batch in batches)),
        rows=tuple(
            (model, *(seconds_text(means[model, batch]) for batch in batches))
            for model in dict.fromkeys(rows["model"])
        ),
    )
    return f"""
`{DEEPSPEED}`, DeepSpeed's pipeline engine, is predicted blind: simulated seconds per iteration,
means over the seeds. [The ledger](ledger.md) has what was registered.

{markdown(grid)}
"""


def _executed(run: Run) -> str:
    """The table of a recorded run, and where it ran."""
    rows = compare(run)
    found = [row.found for row in rows if row.found]
    half_s = max(((times.max_s - times.min_s) / 2 for times in found), default=0.0)
    seeds = sorted({seed for row in rows for seed in row.seeds})
    numbers = sorted({times.num for times in found})
    counts = "one iteration per row"
    if numbers[-1:] > [1]:
        within = f"The times of a row are within ±{float(f'{half_s:.2g}'):g} s"
        counts = f"{' or '.join(map(str, numbers))} iterations per row after warm-up. {within}"
    lines = [
        f"Run {run.run_id}: seed {', '.join(map(str, seeds))}, {counts}.",
        "Published times are means over the seeds ± half their range. The error is of the "
        f"{run_source(run)} time. Simulated times were recorded before the run, for the same "
        "seeds.",
        *provenance(run),
    ]
    table = markdown(executed(rows, run_source(run)))
    return "\n".join([table, "", *(f"- {line}" for line in lines)])


def executed(rows: Sequence[Comparison], source: str = "emulated") -> Grid:
    """Seconds per iteration of a recorded run, beside the published and the simulated ones."""
    columns: list[Column[Comparison]] = [
        ("Setting", lambda row: row.setting),
        ("System", lambda row: row.name),
        ("published s", lambda row: or_dash(spread_text, row.published)),
        ("simulated s", lambda row: or_dash(seconds_text, row.simulated_s)),
        (f"{source} s", lambda row: seconds_text(row.found.mean_s) if row.found else "-"),
        ("error", lambda row: or_dash(percent_text, row.error)),
    ]
    return table_of(rows, columns, num_labels=2)
