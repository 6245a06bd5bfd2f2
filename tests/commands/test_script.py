"""`netbench run SCENARIO --command WORDS`, as far as no network is shaped."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.cli import run
from netbench.errors import UsageError
from netbench.testbed.choose import choose
from tests.testbed.test_choose import LAPTOP, SERVER

CaptureFixture = pytest.CaptureFixture[str]


def test_a_dry_run_shows_the_script_and_its_placements(capsys: CaptureFixture) -> None:
    """One line per plan; words are kept together as they were quoted."""
    options = ["--command", "python train.py 'two words'", "--iterations", "5", "--seeds", "1,2"]
    systems = ["--systems", "command,command-random"]
    assert run(["run", "example-two-labs", *options, *systems, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == ["command", "command-random", "command-random"]
    assert all(line.endswith("1 + 5 iterations of: python train.py 'two words'") for line in lines)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--systems", "command"], "--systems command needs the script"),
        (["--command", "a", "--systems", "megatron"], 'a script cannot run as "megatron"'),
        (["--command", "a", "--testbed", "sim"], "no script runs; leave out --command"),
        (["--command", "a", "--testbed", "local:guest"], "--testbed local:guest-real"),
        (["--command", "a", "--scale", "10"], "--scale 10 cannot divide what a script sends"),
        (["--command", "a", "--compute", "cpu"], "leave out --compute"),
        (["--command", "a", "--all"], "leave out --compute, --token-file and --all"),
        (["--command", "a 'b"], "No closing quotation"),
        (["--command", ""], "the script is empty"),
    ],
)
def test_what_does_not_go_with_a_script_is_a_usage_error(
    options: list[str], said: str, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """Status 2, before anything is started or written."""
    assert run(["run", "example-two-labs", *options, "--results", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_scripts_run_in_real_time() -> None:
    """On a kernel with netem, else in a guest whose clock is the wall's."""
    assert choose("local", SERVER, 64, "script").mode == "native"
    assert choose("local", LAPTOP, 4, "script").mode == "guest-real"
    with pytest.raises(UsageError, match="virtual time"):
        choose("local:guest", LAPTOP, 4, "script")
