"""The published tables of a case: as printed, as reproduced from the times, and as honest means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from netbench.report.grid import Grid
from netbench.report.published import Sample, efficiencies, iteration_times, settings

if TYPE_CHECKING:
    import pandas as pd

PRINTED_TYPOS = {("case2", 24, 1024): "L24 B1028"}
"""Setting labels of the efficiency tables that were printed wrongly."""

BLANK_COLUMNS = {"case2": "ZeRO S3"}
"""Heads of efficiency columns printed without figures."""

NOTABLE = 0.01
"""A printed efficiency this far from the honest mean (relative) is marked."""


def pflops_text(pflops: float) -> str:
    """Three decimals, as published; three digits where that leaves fewer than two."""
    return f"{pflops:.3f}" if pflops >= 0.01 else f"{pflops:.3g}"


def setting_name(layers: int, batch: int) -> str:
    """How a setting is labelled, e.g. `L24 B1024`."""
    return f"L{layers} B{batch}"


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


def reproduced_efficiencies(case: str) -> Grid:
    """PFLOPS in the printed layout, computed: printed work over the time of the estimator."""
    rows = _of_case(efficiencies(), case)
    blank = [BLANK_COLUMNS[case]] if case in BLANK_COLUMNS else []
    table = []
    for (layers, batch), cells in _by_setting(rows):
        label = PRINTED_TYPOS.get((case, layers, batch), setting_name(layers, batch))
        table.append((label, *(f"{x:.3f}" for x in cells["pflops"]), *("" for _ in blank)))
    return Grid(head=("Setting", *rows["printed_as"].unique(), *blank), rows=tuple(table))


def honest_efficiencies(case: str) -> Grid:
    """PFLOPS as printed, and beside it work over the mean time, ± half its range over the seeds.

    Bold: the printed figure is more than `NOTABLE` away.
    """
    rows = _of_case(efficiencies(), case)
    columns = rows.drop_duplicates("system")
    head = [text for name in columns["printed_as"] for text in (name, "")]
    labels = [
        text
        for n in columns["n"]
        for text in ("printed", f"mean of {n}" if n > 1 else "single run")
    ]
    table = [("", *labels)]
    for (layers, batch), cells in _by_setting(rows):
        texts = [text for cell in cells.itertuples() for text in _printed_and_mean(cell)]
        table.append((setting_name(layers, batch), *texts))
    return Grid(head=("Setting", *head), rows=tuple(table))


def mean_times(case: str) -> Grid:
    """Published seconds per iteration, mean over the seeds ± half their range, by variant."""
    rows = _of_case(settings(), case)
    systems = list(rows["system"].unique())
    table = []
    for (layers, batch), cells in _by_setting(rows):
        texts = {
            cell.system: spread_text(
                Sample(mean_s=cell.mean_s, min_s=cell.min_s, max_s=cell.max_s, num=cell.n)
            )
            for cell in cells.itertuples()
        }
        table.append((setting_name(layers, batch), *(texts.get(name, "-") for name in systems)))
    return Grid(head=("Setting", *systems), rows=tuple(table))


def spread_text(sample: Sample) -> str:
    """`18.87 ±0.22`: mean and half the range, in seconds; a single value has no spread."""
    mean, digits = seconds_text(sample.mean_s), _digits(sample.mean_s)
    half_s = (sample.max_s - sample.min_s) / 2
    return mean if sample.num == 1 else f"{mean} ±{half_s:.{digits}f}"


def seconds_text(seconds: float) -> str:
    """Four significant digits: `0.8951`, `9.105`, `18.87`, `163.4`, `1325`."""
    return f"{seconds:.{_digits(seconds)}f}"


def _digits(seconds: float) -> int:
    return sum(seconds < limit for limit in (1000, 100, 10, 1))


def percent_text(error: float, digits: int = 0) -> str:
    """`+12%`: a relative error with its sign, and never `-0%`."""
    return f"{round(error, digits + 2) + 0.0:+.{digits}%}"


def _printed_and_mean(cell: Any) -> tuple[str, str]:
    mean = f"{cell.mean_pflops:.3f}"
    if abs(cell.printed / cell.mean_pflops - 1) > NOTABLE:
        mean = f"**{mean}**"
    half = (cell.pflop / cell.min_s - cell.pflop / cell.max_s) / 2
    return f"{cell.printed:.3f}", mean if cell.n == 1 else f"{mean} ±{half:.3f}"


def _of_case(rows: pd.DataFrame, case: str) -> pd.DataFrame:
    return rows[rows["case"] == case]


def _by_setting(rows: pd.DataFrame) -> Iterator[tuple[tuple[int, int], pd.DataFrame]]:
    return iter(rows.groupby(["layers", "batch"], sort=False))
