"""The table of a run and its caption."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from netbench import __version__
from netbench.plan.build import build_plan
from netbench.plan.model import Execution
from netbench.plan.scale import keep_dynamics
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.records import Environment, Run, RunStore, read_run
from netbench.report.tables.comparison import compare
from netbench.report.tables.run import caption, comparison_grid, render_run, run_csv, run_markdown
from netbench.scenario import load_scenario
from tests import runs
from tests.report.tables.varied_runs import varied_run

GOLDEN = Path("tests/golden/report")


def shown(text: str) -> str:
    """A rendering without parts that differ between runs, and without trailing blanks."""
    text = text.replace(f"netbench {__version__}", "netbench X.Y.Z")
    return re.sub(r" +\n", "\n", re.sub(r"(-\d{6})-[0-9a-f]{4}", r"\1-0000", text))


def in_terminal(path: Path, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render_run(read_run(path)))
    return shown(console.export_text())


def test_times_simulated_before_the_run_are_beside_it(tmp_path: Path) -> None:
    """The mean over the predicted seeds, in a separate column."""
    times: runs.Times = {
        ("dtfm-random", 24, 1024, 2022): [99.0, 20.0],
        ("dtfm-random", 24, 1024, 2023): [99.0, 31.0],
    }
    path = runs.write_run(tmp_path, times)
    with RunStore.open(path) as store:
        for plan, seconds in zip(read_run(path).plans, (24.0, 30.0), strict=True):
            store.append_prediction(plan, seconds)
            store.append_prediction(plan, 99.0)  # the first one stays
    (row,) = compare(read_run(path))
    assert row.simulated_s == (24.0 + 30.0) / 2
    head, _, cells, *_ = run_markdown(read_run(path)).splitlines()
    column = [word.strip() for word in head.split("|")].index("sim. s")
    assert cells.split("|")[column].strip() == "27.00"


def apart(tmp_path: Path, environment: Environment = runs.ENVIRONMENT, **plan: object) -> Run:
    """A run of which zero3 took 20% longer than simulated, and ddp 5%. plan: more of its plans."""
    times: runs.Times = {
        ("zero3", 24, 1024, 2022): [1.0, 12.0],
        ("ddp", 24, 1024, 2022): [1.0, 10.5],
    }
    path = runs.write_run(tmp_path, times, scenario="mine", environment=environment)
    with RunStore.open(path) as store:
        for key in read_run(path).plans:
            store.append_prediction(key, 10.0)
    run = read_run(path)
    return dataclasses.replace(run, plans={k: {**v, **plan} for k, v in run.plans.items()})


FULL_SIZE = dataclasses.replace(runs.ENVIRONMENT, scale=1.0)
FAR = {"links": [[{"one_way_delay_s": 0.1, "bandwidth_bps": 1e9}]]}
LOSSY = {"links": [[{"one_way_delay_s": 0.1, "bandwidth_bps": 1e9, "loss": 0.01}]]}


@pytest.mark.parametrize(
    ("environment", "plan", "believe"),
    [
        (runs.ENVIRONMENT, {"network": FAR}, "the simulated ones: at scale 1000 a message fits"),
        (runs.ENVIRONMENT, {}, "the simulated ones: they are those of NCCL"),
        (FULL_SIZE, {"backend": "nccl"}, "the simulated ones: they are those of NCCL"),
        (FULL_SIZE, {"backend": "gloo"}, "the emulated ones: they come from TCP and gloo"),
        (runs.ENVIRONMENT, {"network": LOSSY}, "the emulated ones: the simulator ignores loss."),
    ],
)
def test_times_that_differ_say_which_to_believe(
    tmp_path: Path, environment: Environment, plan: dict[str, object], believe: str
) -> None:
    """Above 10%, in the caption; every row has its difference."""
    run = apart(tmp_path, environment, **plan)
    grid = comparison_grid(run)
    column = grid.head.index("vs sim.")
    assert {row[1]: row[column] for row in grid.rows} == {"zero3": "+20.0%", "ddp": "+5.0%"}
    (line,) = [line for line in caption(run) if "differ by more than 10%" in line]
    assert "zero3 (+20.0%). Believe" in line
    assert f"Believe {believe}" in line


def test_small_figures_are_teraflops(tmp_path: Path) -> None:
    """A column of 0.003 PFLOPS would hide its digits."""
    small = read_run(runs.write_run(tmp_path, {("zero3", 1, 8, 1): [1.0, 50.0]}, scenario="mine"))
    (row,) = compare(small)
    assert row.pflops is not None
    grid = comparison_grid(small)
    text = grid.rows[0][grid.head.index("emulated TFLOPS")]
    assert float(text) == pytest.approx(row.pflops * 1e3, rel=0.01)


def test_many_reasons_are_counted(tmp_path: Path) -> None:
    """The caption has five of them, the records all."""
    reasons = [f"link {number} is slow" for number in range(7)]
    run = read_run(runs.write_run(tmp_path, runs.CASE3_TIMES, reasons=reasons))
    assert caption(run)[-1] == (
        f"NOT TRUSTWORTHY: {'; '.join(reasons[:5])}; and 2 more, in the records."
    )


def test_markdown_is_the_golden_file(tmp_path: Path) -> None:
    """The whole table with its caption, to the character."""
    text = shown(run_markdown(read_run(runs.write_run(tmp_path, runs.CASE3_TIMES))) + "\n")
    assert text == (GOLDEN / "case3_run.md").read_text()


def test_the_default_slice_fits_a_terminal_of_80_columns(tmp_path: Path) -> None:
    """The golden file has every row of the table on one line."""
    text = in_terminal(runs.write_run(tmp_path, runs.CASE3_TIMES))
    assert text == (GOLDEN / "case3_run.txt").read_text()
    assert max(map(len, text.splitlines())) <= 80


def test_an_unpublished_scenario_has_no_published_columns(tmp_path: Path) -> None:
    """No empty columns, no error, no citation."""
    times: runs.Times = {("dtfm-scheduled", 6, 64, 1): [0.6, 0.5, 0.502]}
    text = run_markdown(read_run(runs.write_run(tmp_path, times, scenario="mine")))
    assert "| L6 B64  | dtfm-scheduled | 0.5010 ±0.0010 |   2 |" in text
    assert "published" not in text
    assert "error" not in text


def test_another_model_is_not_compared_with_the_published_one(tmp_path: Path) -> None:
    """Case 3 with a wider model has the name of the published runs, but other work."""
    run = read_run(runs.write_run(tmp_path, runs.CASE3_TIMES, hidden=4096))
    assert all(row.published is None for row in compare(run))
    assert any("this workload is not the published one" in line for line in caption(run))


def test_a_row_with_warm_ups_only_has_no_time(tmp_path: Path) -> None:
    """A run stopped after its first iteration shows a dash, not the warm-up."""
    times: runs.Times = {("zero3", 24, 1024, 2022): [170.0]}
    path = runs.write_run(tmp_path, times, verdict=False)
    (row,) = compare(read_run(path))
    assert (row.found, row.error, row.num_warmups) == (None, None, 1)
    text = run_markdown(read_run(path))
    assert "| L24 B1024 | zero3  |  163.4 ±0.5 |   3 |          - |   0 |     - |" in text
    assert "no verdict: the run has not finished; continue it with --resume." in text


def test_an_untrustworthy_run_has_a_warning_with_reasons(tmp_path: Path) -> None:
    """The reasons of probe and verdict are beneath the table, once, in bold."""
    run = read_run(
        runs.write_run(tmp_path, runs.CASE3_TIMES, reasons=["rtt is 9% off", "late start"])
    )
    assert "- **NOT TRUSTWORTHY: rtt is 9% off; late start.**" in run_markdown(run)


def test_a_bad_probe_counts_even_without_a_verdict(tmp_path: Path) -> None:
    """A run killed after a failed probe is not only called unfinished."""
    run = read_run(
        runs.write_run(tmp_path, runs.CASE3_TIMES, reasons=["rtt is 9% off"], verdict=False)
    )
    assert caption(run)[-1] == "NOT TRUSTWORTHY: rtt is 9% off."


def test_a_run_continued_elsewhere_names_both_places(tmp_path: Path) -> None:
    """Sessions on different kernels are listed separately."""
    path = runs.write_run(tmp_path, runs.CASE3_TIMES)
    other = dataclasses.replace(runs.ENVIRONMENT, kernel="6.6.1", mode="native")
    with RunStore.open(path) as store:
        store.append_session(
            created=datetime(2026, 1, 3), command=["netbench", "run"], environment=other
        )
    text = "\n".join(caption(read_run(path)))
    assert "kernel 6.12.48-netbench, guest in virtual time" in text
    assert "kernel 6.6.1, the host's own" in text
    assert text.count(f"netbench {__version__}") == 1


def test_csv_has_unrounded_seconds(tmp_path: Path) -> None:
    """One row per variant and setting."""
    run = read_run(runs.write_run(tmp_path, runs.CASE3_TIMES))
    rows = list(csv.DictReader(io.StringIO(run_csv(run))))
    assert [row["variant"] for row in rows] == [row.variant for row in compare(run)]
    assert float(rows[0]["mean_s"]) == 16.05
    assert float(rows[0]["error"]) == pytest.approx(16.05 / 18.87 - 1)
    assert {row["run_id"] for row in rows} == {run.run_id}


def test_the_work_of_a_script_is_not_known(tmp_path: Path) -> None:
    """It has a time, and neither PFLOP nor PFLOPS."""
    run = varied_run(tmp_path, [("command", "", 1, 26.0), ("dtfm-random", "", 1, 26.0)])
    script, trained = csv.DictReader(io.StringIO(run_csv(run)))
    assert script["mean_s"] == trained["mean_s"]
    assert (script["pflop"], bool(trained["pflop"])) == ("", True)
    cells = [line.split("|")[1:-1] for line in run_markdown(run).splitlines() if "26.0" in line]
    assert [cell[-1].strip() == "-" for cell in cells] == [True, False]


def test_networks_and_micro_batches_have_separate_rows(tmp_path: Path) -> None:
    """In planned order; only times of the scenario's default network were published."""
    run = varied_run(
        tmp_path,
        [
            ("dtfm-random", "", 1, 26.0),
            ("dtfm-random", "", 2, 25.0),
            ("dtfm-random", "slow", 2, 31.0),
            ("dtfm-random", "slow", 1, 30.0),
            ("dtfm-random", "fast", 1, 20.0),
        ],
    )
    rows = compare(run)
    assert [(row.setting, row.found and row.found.mean_s) for row in rows] == [
        ("L24 B1024 m1 own", 26.0),
        ("L24 B1024 m2 own", 25.0),
        ("L24 B1024 m1 slow", 30.0),
        ("L24 B1024 m2 slow", 31.0),
        ("L24 B1024 m1 fast", 20.0),
    ]
    assert [bool(row.published) for row in rows] == [True, True, False, False, False]
    cells = list(csv.DictReader(io.StringIO(run_csv(run))))
    assert [(row["network"], row["micro_batch"]) for row in cells] == [
        ("", "1"),
        ("", "2"),
        ("slow", "1"),
        ("slow", "2"),
        ("fast", "1"),
    ]


def test_the_one_network_of_a_run_is_in_the_caption(tmp_path: Path) -> None:
    """Otherwise the setting would look like the scenario's default network."""
    lines = caption(varied_run(tmp_path, [("dtfm-random", "10ms", 4, 26.0)]))
    assert "network: 10ms of the scenario's sweep; micro-batches of 4." in lines


def test_a_simulated_run_claims_no_kernel_and_no_verified_network(tmp_path: Path) -> None:
    """The caption says: one iteration, at full size, nothing shaped."""
    text = "\n".join(caption(varied_run(tmp_path, [("dtfm-random", "", 1, 26.0)])))
    assert "one iteration each, without warm-ups" in text
    assert "simulated at full size, by a test, 2 cores" in text
    assert text.endswith("a simulation: no network was shaped, so none was verified.")
    assert "kernel" not in text
    assert "trustworthy" not in text


def test_a_caption_says_in_which_plans_tcp_acts(tmp_path: Path) -> None:
    """Faithful and fast plans by name; the fast one is doubted on case 3's long link."""
    case3 = load_scenario("case3")
    setting = case3.sweep.first_setting()
    fast = build_plan(case3, "dtfm-random", setting, Execution(scale=1000.0))
    plans = (keep_dynamics(build_plan(case3, "dtfm-scheduled", setting), case3), fast)
    path = runs.write_run(tmp_path, {})
    with RunStore.open(path) as store:
        for plan in plans:
            store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
        store.append_verdict()
    text = " ".join(caption(read_run(path)))
    assert "faithful: TCP (cubic) acts as on the machines" in text
    assert "by 32 (dtfm-scheduled)." in text
    assert "scale 32 and 1000 (bytes and bandwidths are divided by it)" in text
    assert "fast: rates and delays without congestion control" in text
    assert "bytes are divided by more than segments are (dtfm-random)." in text
    assert "rates and delays only: 8 delays" in text
    assert "use --faithful" in text
    assert "trustworthy:" not in text
