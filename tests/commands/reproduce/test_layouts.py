"""The table of layouts."""

from __future__ import annotations

import csv
from pathlib import Path

from netbench.commands.reproduce.simulated import FastestPublished, best_published, layout_rows
from netbench.plan.build import build_plan
from netbench.report.page.simulated import COLUMNS, LAYOUTS
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import simulate

RESULTS = Path(__file__).parents[3] / "results"


def recorded() -> list[dict[str, str]]:
    with (RESULTS / "simulated" / f"{LAYOUTS}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_best_published_system_has_the_lowest_simulated_mean_over_its_seeds() -> None:
    """Two seeds take 9 and 12 s: their mean counts, published times do not."""
    rows = [
        ("case3", "dtfm-random", "24", "1024", "2022", "1.0", "9.0", ""),
        ("case3", "dtfm-random", "24", "1024", "2023", "1.0", "12.0", ""),
        ("case3", "megatron-p8", "24", "1024", "", "2.0", "10.0", ""),
        ("case3", "megatron-p8", "24", "2048", "", "2.0", "20.0", ""),
    ]
    assert [(s.batch, s.system, s.simulated_s) for s in best_published(rows)] == [
        (1024, "megatron-p8", 10.0),
        (2048, "megatron-p8", 20.0),
    ]


def test_a_row_has_the_found_plan_and_its_speedup() -> None:
    """Case 3, L24 B1024: the listed time is that of the plan built from its name."""
    setting = FastestPublished(
        case="case3", layers=24, batch=1024, system="dtfm-scheduled", simulated_s=18
    )
    ((row),) = layout_rows([setting])
    found = dict(zip(COLUMNS[LAYOUTS], row, strict=True))
    plan = build_plan(load_scenario("case3"), found["plan"], Setting(layers=24, batch=1024))
    assert f"{simulate(plan).iteration_s:.6g}" == found["simulated_listed_s"]
    assert float(found["simulated_s"]) <= float(found["simulated_listed_s"])
    assert float(found["simulated_speedup"]) == float(f"{18 / float(found['simulated_s']):.6g}")
    layout = tuple(int(found[name]) for name in ("pp", "tp", "dp"))
    assert layout == (plan.layout.pp, plan.layout.tp, plan.layout.dp)


def test_a_setting_that_was_not_searched_has_no_row() -> None:
    """A case without a file."""
    setting = FastestPublished(
        case="case3", layers=24, batch=7, system="dtfm-scheduled", simulated_s=18
    )
    assert list(layout_rows([setting])) == []


def test_every_published_setting_has_a_faster_plan() -> None:
    """All 45 rows of the recorded table, each compared with the fastest published system."""
    found = recorded()
    with (RESULTS / "simulated" / "iteration_times.csv").open(encoding="utf-8") as file:
        times = [tuple(row.values()) for row in csv.DictReader(file)]
    best = {(s.case, s.layers, s.batch): s.simulated_s for s in best_published(times)}
    assert len(found) == len(best) == 45
    for row in found:
        published_s = best[row["case"], int(row["layers"]), int(row["batch"])]
        assert float(row["simulated_s"]) < published_s
        assert abs(float(row["simulated_published_s"]) / published_s - 1) < 1e-5
