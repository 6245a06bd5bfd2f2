"""The best plans found for published settings: a summary, and a table per case."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from netbench.report.numbers import seconds_text
from netbench.report.page.published import setting_name
from netbench.report.page.simulated import FOLDER, LAYOUTS, read_table
from netbench.report.tables.grid import Column, Grid, bullet, markdown, table_of

if TYPE_CHECKING:
    import pandas as pd


def layouts_markdown(results: Path) -> str:
    """Summary of the layouts found for all cases; empty if no layouts have been searched."""
    table = read_table(results, LAYOUTS)
    if table is None:
        return ""
    return f"""\
## Layouts

For each published setting, a small search with `netbench schedule --layout auto`
([how](../docs/placement.md)) found a plan: pipeline depth, tensor and data parallelism, schedule
and synchronisation. It is compared with the fastest published system, both simulated. The plans
are on the page of each case; the data are in [{LAYOUTS}.csv]({FOLDER}/{LAYOUTS}.csv).

{_summary(table)}
"""


def case_layouts_markdown(results: Path, case: str) -> str:
    """The layouts found for one case; empty if no layouts have been searched."""
    table = read_table(results, LAYOUTS)
    if table is None:
        return ""
    return f"""\
## Layouts

The fastest plan that a small search of `netbench schedule --layout auto` found
([summary](predictions.md#layouts)), beside the fastest published system, both simulated. *p8d8* is
a pipeline of 8 stages, 8 times data parallel. *Listed*: rank r on device r, as published. *Placed*:
where the search puts the ranks, with the number of layers it chooses for each stage.

{markdown(layouts(table[table["case"] == case]))}

"""


def layouts(table: "pd.DataFrame") -> Grid:
    """A row per setting: seconds per iteration, and how many times faster the found plan is."""
    columns: list[Column[Any]] = [
        ("Setting", lambda row: setting_name(row.layers, row.batch)),
        ("Published", lambda row: row.published_system),
        ("s", lambda row: seconds_text(row.simulated_published_s)),
        ("Found", lambda row: row.plan),
        ("Layout", lambda row: layout_text(row)),
        ("GB", lambda row: f"{row.memory_gb:.1f}"),
        ("listed s", lambda row: seconds_text(row.simulated_listed_s)),
        ("placed s", lambda row: seconds_text(row.simulated_s)),
        ("times faster", lambda row: f"{row.simulated_speedup:.2f}"),
    ]
    return table_of(table.itertuples(), columns, num_labels=2)


def layout_text(layout: Any) -> str:
    """Layout as in the description of a plan, e.g. `p4t2d8`. layout: has pp, tp and dp."""
    return f"p{layout.pp}{f't{layout.tp}' if layout.tp > 1 else ''}d{layout.dp}"


def _summary(table: "pd.DataFrame") -> str:
    """By how much the found plans are faster, and how much of that is due to placement."""
    least = table.loc[table["simulated_speedup"].idxmin()]
    most = table.loc[table["simulated_speedup"].idxmax()]
    num_faster = int((table["simulated_speedup"] > 1).sum())
    saved = 1 - table["simulated_s"] / table["simulated_listed_s"]
    num_listed = int((table["simulated_listed_s"] < table["simulated_published_s"]).sum())
    furthest = table.loc[saved.idxmax()]
    largest = table.loc[table["memory_gb"].idxmax()]
    lines = (
        f"The found plan is faster in {num_faster} of {len(table)} settings: from "
        f"{least['simulated_speedup']:.2f} times {_where(least)} to "
        f"{most['simulated_speedup']:.2f} times {_where(most)}.",
        f"In {num_listed} settings it is faster even without placement. Placement saves at most "
        f"{saved.max():.1%} {_where(furthest)}, and nothing in {int((saved <= 0).sum())} settings.",
        "The rest of the gain comes from the plan itself: a parameter server sharded among the "
        "pipelines, 1F1B, other depths. No such run has been published. Some were emulated, and "
        "took 23% less to 17% more ([which](../docs/placement.md#layouts)).",
        f"Memory is estimated without that of the framework, about 1 GB. The largest plan, "
        f"{largest['memory_gb']:.1f} GB {_where(largest)}, may not fit 16 GB.",
        "Systems also differ in their optimizer ([trainers](../docs/trainers.md)): dtfm updates "
        "with SGD on the CPU; megatron, zero3 and ddp with Adam.",
    )
    return "\n".join(map(bullet, lines))


def _where(row: "pd.Series[Any]") -> str:
    return f"({row['case']}, {setting_name(row['layers'], row['batch'])})"
