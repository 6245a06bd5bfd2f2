"""`results/fluidstack.md`: published and simulated runs on rented machines in several regions."""

from pathlib import Path

import pandas as pd

from netbench.report.numbers import percent_text, seconds_text
from netbench.report.page.published import load, setting_name
from netbench.report.page.simulated import FOLDER, NOT_SIMULATED, SWEEPS, read_table
from netbench.report.tables.grid import Grid, bullet, markdown
from netbench.scenario import Scenario, load_scenario

SETTING = ["layers", "batch"]

ROUNDED = "{:.3f}".format
"""An efficiency as it was printed, PFLOPS."""


def fluidstack_page(results: Path) -> str:
    """The page. Nothing of it is fitted, but for two choices in the scenario of three regions."""
    tables = {name: read_table(results, name) for name in SWEEPS}
    parts = [_part(name, table) for name, table in tables.items() if table is not None]
    return f"""\
# FluidStack

GPT-XL on rented machines with two A40 each, in two and in three regions
([data](published/README.md), from the experiment notes of Yuan et al., NeurIPS 2022). No constant
of netbench is fitted on these runs. The A40 is the V100 of cases 1 and 2, times the ratio of the
nominal peaks. [All results](README.md)

{"".join(parts) or NOT_SIMULATED}"""


def _part(name: str, table: pd.DataFrame) -> str:
    scenario, cells = load_scenario(name), efficiencies(name)
    same = cells["pflops"].map(ROUNDED) == cells["printed"].map(ROUNDED)
    return f"""\
## {scenario.title}

{_assumptions(scenario)}

Seconds per iteration, published → simulated (error), means over the seeds
([{name}.csv]({FOLDER}/{name}.csv)):

{markdown(beside_published(table))}

PFLOPS as printed: the printed work of an iteration over the mean time of the seeds. {same.sum()} of
{len(cells)} printed cells follow from the printed times to the last digit.

{_anomalies(cells[~same])}
{markdown(efficiency_grid(cells))}

"""


def _assumptions(scenario: Scenario) -> str:
    lines = [
        scenario.notes,
        *(f"{device.name}: {device.source}." for device in scenario.devices.values()),
        f"Other assumptions: see the [scenario](../scenarios/{scenario.name}.yaml).",
    ]
    return "\n".join(bullet(line) for line in lines)


def beside_published(table: pd.DataFrame) -> Grid:
    """Published and simulated seconds by setting and system; the last row has the errors."""
    means = table.groupby(["system", *SETTING], sort=False)[["published_s", "simulated_s"]].mean()
    means["error"] = means["simulated_s"] / means["published_s"] - 1
    systems = list(means.index.get_level_values("system").unique())
    rows = []
    for setting in sorted({key[1:] for key in means.index}):
        cells = (_cell(means, (name, *setting)) for name in systems)
        rows.append((setting_name(*setting), *cells))
    errors = (means.loc[name]["error"].abs().mean() for name in systems)
    rows.append(("mean absolute error", *(f"{error:.1%}" for error in errors)))
    return Grid(head=("Setting", *systems), rows=tuple(rows))


def _cell(means: pd.DataFrame, key: tuple[object, ...]) -> str:
    if key not in means.index:
        return "-"
    published_s, simulated_s, error = means.loc[key]
    return f"{seconds_text(published_s)} → {seconds_text(simulated_s)} ({percent_text(error)})"


def efficiencies(name: str) -> pd.DataFrame:
    """Printed efficiencies of a scenario, and those that follow from its printed times.

    Columns: system, layers, batch, printed and pflops (PFLOPS). Work grows with the batch from the
    printed work of an iteration of 1024 sequences.
    """
    printed = load(f"{name}_pflops").rename(columns={"pflops": "printed"})
    times = load(f"{name}_iteration_times").groupby(["system", *SETTING])["iteration_s"].mean()
    work = load("published_pflop_per_iteration")
    work = work[work["batch"] == 1024].set_index("layers")["pflop"]
    cells = printed.merge(times.reset_index(), on=["system", *SETTING], how="left", validate="1:1")
    pflop = cells["layers"].map(work) * cells["batch"] / 1024
    return cells.assign(pflops=pflop / cells["iteration_s"])


def efficiency_grid(cells: pd.DataFrame) -> Grid:
    """Printed PFLOPS: a row per setting, a column per system."""
    table = cells.pivot(index=SETTING, columns="system", values="printed")
    systems = list(cells["system"].unique())
    rows = [
        (setting_name(*setting), *("-" if x != x else ROUNDED(x) for x in row[systems]))
        for setting, row in table.iterrows()
    ]
    return Grid(head=("Setting", *systems), rows=tuple(rows))


def _anomalies(cells: pd.DataFrame) -> str:
    lines = [
        f"{cell.system}, {setting_name(cell.layers, cell.batch)}: printed "
        f"{ROUNDED(cell.printed)}, from the times {cell.pflops:.4f}."
        for cell in cells.itertuples()
    ]
    return "".join(f"{bullet(line)}\n" for line in lines)
