"""`netbench run` with a fake testbed, so that no kernel boots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from netbench.api import emulation
from netbench.cli import run
from netbench.plan.experiment import experiment_record
from netbench.plan.model import Plan
from netbench.plan.serial import plan_from_json, plan_hash
from netbench.records import Environment, Run, RunStore, find_run, read_run
from netbench.systems import system_of
from netbench.testbed.runs.controller import Observer, SessionSetup
from netbench.version import TRAINER_RULES

CaptureFixture = pytest.CaptureFixture[str]


class FakeTestbed:
    """Testbed whose iteration i takes 1 + i s. stops: end after one iteration."""

    stops = False
    rules = TRAINER_RULES
    reasons: tuple[str, ...] = ()

    def run_plans(
        self,
        plans: Sequence[Plan],
        setup: SessionSetup,
        *,
        open_store: Callable[[Environment], RunStore],
        finished: Mapping[str, Sequence[int]],
        observer: Observer,
    ) -> Path:
        """Replace `netbench.testbed.runs.controller.run_plans`."""
        scale = plans[0].scale
        where = Environment(
            kernel="6",
            mode=setup.testbed,
            scale=scale,
            versions={},
            machine="a test",
            rules=self.rules,
        )
        todo = [
            (plan, index)
            for plan in plans
            for index in range(plan.iterations)
            if index not in finished.get(plan_hash(plan), ())
        ]
        with open_store(where) as store:
            for reason in self.reasons:
                store.append_doubt(plan_hash(plans[0]), reason)
            for plan, index in todo[: 1 if self.stops else None]:
                record = experiment_record(
                    plan,
                    store.run_id,
                    1.0 + index,
                    "emulated",
                    iteration=index,
                    warmup=index < plan.warmup_iterations,
                )
                store.append_iteration(record)
                observer.iteration(plan, record)
            if not self.stops:
                store.append_verdict()
            return store.path


@pytest.fixture
def testbed(monkeypatch: pytest.MonkeyPatch) -> FakeTestbed:
    made = FakeTestbed()
    monkeypatch.setattr(emulation, "run_plans", made.run_plans)
    monkeypatch.setattr(emulation, "ensure_kernel", lambda: None)
    monkeypatch.setattr(emulation, "ensure_shim", lambda: None)
    return made


def emulate(results: Path, *options: str) -> int:
    """Run the example on the fake testbed and return the exit code."""
    return run(["run", "example-two-labs", *options, "--results", str(results)])


def recorded(results: Path) -> Run:
    path = find_run(results, "example-two-labs")
    assert path is not None
    return read_run(path)


def test_recorded_iterations_are_not_run_again(
    testbed: FakeTestbed, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The file has every plan, prediction and iteration once, and a session per start."""
    testbed.stops = True
    assert emulate(tmp_path, "--systems", "megatron,zero3") == 0
    testbed.stops = False
    assert emulate(tmp_path, "--resume") == 0
    found = recorded(tmp_path)
    assert len(found.sessions) == 2
    assert found.predictions.keys() == found.plans.keys()
    assert [(record.variant, record.iteration) for record in found.records] == [
        (variant, iteration) for variant in ("megatron", "zero3") for iteration in range(3)
    ]
    printed = capsys.readouterr().out
    assert "1 iteration already recorded" in printed
    assert emulate(tmp_path, "--resume") == 0
    assert "all iterations are finished" in capsys.readouterr().out
    assert len(recorded(tmp_path).sessions) == 2


def test_a_run_by_other_rules_of_the_trainers_is_not_resumed(
    testbed: FakeTestbed, tmp_path: Path, capsys: CaptureFixture
) -> None:
    testbed.stops, testbed.rules = True, TRAINER_RULES - 1
    assert emulate(tmp_path, "--systems", "megatron,zero3") == 0
    capsys.readouterr()
    assert emulate(tmp_path, "--resume") == 2
    assert "whose trainers run megatron, zero3 differently" in capsys.readouterr().err
    assert len(recorded(tmp_path).sessions) == 1


def test_a_run_matrix_by_matrix_is_resumed_as_it_was(testbed: FakeTestbed, tmp_path: Path) -> None:
    """The plans of `--unmerged` are not those that netbench would build, but not foreign either."""
    options = ("--fast", "--unmerged", "--systems", "zero3", "--batch", "1024,2048")
    command = ["run", "case3", *options, "--layers", "24", "--results", str(tmp_path)]
    testbed.stops = True
    assert run(command) == 0
    testbed.stops = False
    folder = next(tmp_path.iterdir())
    planned = read_run(folder).plans
    assert run(["run", "case3", "--resume", str(folder)]) == 0
    found = read_run(folder)
    assert found.plans == planned
    assert len(found.plans) == 2
    plans = [plan_from_json(json.dumps(plan)) for plan in found.plans.values()]
    assert not any(system_of(plan).is_merged(plan) for plan in plans)
    assert [record.batch for record in found.records] == [1024, 2048]


def test_a_run_stopped_before_its_verdict_gets_it_when_resumed(
    testbed: FakeTestbed, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """All iterations are on disk, with a doubt of a session that was killed; only the end lacks."""
    testbed.reasons = ("a link is 9% off",)
    emulate(tmp_path, "--systems", "megatron")
    path = recorded(tmp_path).path
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert "no verdict" not in capsys.readouterr().out
    for _ in range(2):
        assert emulate(tmp_path, "--resume") == 3
        assert "NOT TRUSTWORTHY: a link is 9% off" in capsys.readouterr().out
    assert len(recorded(tmp_path).verdicts) == 1


def test_a_run_that_cannot_be_trusted_ends_with_code_3(
    testbed: FakeTestbed, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The reason is recorded and printed."""
    testbed.reasons = ("a link is 9% off",)
    assert emulate(tmp_path, "--systems", "megatron") == 3
    assert "NOT TRUSTWORTHY: a link is 9% off" in capsys.readouterr().out
    assert recorded(tmp_path).verdicts[-1].reasons == testbed.reasons
