"""The generated pages of `results/`: complete, deterministic, and equal to the committed ones."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest

from netbench.errors import RecordError
from netbench.report.page import published
from netbench.report.page.pages import recorded_runs, results_pages
from netbench.report.page.published import CASES
from tests import runs
from tests.simulations import write

RESULTS = Path("results")
MAX_FRONT_LINES = 125


def test_the_committed_pages_are_up_to_date() -> None:
    """`make reproduce-table` would write what is in the repository."""
    pages = results_pages(RESULTS)
    assert list(pages) == [
        "README.md", *(f"{case}.md" for case in CASES), "emulated.md", "fluidstack.md",
        "under_tc.md", "predictions.md", "anomalies.md", "multicloud.md", "ledger.md",
        "emulated/iteration_times.csv", "emulated/gpt3_small_iteration_times.csv",
    ]  # fmt: skip
    for name, text in pages.items():
        assert text == (RESULTS / name).read_text(encoding="utf-8"), name


def test_every_link_of_the_committed_pages_leads_somewhere() -> None:
    """Files exist, and headings too; a heading's id is the one GitHub gives it."""
    pages = [name for name in results_pages(RESULTS) if name.endswith(".md")]
    for name in (*pages, "fidelity.md"):
        text = (RESULTS / name).read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)\s]+)\)", text)
        assert links, name
        for link in links:
            target, _, anchor = link.partition("#")
            path = RESULTS / (target or name)
            assert path.exists(), f"{name}: {link}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
                ids = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
                assert anchor in ids, f"{name}: {link}"


def test_the_front_page_is_short() -> None:
    """One picture; the tables of single cases are on other pages."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FRONT_LINES
    assert text.count("![") == 1


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """No clock, no order of a file system, with recorded runs too."""
    for day in (3, 1, 2):
        runs.write_run(tmp_path / "recorded", runs.CASE3_TIMES, created=datetime(2026, 1, day))
    assert results_pages(tmp_path) == results_pages(tmp_path)
    found = recorded_runs(tmp_path / "recorded")["case3"]
    assert [run.run_id[6:14] for run in found] == ["20260101", "20260102", "20260103"]


def test_without_simulations_and_runs_the_pages_say_how_to_make_them(tmp_path: Path) -> None:
    """Each case still has its published tables."""
    pages = results_pages(tmp_path)
    for case in CASES:
        assert f"To make one: `netbench run {case}`" in pages[f"{case}.md"]
        assert "## Published efficiency" in pages[f"{case}.md"]
    for name in ("README.md", "case1.md", "predictions.md"):
        assert "`netbench reproduce --simulate`" in pages[name]


def test_a_recorded_run_is_on_its_case_page_and_on_the_front_page(tmp_path: Path) -> None:
    """Beside the published times, with its provenance; a deterministic time has no spread."""
    runs.write_run(tmp_path / "recorded", runs.CASE3_TIMES)
    pages = results_pages(tmp_path)
    case3 = pages["case3.md"]
    assert "No run of this case" not in case3
    assert re.search(r"dtfm-scheduled \| +18\.87 ±0\.21 \| +- \| +16\.05 \| +-14\.9% \|", case3)
    assert re.search(r"megatron-p8 +\| +21\.27 \| +- \| +23\.00 \| +\+8\.1% \|", case3)
    assert "±0.2 s" in case3
    assert re.search(r"emulated +\| +23\.00 \| +26\.25 \| +16\.05 \|", pages["README.md"])


def test_a_recorded_run_of_another_scenario_is_under_predictions(tmp_path: Path) -> None:
    """With the simulated tables and without them."""
    runs.write_run(tmp_path / "recorded", runs.CASE3_TIMES, scenario="my lab.2")
    assert "### my lab.2, emulated" in results_pages(tmp_path)["predictions.md"]
    assert "### my lab.2, emulated" in results_pages(write(tmp_path))["predictions.md"]


def test_tables_that_do_not_follow_from_the_times_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A changed published time is an error, not a page."""
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
            results_pages(tmp_path)
    finally:
        for cache in caches:
            cache.cache_clear()


def test_a_damaged_recorded_run_is_named(tmp_path: Path) -> None:
    """It is not left out silently."""
    path = runs.write_run(tmp_path / "recorded", runs.CASE3_TIMES)
    path.write_text(path.read_text().replace('"seed":2022', '"seed":"x"'))
    with pytest.raises(RecordError, match=rf"{path}:\d+: this line has seed"):
        results_pages(tmp_path)
