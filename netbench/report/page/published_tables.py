"""The published tables of a case: times as printed, and efficiencies as printed and as means."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from netbench.report.numbers import spread_text
from netbench.report.page.published import (
    efficiencies,
    iteration_times,
    published_settings,
    sample,
    setting_name,
    settings,
)
from netbench.report.tables.grid import Grid

PRINTED_TYPOS = {("case2", 24, 1024): "L24 B1028"}
"""Misprinted setting labels of the efficiency tables."""

BLANK_COLUMNS = {"case2": "ZeRO S3"}
"""Heads of efficiency columns that were printed without figures."""

NOTABLE = 0.01
"""Relative distance from the mean above which a printed efficiency is marked."""


def printed_times(case: str) -> Grid:
    """Seconds per iteration in the printed layout: a column per system and seed."""
    rows = _of_case(iteration_times(), case)
    rows = rows.assign(seed=rows["seed"].astype("string").fillna("-"))
    columns = list(dict.fromkeys(zip(rows["printed_as"], rows["seed"], strict=True)))
    names = [name for name, _ in columns]
    head = [name if name not in names[:i] else "" for i, name in enumerate(names)]
    table = [("Seed", *(seed for _, seed in columns))]
    for (layers, batch), cells in _by_setting(rows):
        keys = zip(cells["printed_as"], cells["seed"], strict=True)
        times = dict(zip(keys, cells["iteration_s"], strict=True))
        printed = (f"{times[key]:.2f}" if key in times else "-" for key in columns)
        table.append((setting_name(layers, batch), *printed))
    return Grid(head=("Setting", *head), rows=tuple(table))


def efficiency_table(case: str) -> Grid:
    """PFLOPS in the printed layout, computed from the times; beside each column the mean.

    The first is printed work over the time of the estimator, which equals the printed figure. The
    mean is work over the mean time, ± half the range over the seeds; bold if the printed figure is
    more than `NOTABLE` away. Errors of the printed table (`BLANK_COLUMNS`, `PRINTED_TYPOS`) are
    kept.
    """
    rows = _of_case(efficiencies(), case)
    columns = rows.drop_duplicates("system")
    head = [text for name in columns["printed_as"] for text in (name, "")]
    labels = [
        text
        for n in columns["n"]
        for text in ("printed", f"mean of {n}" if n > 1 else "single run")
    ]
    blank = [BLANK_COLUMNS[case]] if case in BLANK_COLUMNS else []
    table = [("", *labels, *("printed" for _ in blank))]
    for (layers, batch), cells in _by_setting(rows):
        label = PRINTED_TYPOS.get((case, layers, batch), setting_name(layers, batch))
        texts = [text for cell in cells.itertuples() for text in _printed_and_mean(cell)]
        table.append((label, *texts, *("" for _ in blank)))
    return Grid(head=("Setting", *head, *blank), rows=tuple(table))


def mean_times(case: str) -> Grid:
    """Published seconds per iteration, mean over the seeds ± half their range, by variant."""
    rows = _of_case(settings(), case)
    systems = list(rows["system"].unique())
    table = []
    for layers, batch in published_settings(case):
        found = [sample(case, name, layers, batch) for name in systems]
        texts = [spread_text(times) if times else "-" for times in found]
        table.append((setting_name(layers, batch), *texts))
    return Grid(head=("Setting", *systems), rows=tuple(table))


def _printed_and_mean(cell: Any) -> tuple[str, str]:
    mean = f"{cell.mean_pflops:.3f}"
    if abs(cell.printed / cell.mean_pflops - 1) > NOTABLE:
        mean = f"**{mean}**"
    half = (cell.pflop / cell.min_s - cell.pflop / cell.max_s) / 2
    return f"{cell.pflops:.3f}", mean if cell.n == 1 else f"{mean} ±{half:.3f}"


def _of_case(rows: pd.DataFrame, case: str) -> pd.DataFrame:
    return rows[rows["case"] == case]


def _by_setting(rows: pd.DataFrame) -> Iterator[tuple[tuple[int, int], pd.DataFrame]]:
    return iter(rows.groupby(["layers", "batch"], sort=False))
