"""`netbench run` of models by name: selection and output."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cli import run
from netbench.records import find_run, read_run

CaptureFixture = pytest.CaptureFixture[str]


def test_a_simulated_run_prints_throughput_and_scalability(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Throughput is in the units of the published figures, instead of PFLOPS."""
    assert run(["run", "dp-scaling", "--testbed", "sim", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "PFLOPS" not in printed
    for text in ("resnet18, images/s", "resnet101, images/s", "bert-base, words/s", "1191.73"):
        assert text in printed
    path = find_run(tmp_path, "dp-scaling")
    assert path is not None
    assert [record.batch for record in read_run(path).records] == [2048, 2048, 128]


def test_models_and_replicas_are_chosen(tmp_path: Path, capsys: CaptureFixture) -> None:
    """Every combination is a plan, in the order given."""
    arguments = ["--models", "bert-base,resnet18", "--replicas", "1,4", "--dry-run"]
    assert run(["run", "dp-scaling-1gbit", *arguments]) == 0
    plans = capsys.readouterr().out.splitlines()
    assert [plan.split()[3:5] for plan in plans] == [
        ["bert-base", "B8:"],
        ["bert-base", "B32:"],
        ["resnet18", "B128:"],
        ["resnet18", "B512:"],
    ]


def test_the_whole_sweep_has_all_combinations(tmp_path: Path, capsys: CaptureFixture) -> None:
    """It has three models, three numbers of replicas and three systems."""
    assert run(["run", "dp-scaling", "--all", "--testbed", "sim", "--dry-run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 27


def test_a_scenario_shows_its_models_replicas_and_speeds(capsys: CaptureFixture) -> None:
    """They replace the sizes of a GPT."""
    assert run(["scenario", "show", "dp-scaling"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "V100: resnet18 90.2 images/s, resnet101 23.94 images/s, bert-base 2269.57 words/s" in (
        shown
    )
    assert "workload resnet18, fp32, batch 128 per replica" in shown
    assert "models resnet18, resnet101, bert-base replicas 16 (--all: also 1, 12)" in shown
    assert "hidden" not in shown


def test_validation_builds_the_whole_sweep(capsys: CaptureFixture) -> None:
    """It has three models, three numbers of replicas and three systems."""
    assert run(["scenario", "validate", "dp-scaling"]) == 0
    assert "plans: 27)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dp-scaling", "--layers", "24"], "trains models by name, which fix layers and batches"),
        (["dp-scaling", "--batch", "24"], "use --models and --replicas"),
        (["dp-scaling", "--models", "vgg"], "has no model 'vgg'"),
        (["dp-scaling", "--replicas", "17"], "17 replicas; expected 1 to 16"),
        (["case3", "--replicas", "4"], "case3 trains a GPT on all its devices"),
    ],
)
def test_impossible_combinations_are_errors(
    arguments: list[str], message: str, capsys: CaptureFixture
) -> None:
    """The message names the options or the alternatives."""
    assert run(["run", *arguments, "--dry-run"]) in (1, 2)
    assert message in capsys.readouterr().err
