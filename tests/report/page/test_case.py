"""The page of a case."""

from __future__ import annotations

from pathlib import Path

from netbench.report.page.accuracy import FAR
from netbench.report.page.case import beside_published, case_page
from netbench.report.page.simulated import simulated_settings
from netbench.report.tables.grid import markdown
from tests.simulations import off_by, write


def test_the_table_shows_both_times_and_the_error(tmp_path: Path) -> None:
    """Means over the seeds: 19.06, 18.92 and 18.63 s were printed; a large error is bold."""
    write(tmp_path, off_by(1.2, scenario="case3", variant="dtfm-scheduled", batch=1024))
    settings = simulated_settings(tmp_path)
    assert settings is not None
    grid = beside_published(settings, "case3")
    text = markdown(grid)
    assert "18.87 → 22.64 (**+20.0%**)" in text
    assert "32.45 → 32.45 (0.0%)" in text
    assert "1325 → 1325 (0.0%)" in text
    last = dict(zip(grid.head, grid.rows[-1], strict=True))
    assert last["dtfm-scheduled"] == "6.7% / +6.7%"
    assert last["zero3"] == "0.0% / 0.0%"


def test_large_errors_of_other_cases_are_not_on_the_page(tmp_path: Path) -> None:
    """Only those of the case, with their number."""
    write(tmp_path, off_by(1 + FAR + 0.01, scenario="case1", variant="zero3", batch=1024))
    assert "3 of 60 settings are more than 15% off" in case_page(tmp_path, "case1", ())
    assert "15% off:" not in case_page(tmp_path, "case2", ())


def test_layouts_of_the_case_alone_are_on_the_page(tmp_path: Path) -> None:
    """Nine settings, each with the plan found for it."""
    text = case_page(write(tmp_path), "case5", ())
    assert text.count("dtfm-scheduled-p4-sharded-ps") == 9
