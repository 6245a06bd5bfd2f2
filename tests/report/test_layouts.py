"""The section on layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.report.layouts import layouts, layouts_markdown
from netbench.report.simulated import LAYOUTS, read_table, table_path
from tests.report.simulations import write


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write(tmp_path)


def test_a_row_has_both_plans_and_how_many_times_faster_the_found_one_is(results: Path) -> None:
    """Case 3, L24 B1024 was published as 18.87 s of dtfm-scheduled; 80% of that is 15.10 s."""
    table = read_table(results, LAYOUTS)
    assert table is not None
    rows = {row[:2]: row[2:] for row in layouts(table).rows}
    assert len(rows) == 45
    assert rows["case3", "L24 B1024"] == (
        "dtfm-scheduled", "18.87", "dtfm-scheduled-p4-sharded-ps", "p4d16", "2.5",
        "16.98", "15.10", "1.25",
    )  # fmt: skip


def test_the_summary_counts_what_is_faster_and_what_placing_did(results: Path) -> None:
    """Also where it did nothing, and where nothing faster was found."""
    text = " ".join(layouts_markdown(results).split())
    assert "faster in 45 of 45 settings: from 1.25 times (case1, L24 B1024)" in text
    assert "as listed already in 45. Placing takes off 11.1% at most" in text
    assert "and nothing in 0." in text
    assert "most, 2.5 GB (case1, L24 B1024), may not fit" in text
    path = table_path(results, LAYOUTS)
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    cells[-3:] = [cells[-3], cells[-3], "0.98"]
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    text = " ".join(layouts_markdown(results).split())
    assert "faster in 44 of 45 settings: from 0.98 times (case1, L24 B1024)" in text
    assert "and nothing in 1." in text


def test_without_a_table_there_is_no_section(tmp_path: Path) -> None:
    """As before anything was simulated."""
    assert layouts_markdown(tmp_path) == ""
