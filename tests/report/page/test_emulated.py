"""The table of emulated times, from runs that are written here."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pandas as pd

from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Execution, Plan
from netbench.plan.scale import keep_dynamics
from netbench.records import Run
from netbench.report.page.emulated import emulated_csv, emulated_page
from netbench.scenario import load_scenario
from netbench.systems import system_of
from tests.report.page.emulated_runs import record

RESULTS = Path(__file__).parents[3] / "results"


def make_plans(*, acts: bool, seeds: tuple[int, ...] = (2022,)) -> list[Plan]:
    case3 = load_scenario("case3")
    variants = ["dtfm-scheduled", "dtfm-random"]
    choices = Choices(variants=variants, layers=[24], batch=[4096], seeds=seeds)
    plans = build_plans(case3, choices, Execution(iterations=2, warmup_iterations=1, scale=1000))
    return [keep_dynamics(plan, case3) if acts else plan for plan in plans]


def rows(runs: list[Run]) -> pd.DataFrame:
    text = emulated_csv(RESULTS, {"case3": runs})
    table = pd.read_csv(io.StringIO(text), dtype={"seed": "Int64"})
    cells = (table["case"] == "case3") & (table["layers"] == 24) & (table["batch"] == 4096)
    return table[cells & table["system"].str.startswith("dtfm")]


def test_every_published_time_has_a_figure_or_a_reason(tmp_path: Path) -> None:
    """A placement that is not random stands for all seeds; a random one for its own."""
    run = record(tmp_path, make_plans(acts=False), 100.0)
    table = pd.read_csv(io.StringIO(emulated_csv(RESULTS, {"case3": [run]})))
    assert len(table) == len(pd.read_csv(RESULTS / "simulated" / "iteration_times.csv"))
    assert (table["emulated_s"].isna() == (table["reason"] == "not emulated yet")).all()
    found = rows([run]).dropna(subset="emulated_s")
    assert [*zip(found["system"], found["seed"], strict=True)] == [
        *(("dtfm-scheduled", seed) for seed in (2022, 2023, 2024)),
        ("dtfm-random", 2022),
    ]
    assert {*found["mode"]} == {"fast"}
    assert ((100.0 / found["published_s"] - 1 - found["error"]).abs() < 1e-4).all()


def test_a_faithful_time_counts_before_a_fast_one_and_a_newer_before_an_older(
    tmp_path: Path,
) -> None:
    fast = record(tmp_path, make_plans(acts=False), 100.0)
    acting = make_plans(acts=True)
    old = record(tmp_path, acting, 101.0)
    divided = [dataclasses.replace(plan, parts=(1, 2)) for plan in acting]
    new = record(tmp_path, divided, 102.0, parts_s=(50.0, 60.0))
    found = rows([old, new, fast]).dropna(subset="emulated_s")
    assert {*found["emulated_s"]} == {102.0}
    assert {*found["mode"]} == {"faithful, in parts"}
    text = emulated_page(RESULTS, {"case3": [old, fast]})
    assert "4 of 666 published times are emulated" in text
    assert "*faithful*: TCP's windows act as on the machines (4 times)." in text
    assert "*fast*" not in text
    known = rows([old, fast]).dropna(subset="emulated_s")
    apart = known[known["system"] == "dtfm-scheduled"]["simulated_s"].iloc[0] / 101.0 - 1
    (row,) = [line for line in text.splitlines() if "dtfm-scheduled" in line and " / " in line]
    assert [cell.strip() for cell in row.split("|")][2] == f"{apart:+.1%} / {apart:+.1%}"


def test_a_time_that_is_not_merged_counts_before_one_that_is(tmp_path: Path) -> None:
    """Whichever was recorded first."""
    choices = Choices(variants=["zero3"], layers=[32], batch=[4096], seeds=[2022])
    plans = build_plans(load_scenario("case3"), choices, Execution(iterations=1, scale=1000))
    merged = record(tmp_path, [*plans], 100.0)
    whole = record(tmp_path, [system_of(plan).unmerged(plan) for plan in plans], 101.0)
    for runs, seconds, mode in (
        ([merged], 100.0, "fast, merged"),
        ([whole, merged], 101.0, "fast"),
        ([merged, whole], 101.0, "fast"),
    ):
        table = pd.read_csv(io.StringIO(emulated_csv(RESULTS, {"case3": runs})))
        found = table[table["system"] == "zero3"].dropna(subset="emulated_s")
        assert ({*found["emulated_s"]}, {*found["mode"]}) == ({seconds}, {mode})


def test_runs_with_another_placement_or_network_do_not_count(tmp_path: Path) -> None:
    plans = make_plans(acts=False)
    placed = [dataclasses.replace(plan, scheduler="netbench") for plan in plans]
    elsewhere = [dataclasses.replace(plan, network_name="slow") for plan in plans]
    runs = [record(tmp_path, some, 100.0) for some in (placed, elsewhere)]
    assert rows(runs)["emulated_s"].isna().all()
