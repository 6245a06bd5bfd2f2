"""`netbench trace diff` on a run whose trace is a simulation stretched by 10%."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from netbench.cli import run
from netbench.explain.timeline import unfold
from netbench.plan.build import build_plan
from netbench.plan.model import Execution
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import simulate
from netbench.timelines import Slice
from tests.traced_run import run_of

STRETCH = 1.1


def stretched_run(tmp_path: Path, stretch: float, variant: str, **found: Any) -> Path:
    """Write a run with one traced plan of 3 stages and 16 micro-batches: its simulation, slower."""
    plan = build_plan(
        load_scenario("gpt3-small"),
        variant,
        Setting(layers=12, batch=64, micro_batch=4, network="10ms-1Gbit", seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )
    simulated = unfold(simulate(plan, whole=True))
    slices = (
        dataclasses.replace(piece, start_s=piece.start_s * stretch, end_s=piece.end_s * stretch)
        for piece in simulated.slices
    )
    return run_of(tmp_path, plan, simulated.iteration_s * stretch, tuple(slices), **found)


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    return stretched_run(tmp_path, STRETCH, "dtfm-scheduled")


def test_a_measured_run_is_compared_with_an_emulated_one(
    traced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1.32 / 1.1 of the time; the error of the hosts' clocks is stated."""
    slower = (tmp_path, 1.2 * STRETCH, "dtfm-scheduled")
    measured = stretched_run(*slower, source="measured", clock_error_s=0.0004)
    output = tmp_path / "both.json"
    assert run(["trace", "diff", str(measured), str(traced), "--output", str(output)]) == 0
    out = capsys.readouterr().out
    assert "emulated (-16.7%)" in out
    assert "simulated" not in out
    assert "measured: moments on different hosts are known to 400us" in out
    about = json.loads(output.read_text())["otherData"]
    times_s = (about["measured_iteration_s"], about["emulated_iteration_s"])
    assert times_s[0] / times_s[1] == pytest.approx(1.2)


def test_two_runs_of_one_source_are_told_apart(
    traced: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "diff", str(traced), str(traced)]) == 0
    assert "emulated, other run (0.0%)" in capsys.readouterr().out


def test_a_run_without_the_same_work_is_an_error(
    traced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = stretched_run(tmp_path, 1.0, "megatron")
    assert run(["trace", "diff", str(traced), str(other)]) == 2
    assert "has no trace of dtfm-scheduled on 3 ranks, L12 B64" in capsys.readouterr().err


def test_emulation_and_simulation_are_compared(
    traced: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The simulation takes 1/1.1 of the time; the kinds of a row sum to its iteration."""
    assert run(["trace", "diff", str(traced)]) == 0
    out = capsys.readouterr().out
    assert "simulated (-9.1%)" in out
    rows = [line.split() for line in out.splitlines() if " emulated  " in line or line[:1] == " "]
    rows = [[word for word in row if word.replace(".", "").isdigit()] for row in rows]
    checked = 0
    for row in rows:
        numbers = [float(word) for word in row[-6:]]
        if len(numbers) == 6:
            assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.003)
            checked += 1
    assert checked == 6
    assert "stage 1, send/receive:" in out.partition("Largest differences")[2]


def test_one_trace_has_the_ranks_of_both(
    traced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every rank has a process per source in Perfetto; a picture is drawn too."""
    output, plot = tmp_path / "both.json.gz", tmp_path / "both.png"
    assert run(["trace", "diff", str(traced), "--output", str(output), "--plot", str(plot)]) == 0
    trace = json.loads(gzip.decompress(output.read_bytes()))
    names = {
        event["pid"]: event["args"]["name"].partition(":")[0]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    }
    assert names == {
        0: "emulated", 1: "simulated", 2: "emulated", 3: "simulated", 4: "emulated", 5: "simulated",
    }  # fmt: skip
    assert trace["otherData"].keys() == {"plan", "emulated_iteration_s", "simulated_iteration_s"}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_newest_run_of_a_scenario_is_found_by_its_name(traced: Path) -> None:
    """It is searched in --results."""
    assert run(["trace", "diff", "gpt3-small", "--results", str(traced.parent)]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plan", "ffffff"], "--plan ffffff matches 0 traced plans; expected one of "),
        (["--plot", "nowhere/x.png"], "folder nowhere does not exist"),
    ],
)
def test_a_wrong_option_is_named(
    traced: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """The exit code is 2, before anything is simulated."""
    assert run(["trace", "diff", str(traced), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_run_without_traces_is_an_error(traced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scenario without a run is an error too; both messages say how to make a trace."""
    (path,) = (traced / "traces").iterdir()
    path.unlink()
    assert run(["trace", "diff", str(traced)]) == 2
    assert "has no traces; run its scenario again with netbench run --trace" in (
        capsys.readouterr().err
    )
    assert run(["trace", "diff", "case5", "--results", str(traced.parent)]) == 2
    assert "make one with netbench run case5 --trace" in capsys.readouterr().err


def test_one_simulated_rank_is_compared_with_the_slowest_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With several types of devices, it represents those that compute longest."""
    plan = build_plan(
        load_scenario("mixed-gpu"),
        "ddp",
        Setting(layers=40, batch=384, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )
    slices, longest_s = [], 0.0
    for rank, device in enumerate(plan.placement):
        (stage,) = plan.stages_on(device)
        passes_s = plan.num_micro_batches * (stage.forward_s + stage.backward_s)
        slices.append(Slice(kind="backward", rank=rank, start_s=0.0, end_s=passes_s))
        longest_s = max(longest_s, passes_s)
    folder = run_of(tmp_path, plan, simulate(plan).iteration_s, tuple(slices))
    assert run(["trace", "diff", str(folder)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (recorded,) = [row for row in rows if row[:1] == ["slowest"]]
    (simulated,) = [row for row in rows if row[:1] == ["simulated"] and len(row) > 4]
    assert f"{longest_s:.3f}" in recorded
    assert f"{longest_s:.3f}" in simulated
