"""The report of the chaos campaign, and what counts in it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chaos
from benchmarks.chaos import Row, write_report


def test_rows_can_be_added_and_others_stay(tmp_path: Path) -> None:
    """Batches with other seeds add up; both seeds are named."""
    path = tmp_path / "faults.md"
    write_report(path, {"boots": Row(tries=4)}, ["--boots", "4"])
    for seed, row in (("1", Row(tries=3, folders=1)), ("2", Row(tries=5, iterations=2))):
        write_report(path, {"clusters": row}, ["--seed", seed], is_added=True)
    boots, clusters = [
        line
        for line in path.read_text().splitlines()
        if line.startswith("| `run -") or line.startswith("| guest")
    ]
    cells = [cell.strip() for cell in clusters.strip("|").split("|")]
    assert cells[1:6] == ["8", "0", "1", "2", "0"]
    assert cells[7] == "`--seed 1`, `--seed 2`"
    assert boots.split("|")[2].strip() == "4"


def test_faults_that_strike_nothing_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does the undisturbed end of a run; the campaign goes on until enough have struck."""
    played: list[dict[str, Any]] = []

    def play(faults: list[dict[str, Any]], module: str) -> list[dict[str, Any]]:
        assert faults[-1] == {"kind": "none"}
        lines = [{"fault": fault, "found": {"missed": ""}} for fault in faults]
        if len(faults) > 2:
            lines[0]["found"] = {"missed": "the run had ended"}
        if not played:
            lines[1]["found"] = {"missed": "", "files": ["one"], "lost": [1, 2]}
        played.extend(faults)
        return lines

    monkeypatch.setattr(chaos, "play", play)
    row = chaos.kill_clusters(45, random.Random(1))
    assert (row.tries, row.processes, row.folders, row.iterations) == (45, 0, 1, 2)
    struck = [fault for fault in played if fault["kind"] != "none"]
    assert {fault["kind"] for fault in struck} == {*chaos.HOST_FAULTS}
    assert all(fault["lines"] == 0 or fault["after_s"] == 0.0 for fault in struck)


def test_a_campaign_that_strikes_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(faults: list[dict[str, Any]], module: str) -> list[dict[str, Any]]:
        return [{"fault": fault, "found": {"missed": "no run"}} for fault in faults]

    monkeypatch.setattr(chaos, "play", play)
    with pytest.raises(SystemExit, match="0 of 3 faults struck in"):
        chaos.kill_clusters(3, random.Random(1))
