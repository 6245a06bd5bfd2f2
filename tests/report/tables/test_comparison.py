"""Pooled times of a run beside the published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.errors import RecordError
from netbench.records import read_run
from netbench.report.tables.comparison import compare
from tests import runs
from tests.report.tables.varied_runs import varied_run


def test_means_errors_and_pflops_are_those_computed_by_hand(tmp_path: Path) -> None:
    """Warm-ups are dropped, every seed has the same weight, the error is that of the mean."""
    times: runs.Times = {
        ("dtfm-random", 24, 1024, 2022): [99.0, 20.0, 30.0],
        ("dtfm-random", 24, 1024, 2023): [99.0, 31.0],
    }
    (row,) = compare(read_run(runs.write_run(tmp_path, times)))
    assert row.found is not None
    assert row.found.mean_s == (25.0 + 31.0) / 2
    assert (row.found.min_s, row.found.max_s, row.found.num) == (20.0, 31.0, 3)
    assert (row.seeds, row.num_warmups) == ((2022, 2023), 2)
    assert row.error == pytest.approx(28.0 / ((27.80 + 27.70 + 27.96) / 3) - 1)
    assert row.pflop == pytest.approx(23.64, rel=0.0002)


def test_rows_are_sorted_by_setting_and_keep_the_planned_order(tmp_path: Path) -> None:
    """By layers, then batch, then in planned order."""
    times: runs.Times = {
        ("zero3", 32, 1024, 2022): [1.0, 1.0],
        ("zero3", 24, 2048, 2022): [1.0, 1.0],
        ("dtfm-random", 24, 2048, 2022): [1.0, 1.0],
        ("dtfm-random", 24, 1024, 2022): [1.0, 1.0],
    }
    rows = compare(read_run(runs.write_run(tmp_path, times)))
    assert [(row.workload.layers, row.workload.batch, row.variant) for row in rows] == [
        (24, 1024, "dtfm-random"),
        (24, 2048, "zero3"),
        (24, 2048, "dtfm-random"),
        (32, 1024, "zero3"),
    ]


def test_a_plan_without_a_workload_is_one_message(tmp_path: Path) -> None:
    """A record file with plans of another netbench is not a traceback."""
    path = runs.write_run(tmp_path, runs.CASE3_TIMES)
    path.write_text(path.read_text().replace('"workload"', '"arbeit"'))
    with pytest.raises(RecordError, match=r"plan [0-9a-f]{12} has.*use the netbench that wrote it"):
        compare(read_run(path))


def test_a_micro_batch_that_only_differs_between_variants_is_not_named(tmp_path: Path) -> None:
    """zero3 has 4 and the others have 1: the settings keep their published names."""
    run = varied_run(tmp_path, [("dtfm-random", "", 1, 26.0), ("zero3", "", 4, 160.0)])
    assert {row.setting for row in compare(run)} == {"L24 B1024"}
