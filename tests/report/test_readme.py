"""`results/README.md`: complete, deterministic, and the one that is committed."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest

from netbench.errors import RecordError
from netbench.report import published
from netbench.report.published import CASES
from netbench.report.readme import recorded_runs, results_markdown
from tests.report import runs


def test_the_committed_file_is_up_to_date() -> None:
    """What `make reproduce-table` would write is what is in the repository."""
    committed = Path("results/README.md").read_text(encoding="utf-8")
    assert results_markdown(Path("results")) == committed


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """With recorded runs too: no clock, no order of a file system."""
    for day in (3, 1, 2):
        runs.write(tmp_path / "recorded", runs.CASE3, created=datetime(2026, 1, day))
    assert results_markdown(tmp_path) == results_markdown(tmp_path)
    found = recorded_runs(tmp_path / "recorded")["case3"]
    assert [run.run_id[6:14] for run in found] == ["20260101", "20260102", "20260103"]


def test_without_recorded_runs_it_says_how_to_make_one(tmp_path: Path) -> None:
    """Each case has its published tables and the command for the missing part."""
    text = results_markdown(tmp_path)
    for case in CASES:
        assert f"To make one: `netbench run {case}`" in text
    assert "207 of 207 printed cells" in text


def test_every_entry_of_the_contents_leads_to_a_heading(tmp_path: Path) -> None:
    """Anchors are those GitHub makes of the headings."""
    runs.write(tmp_path / "recorded", runs.CASE3, scenario="my lab.2")
    text = results_markdown(tmp_path)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    links = re.findall(r"^- \[(.+)\]\(#(.+)\)$", text, re.MULTILINE)
    assert [title for title, _ in links] == headings
    assert ("Scenario my lab.2", "scenario-my-lab2") in links
    assert ("Case 3: Multiple Universities", "case-3-multiple-universities") in links


def test_a_recorded_run_stands_in_its_case_and_in_the_summary(tmp_path: Path) -> None:
    """Beside the published times, with its caption."""
    runs.write(tmp_path / "recorded", runs.CASE3)
    text = results_markdown(tmp_path)
    case3 = text.partition("## Case 3")[2].partition("\n## ")[0]
    assert "No run of this case" not in case3
    assert re.search(r"dtfm-scheduled \| +18\.87 ±0\.21 \| +3 \| +16\.05 ±0\.05 \| +2 \|", case3)
    summary = text.partition("## At a glance")[2].partition("\n## ")[0]
    assert re.search(r"emulated +\| +23\.00 ±0\.00 \| +26\.25 ±0\.20 \|", summary)


def test_tables_that_do_not_follow_from_the_times_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A changed published time is noticed, not printed."""
    changed = published.load("published_iteration_times")
    changed.loc[changed["iteration_s"] == 12.33, "iteration_s"] = 12.93
    load = published.load

    def load_changed(name: str) -> pd.DataFrame:
        return changed if name == "published_iteration_times" else load(name)

    caches = (published.iteration_times, published.settings, published.efficiencies)
    monkeypatch.setattr(published, "load", load_changed)
    try:
        for cache in caches:
            cache.cache_clear()
        with pytest.raises(RecordError, match="only 206 of 207 printed efficiency cells"):
            results_markdown(tmp_path)
    finally:
        for cache in caches:
            cache.cache_clear()


def test_a_damaged_recorded_run_is_named(tmp_path: Path) -> None:
    """It is not left out silently."""
    path = runs.write(tmp_path / "recorded", runs.CASE3)
    path.write_text(path.read_text().replace('"seed":2022', '"seed":"x"'))
    with pytest.raises(RecordError, match=rf"{path}:\d+: this line has seed"):
        results_markdown(tmp_path)
