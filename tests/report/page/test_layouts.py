"""The section on layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.report.page.layouts import case_layouts_markdown, layouts, layouts_markdown
from netbench.report.page.simulated import LAYOUTS, read_table, table_path
from tests.simulations import write


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write(tmp_path)


def test_a_row_has_both_plans_and_how_many_times_faster_the_found_one_is(results: Path) -> None:
    """Case 3, L24 B1024 was published as 18.87 s of dtfm-scheduled; 80% of that is 15.10 s."""
    table = read_table(results, LAYOUTS)
    assert table is not None
    assert len(layouts(table).rows) == 45
    rows = {row[0]: row[1:] for row in layouts(table[table["case"] == "case3"]).rows}
    assert len(rows) == 9
    assert rows["L24 B1024"] == (
        "dtfm-scheduled", "18.87", "dtfm-scheduled-p4-sharded-ps", "p4d16", "2.5",
        "16.98", "15.10", "1.25",
    )  # fmt: skip


def test_the_summary_counts_what_is_faster_and_what_placing_did(results: Path) -> None:
    """It counts settings without a gain from placement, and those with no faster plan, as well."""
    text = " ".join(layouts_markdown(results).split())
    assert "faster in 45 of 45 settings: from 1.25 times (case1, L24 B1024)" in text
    assert (
        "In 45 settings it is faster even without placement. Placement saves at most 11.1%" in text
    )
    assert "and nothing in 0 settings." in text
    assert "largest plan, 2.5 GB (case1, L24 B1024), may not fit" in text
    path = table_path(results, LAYOUTS)
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    cells[-3:] = [cells[-3], cells[-3], "0.98"]
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    text = " ".join(layouts_markdown(results).split())
    assert "faster in 44 of 45 settings: from 0.98 times (case1, L24 B1024)" in text
    assert "and nothing in 1 settings." in text


def test_without_a_table_there_is_no_section(tmp_path: Path) -> None:
    """Neither in the summary nor on the page of a case."""
    assert layouts_markdown(tmp_path) == case_layouts_markdown(tmp_path, "case1") == ""
