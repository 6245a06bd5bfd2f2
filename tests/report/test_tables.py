"""Published tables: the printed layout, and the honest mean beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.report.grid import Grid
from netbench.report.published import CASES, Sample
from netbench.report.tables import (
    honest_efficiencies,
    mean_times,
    printed_times,
    reproduced_efficiencies,
    spread_text,
)

GOLDEN = Path("tests/golden/report/printed_tables.txt")
"""The ten tables as printed, transcribed from the notes, not made from the CSV files."""


def printed(case: str, part: str) -> list[tuple[str, ...]]:
    """The rows of one table of the golden file, heads first."""
    text = GOLDEN.read_text().partition(f"# {case}\n")[2].partition("\n# ")[0]
    table = text.partition(f"## {part}\n")[2].partition("\n## ")[0]
    return [tuple(line.split("|")) for line in table.splitlines()]


def rows(grid: Grid) -> list[tuple[str, ...]]:
    return [grid.head, *grid.rows]


@pytest.mark.parametrize("case", CASES)
def test_iteration_times_have_the_printed_layout(case: str) -> None:
    """Heads, seeds, settings and every time are as printed, dashes and order included."""
    assert len(printed(case, "seconds per iteration")) == 11
    assert rows(printed_times(case)) == printed(case, "seconds per iteration")


@pytest.mark.parametrize("case", CASES)
def test_efficiencies_computed_from_the_times_are_the_printed_table(case: str) -> None:
    """Every cell to its last digit, case 2's blank column and wrong label included."""
    assert len(printed(case, "PFLOPS")) == 10
    assert rows(reproduced_efficiencies(case)) == printed(case, "PFLOPS")


def test_the_honest_mean_stands_beside_the_printed_cell() -> None:
    """Case 4, Megatron without scheduler, L24 B1024, by hand: 23.64 / 59.44 = 0.3977."""
    grid = honest_efficiencies("case4")
    assert grid.head[3:5] == ("Megatron-P8 (wo Scheduler)", "")
    assert grid.rows[0][1:5] == ("printed", "single run", "printed", "mean of 3")
    # Range 23.64 / 56.20 - 23.64 / 62.36 = 0.0415; 0.421 is 5.9% above 0.398, so it is marked.
    assert grid.rows[1][:5] == ("L24 B1024", "0.610", "0.610", "0.421", "**0.398** ±0.021")


def test_forty_cells_are_marked_as_far_from_the_mean() -> None:
    """As many as were found in the reference data by another program."""
    cells = [cell for case in CASES for row in honest_efficiencies(case).rows for cell in row]
    assert sum("**" in cell for cell in cells) == 40


def test_mean_times_give_a_dash_where_nothing_was_run() -> None:
    """Case 2 ran megatron-t8 in one setting, once."""
    grid = mean_times("case2")
    assert grid.head[:2] == ("Setting", "megatron-t8")
    assert [row[1] for row in grid.rows[:2]] == ["265.4", "-"]
    assert grid.rows[0][-1] == "28.05 ±0.31"


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ((18.87, 18.63, 19.06, 3), "18.87 ±0.21"),
        ((163.43, 162.89, 163.86, 3), "163.4 ±0.5"),
        ((0.5, 0.499, 0.501, 2), "0.5000 ±0.0010"),
        ((21.27, 21.27, 21.27, 1), "21.27"),
    ],
)
def test_spread_is_half_the_range(times: tuple[float, float, float, int], text: str) -> None:
    """Digits follow the size of the mean; one value has no spread."""
    mean_s, min_s, max_s, num = times
    assert spread_text(Sample(mean_s=mean_s, min_s=min_s, max_s=max_s, num=num)) == text
