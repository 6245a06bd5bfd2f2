"""`netbench run` around a local testbed, which is imitated here: no kernel boots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from netbench.cli import run
from netbench.commands import run as run_command
from netbench.plan import Plan, plan_hash
from netbench.plan.experiment import experiment_record
from netbench.records import Environment, Run, RunStore, find_run, read_run
from netbench.testbed.local import Observer, Outcome

CaptureFixture = pytest.CaptureFixture[str]


class Testbed:
    """Iteration i of every plan takes 1 + i s. stops: after the first that is not recorded yet."""

    __test__ = False  # pytest: the name starts with "Test"
    stops = False
    reasons: tuple[str, ...] = ()

    def run_plans(
        self,
        plans: Sequence[Plan],
        *,
        open_store: Callable[[Environment], RunStore],
        finished: Mapping[str, Sequence[int]],
        observer: Observer,
        mode: str,
        **_: Any,
    ) -> Outcome:
        """As `netbench.testbed.local.run_plans`."""
        scale = plans[0].scale
        where = Environment(kernel="6", mode=mode, scale=scale, versions={}, machine="a test")
        todo = [
            (plan, index)
            for plan in plans
            for index in range(plan.iterations)
            if index not in finished.get(plan_hash(plan), ())
        ]
        with open_store(where) as store:
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
            store.append_verdict(trustworthy=not self.reasons, reasons=self.reasons)
            return Outcome(path=store.path, reasons=self.reasons)


@pytest.fixture
def testbed(monkeypatch: pytest.MonkeyPatch) -> Testbed:
    made = Testbed()
    monkeypatch.setattr(run_command, "run_plans", made.run_plans)
    monkeypatch.setattr(run_command, "ensure_kernel", lambda: None)
    monkeypatch.setattr(run_command, "ensure_shim", lambda: None)
    return made


def emulate(results: Path, *words: str) -> int:
    """Exit code of a run of the example on the imitated testbed."""
    return run(["run", "example-two-labs", *words, "--results", str(results)])


def recorded(results: Path) -> Run:
    path = find_run(results, "example-two-labs")
    assert path is not None
    return read_run(path)


def test_what_was_recorded_is_not_run_again(
    testbed: Testbed, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """One file: every plan and its prediction once, every iteration once, a session per start."""
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
    assert "1 iteration there already" in printed
    assert emulate(tmp_path, "--resume") == 0
    assert "all of it is finished" in capsys.readouterr().out
    assert len(recorded(tmp_path).sessions) == 2


def test_a_run_that_cannot_be_trusted_ends_with_code_3(
    testbed: Testbed, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """It is recorded all the same, with the reason; and the reason is printed."""
    testbed.reasons = ("a link is 9% off",)
    assert emulate(tmp_path, "--systems", "megatron") == 3
    assert "not trustworthy: a link is 9% off" in capsys.readouterr().out
    assert recorded(tmp_path).verdicts[-1].reasons == testbed.reasons
