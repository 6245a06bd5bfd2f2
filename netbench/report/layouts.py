"""The best plans found for published settings, as a section of `results/README.md`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from netbench.report.grid import Grid, markdown
from netbench.report.simulated import FOLDER, LAYOUTS, bullet, read_table
from netbench.report.tables import seconds_text, setting_name

if TYPE_CHECKING:
    import pandas as pd


def layouts_markdown(results: Path) -> str:
    """The section; empty where layouts have not been searched."""
    table = read_table(results, LAYOUTS)
    if table is None:
        return ""
    return f"""\
### Layouts

The fastest plan that a small search of `netbench schedule --layout auto` found for each published
setting ([how](../docs/placement.md)), beside the fastest published system there, both simulated.
*Listed*: with rank r on device r, as the published runs have it; *placed*: where the search puts
it, with as many layers in each stage as it chooses. Data: [{LAYOUTS}.csv]({FOLDER}/{LAYOUTS}.csv).

{_summary(table)}

{markdown(layouts(table))}
"""


def layouts(table: pd.DataFrame) -> Grid:
    """A row per setting, seconds of an iteration, and how many times faster the found plan is."""
    rows = []
    for row in table.itertuples():
        found: Any = row
        tensor = f"t{found.tp}" if found.tp > 1 else ""
        rows.append(
            (
                found.case,
                setting_name(found.layers, found.batch),
                found.published_system,
                seconds_text(found.simulated_published_s),
                found.plan,
                f"p{found.pp}{tensor}d{found.dp}",
                f"{found.memory_gb:.1f}",
                seconds_text(found.simulated_listed_s),
                seconds_text(found.simulated_s),
                f"{found.simulated_speedup:.2f}",
            )
        )
    return Grid(
        head=(
            "Case", "Setting", "Published", "s", "Found", "Layout", "GB", "listed s", "placed s",
            "times faster",
        ),
        rows=tuple(rows),
        num_labels=3,
    )  # fmt: skip


def _summary(table: pd.DataFrame) -> str:
    """By how much, where least, and what placing has to do with it."""
    least = table.loc[table["simulated_speedup"].idxmin()]
    most = table.loc[table["simulated_speedup"].idxmax()]
    num_faster = int((table["simulated_speedup"] > 1).sum())
    taken = 1 - table["simulated_s"] / table["simulated_listed_s"]
    of_listed = int((table["simulated_listed_s"] < table["simulated_published_s"]).sum())
    furthest = table.loc[taken.idxmax()]
    largest = table.loc[table["memory_gb"].idxmax()]
    return "\n".join(
        map(
            bullet,
            (
                f"The found plan is faster in {num_faster} of {len(table)} settings: from "
                f"{_where(least)} to {_where(most)}.",
                f"It is faster as listed already in {of_listed}. Placing takes off "
                f"{taken.max():.1%} at most ({furthest['case']}, "
                f"{setting_name(furthest['layers'], furthest['batch'])}), and nothing in "
                f"{int((taken <= 0).sum())}.",
                "What gains is the rest of the plan: a parameter server sharded among the "
                "pipelines, 1F1B, other depths. No such run has been published; emulated, some "
                "took 23% less to 17% more ([which](../docs/placement.md#layouts)).",
                f"Memory is estimated without the framework's own, about 1 GB. The plan that needs "
                f"most, {largest['memory_gb']:.1f} GB ({largest['case']}, "
                f"{setting_name(largest['layers'], largest['batch'])}), may not fit 16 GB.",
                "Systems differ in what they do beside the network, as "
                "[their trainers](../docs/trainers.md) say: dtfm updates with SGD on the CPU, "
                "megatron, zero3 and ddp with Adam.",
            ),
        )
    )


def _where(row: pd.Series[Any]) -> str:
    setting = setting_name(row["layers"], row["batch"])
    return f"{row['simulated_speedup']:.2f} times ({row['case']}, {setting})"
