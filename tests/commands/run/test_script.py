"""`netbench run SCENARIO --command COMMAND`, without shaping a network."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.commands.run import command as run_command
from netbench.errors import PlanError, UsageError
from netbench.plan.build import build_command_plan
from netbench.plan.model import Execution
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.records import RunStore
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.testbed.machine.choose import choose
from netbench.testing.nodes import LAPTOP, SERVER
from tests import runs

CaptureFixture = pytest.CaptureFixture[str]


def test_a_dry_run_shows_the_script_and_its_placements(capsys: CaptureFixture) -> None:
    """Every plan has a line; quoted words stay together."""
    options = ["--command", "python train.py 'two words'", "--iterations", "5", "--seeds", "1,2"]
    systems = ["--systems", "command,command-random"]
    assert run(["run", "example-two-labs", *options, *systems, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == ["command", "command-random", "command-random"]
    assert all(line.endswith("1 + 5 iterations of: python train.py 'two words'") for line in lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--systems", "command"], "--systems command needs a script"),
        (["--command", "a", "--systems", "megatron"], 'a script cannot run as "megatron"'),
        (["--command", "a", "--testbed", "sim"], "no script would run; leave out --command"),
        (["--command", "a", "--testbed", "local:guest"], "--testbed local:guest-real"),
        (
            ["--command", "a", "--scale", "10"],
            "--scale 10 cannot divide the bytes that a script sends",
        ),
        (["--command", "a", "--compute", "cpu"], "leave out --compute"),
        (["--command", "a", "--all"], "leave out --compute, --token-file and --all"),
        (["--command", "a 'b"], "No closing quotation"),
        (["--command", ""], "the script is empty"),
        (["--iteration-regex", "x"], "reads the output of a script; add --command"),
        (["--command", "a", "--iteration-regex", "("], "--iteration-regex '(': missing )"),
        (["--command", "a", "--iteration-regex", "(?P<took>.*)"], "has a group took; groups are"),
    ],
)
def test_an_option_that_excludes_a_script_is_a_usage_error(
    options: list[str], message: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The exit code is 2, before anything is started or written."""
    assert run(["run", "example-two-labs", *options, "--results", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_scripts_run_in_real_time() -> None:
    """They run natively on a kernel with netem, else in a guest in real time."""
    assert choose("local", SERVER, 64, "script").testbed == "native"
    assert choose("local", LAPTOP, 4, "script").testbed == "guest-real"
    with pytest.raises(UsageError, match="virtual time"):
        choose("local:guest", LAPTOP, 4, "script")


@pytest.mark.parametrize(
    ("command", "launcher", "instead"),
    [
        ("torchrun --nproc-per-node 2 t.py --lr 1", "torchrun", "python t.py --lr 1"),
        ("env A=1 /opt/bin/accelerate launch t.py", "/opt/bin/accelerate launch", "python t.py"),
        ("python3.12 -u -m torch.distributed.run t.py", "python3.12 -u -m torch", "python t.py"),
        ("deepspeed t.py --deepspeed", "deepspeed", "python t.py --deepspeed"),
        ("mpirun -np 4 python t.py", "mpirun", "python t.py"),
        ("sh -c 'torchrun -m mine'", "torchrun", "python train.py"),
    ],
)
def test_a_launcher_is_refused_with_the_command_to_give_instead(
    command: str, launcher: str, instead: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The exit code is 2, before anything is started or written."""
    assert run(["run", "example-two-labs", "--command", command, "--results", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"--command starts {launcher}" in said
    assert f"give the script alone: --command '{instead}'" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", ["python train.py --launcher torchrun", "python -m mine torchrun", "./torchrun.py"]
)
def test_a_script_that_only_mentions_a_launcher_is_accepted(
    command: str, capsys: CaptureFixture
) -> None:
    """Its plan is printed."""
    assert run(["run", "example-two-labs", "--command", command, "--dry-run"]) == 0
    assert command in capsys.readouterr().out


def foreign_run(results: Path) -> Path:
    """A record of a command on four nodes, stopped before its first iteration."""
    plan = build_command_plan(
        load_scenario("example-two-labs"),
        "command",
        ["python", "theirs.py", "two words"],
        Setting(layers=8, batch=16, seed=1),
        Execution(iterations=2, warmup_iterations=1),
    )
    with RunStore.create(
        results,
        scenario="example-two-labs",
        created=datetime(2026, 1, 2, 3, 4, 5),
        command=["netbench", "run"],
        environment=runs.ENVIRONMENT,
    ) as store:
        store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
        return store.path.parent


def test_a_command_in_the_record_of_another_user_needs_a_confirmation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture
) -> None:
    """It is shown first. One's own is started at once, and --dry-run shows any."""
    folder = foreign_run(tmp_path)
    resume = ["run", "example-two-labs", "--results", str(tmp_path), "--resume", str(folder)]

    def refuse(*_: object) -> None:
        raise PlanError("it would start now")

    monkeypatch.setattr(run_command, "run_recorded", refuse)
    run(resume)
    assert "it would start now" in capsys.readouterr().err
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert run(resume) == 2
    said = capsys.readouterr().err
    assert f"belongs to user {owner}, and you would run its command: python theirs.py" in said
    assert "'two words'; if you trust it, add --foreign-command" in said
    assert run([*resume, "--dry-run"]) == 0
    assert "theirs.py" in capsys.readouterr().out
    run([*resume, "--foreign-command"])
    assert "it would start now" in capsys.readouterr().err
