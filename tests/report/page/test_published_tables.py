"""Published tables: the printed layout, and the mean over the seeds beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.report.page.published import CASES, DEEPSPEED_HEAD
from netbench.report.page.published_tables import efficiency_table, mean_times, printed_times
from netbench.report.tables.grid import Grid

GOLDEN = Path("tests/golden/report/printed_tables.txt")
"""The ten tables as printed, transcribed from the notes, not generated from the CSV files."""


def printed(case: str, part: str) -> list[tuple[str, ...]]:
    """The rows of one table of the golden file, heads first."""
    text = GOLDEN.read_text().partition(f"# {case}\n")[2].partition("\n# ")[0]
    table = text.partition(f"## {part}\n")[2].partition("\n## ")[0]
    return [tuple(line.split("|")) for line in table.splitlines()]


def rows(grid: Grid) -> list[tuple[str, ...]]:
    return [grid.head, *grid.rows]


@pytest.mark.parametrize("case", CASES)
def test_iteration_times_have_the_printed_layout(case: str) -> None:
    """Heads, seeds, settings, times, dashes and order are as printed; DeepSpeed follows."""
    assert len(printed(case, "seconds per iteration")) == 11
    head, *others = rows(printed_times(case))
    width = head.index(DEEPSPEED_HEAD) if DEEPSPEED_HEAD in head else len(head)
    cut = [row[:width] for row in (head, *others)]
    assert cut == printed(case, "seconds per iteration")


@pytest.mark.parametrize("case", CASES)
def test_efficiencies_computed_from_the_times_are_the_printed_table(case: str) -> None:
    """Every cell to its last digit, with case 2's blank column and wrong label."""
    assert len(printed(case, "PFLOPS")) == 10
    head, labels, *cells = rows(efficiency_table(case))
    found = [(row[0], *row[1::2]) for row in (head, *cells)]
    assert found == printed(case, "PFLOPS")
    assert set(labels[1::2]) == {"printed"}


def test_the_mean_stands_beside_the_printed_cell() -> None:
    """Case 4, Megatron without scheduler, L24 B1024, by hand: 23.64 / 59.44 = 0.3977."""
    grid = efficiency_table("case4")
    assert grid.head[3:5] == ("Megatron-P8 (wo Scheduler)", "")
    assert grid.rows[0][1:5] == ("printed", "single run", "printed", "mean of 3")
    # Range 23.64 / 56.20 - 23.64 / 62.36 = 0.0415; 0.421 is 5.9% above 0.398, so it is marked.
    assert grid.rows[1][:5] == ("L24 B1024", "0.610", "0.610", "0.421", "**0.398** ±0.021")


def test_forty_cells_are_marked_as_far_from_the_mean() -> None:
    """Another program found the same number in the reference data."""
    cells = [cell for case in CASES for row in efficiency_table(case).rows for cell in row]
    assert sum("**" in cell for cell in cells) == 40


def test_mean_times_have_a_dash_if_nothing_was_run() -> None:
    """Case 2 ran megatron-t8 in one setting, once."""
    grid = mean_times("case2")
    assert grid.head[:2] == ("Setting", "megatron-t8")
    assert [row[1] for row in grid.rows[:2]] == ["265.4", "-"]
    assert grid.rows[0][grid.head.index("zero3")] == "28.05 ±0.31"
