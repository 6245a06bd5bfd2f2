"""Estimates of memory are compared with a limit before anything is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cli import run
from netbench.errors import PlanError, UsageError
from netbench.limits import MEMORY_VARIABLE, check_memory, memory_limit_bytes, share_memory
from netbench.plan.build import build_plan
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import simulate


def test_the_limit_is_the_available_memory_or_what_the_user_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Processes that work side by side share it."""
    monkeypatch.delenv(MEMORY_VARIABLE, raising=False)
    assert 1e8 < memory_limit_bytes() < 1e15
    monkeypatch.setenv(MEMORY_VARIABLE, "8GB")
    assert memory_limit_bytes() == 8e9
    share_memory(4)
    assert memory_limit_bytes() == 2e9
    share_memory(1)
    monkeypatch.setenv(MEMORY_VARIABLE, "8")
    with pytest.raises(UsageError, match='NETBENCH_MEMORY: "8" has no unit'):
        check_memory(1e12, "plans")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--system", "dtfm-scheduled-allreduce"), "simulated tasks of 4096 ranks need at least"),
        (("--system", "ddp-sharded-ps"), "simulated tasks of 4096 ranks need at least"),
        (("--system", "megatron-p512"), "512 stages with 2048 micro-batches each need at least"),
    ],
)
def test_a_simulation_above_the_limit_does_not_start(
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message has the estimate and the limit."""
    monkeypatch.setenv(MEMORY_VARIABLE, "300MB")
    scenario = tmp_path / "large.yaml"
    large = ("--regions", "2", "--devices", "4096", "-o", str(scenario))
    assert run(["scenario", "generate", *large]) == 0
    setting = ("--layers", "1024", "--batch", "65536")
    assert run(["explain", str(scenario), *setting, *words]) == 2
    assert message in (error := capsys.readouterr().err)
    assert "B of memory; the limit is 300MB; choose fewer" in error


def test_a_whole_timeline_above_the_limit_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every micro-batch is simulated, not only the steady state."""
    monkeypatch.setenv(MEMORY_VARIABLE, "300MB")
    setting = Setting(layers=24, batch=64_000)
    plan = build_plan(load_scenario("case3"), "megatron-p8", setting)
    assert simulate(plan).iteration_s > 0
    with pytest.raises(PlanError, match=r"64 ranks need at least 1.92GB .* the limit is 300MB"):
        simulate(plan, whole=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sweep", "case3", "--vary", "delay=1x..2x:1000000000"), "expected 2 to 100000"),
        (("sweep", "case3", "--vary", "layers=1e308"), "is too large; at most 1000T"),
        (("schedule", "case3", "--layout", "auto", "--layers", "1000000"), "1<=x<=10000"),
        (("schedule", "compare", "case3", "--seeds", "10000"), "1<=x<=1000"),
        (("schedule", "repair", "case3", "--moves", "1000000000"), "0<=x<=10000"),
        (("run", "case3", "--testbed", "sim", "--iterations", "1000000000"), "1<=x<=100000"),
        (("run", "case3", "--scale", "1e308", "--dry-run"), "scale is 1e+308; expected a number"),
        (("run", "case3", "--seeds", "1,1"), "has a number twice"),
        (("run", "case3", "--systems", "zero3,zero3"), '"zero3" is given twice'),
        (("run", "case3", "--placement", "default,own"), '"default" is given twice'),
        (("schedule", "case3", "--budget", "1ms"), "is not a search time of 100ms or more"),
        (("schedule", "case3", "--budget", "5s", "--evaluations", "5"), "leave out one of the two"),
        (("calibrate", "--time", "nan"), "'nan' is not a number of seconds from 1 to 86400"),
        (("net", "import", "x.csv", "--nodes", "1000000000"), "1<=x<=10000"),
        (
            ("net", "trace", "diurnal", "case5", "--link=Ohio", "--low=30%", "--steps=1000000000"),
            "2<=x<=100000",
        ),
        (
            ("net", "trace", "diurnal", "case5", "--link=Ohio", "--low=30%", "--periods=99999"),
            "9599904 changes; expected at most 100000",
        ),
        (
            ("net", "trace", "outage", "case5", "--link", "Ohio", "--up", "1s", "--down", "1s",
             "--until", "1000000s"),
            "more than 100000 changes; make the times longer",
        ),
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_refused_with_its_limit(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any work; the exit code is 2."""
    assert run(words) == 2
    assert message in capsys.readouterr().err


def test_more_plans_than_one_command_can_run_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every combination counts."""
    layers, batch = (",".join(map(str, range(8, 8 * 151, 8))) for _ in range(2))
    assert run(["run", "case3", "--layers", layers, "--batch", batch, "--dry-run"]) == 2
    assert "expected at most 10000; choose fewer layers" in capsys.readouterr().err
