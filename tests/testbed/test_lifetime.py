"""Processes and folders that end with their owner, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from netbench.errors import TestbedError
from netbench.testbed.lifetime import Scratch, tied

PATIENCE_S = 60.0
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--")
MAY_ISOLATE = ("unshare", "--user", "--map-current-user", "--pid", "--fork", "true")
STRAY = "echo started; setsid sleep 600 & sleep 600"
"""A command one of whose processes leaves its session."""

OWNER = """\
import os, subprocess, sys
pid = str(os.getpid())
subprocess.run([pid if word == "PID" else word for word in sys.argv[1:]])
"""


def become(user: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the tying command of a user, with PID in place of its owner. Skip if it may not."""
    if user:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    if subprocess.run([*user, *MAY_ISOLATE], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a PID namespace")
    return [*user, *tied()[:-1], "PID"]


@pytest.mark.parametrize("victim", ["owner", "first process"])
@pytest.mark.parametrize("user", [(), NOBODY], ids=["this user", "nobody"])
def test_all_processes_end_with_either_end_of_the_chain(
    victim: str, user: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output ends only when no process holds it, and a stray one would hold it for minutes."""
    command = [sys.executable, "-ISc", OWNER, *become(user, monkeypatch), "sh", "-c", STRAY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"started\n"
        children = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
        os.kill(owner.pid if victim == "owner" else int(children[0]), signal.SIGKILL)
        assert owner.communicate(timeout=PATIENCE_S)[0] == b""


def test_a_command_whose_owner_has_ended_is_not_started() -> None:
    """It would never hear of that end. Here the owner is one that did not start it."""
    command = ["sh", "-c", '"$@"; exit', "sh", *tied(), "echo", "started"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_status_and_signals_of_the_command_are_reported() -> None:
    """The numbers are those of a shell."""
    for script, status in (("exit 7", 7), ("kill -ABRT $$", 128 + signal.SIGABRT)):
        done = subprocess.run([*tied(), "sh", "-c", script], capture_output=True, check=False)
        assert done.returncode == status


def test_a_folder_goes_when_all_that_use_it_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is private, and stays as long as a process that inherited it. Variables of the user that
    have the names of the shell's do not matter."""
    mine = tmp_path / "mine"
    mine.mkdir()
    monkeypatch.setenv("folder", str(mine))
    scratch = Scratch(tmp_path)
    assert scratch.path.parent == tmp_path
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    (scratch.path / "file").write_text("text")
    script = f"read -r _; ls {scratch.path}"
    with subprocess.Popen(
        ["sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[scratch.fd],
    ) as user:
        assert scratch._cleanup.poll() is None
        assert user.communicate("\n", timeout=PATIENCE_S)[0] == "file\n"
    scratch.__exit__()
    assert list(tmp_path.iterdir()) == [mine]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_folder_goes_with_its_owner(number: signal.Signals, tmp_path: Path) -> None:
    """Its other process has the same stderr, so that ends after the folder has gone."""
    program = (
        "from netbench.testbed.lifetime import Scratch; from pathlib import Path; import sys\n"
        "scratch = Scratch(Path(sys.argv[1])); print(scratch.path, flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert Path(owner.stdout.readline().rstrip()).is_dir()
        owner.send_signal(number)
        owner.communicate(timeout=PATIENCE_S)
    assert list(tmp_path.iterdir()) == []


def test_the_next_folder_removes_those_whose_processes_were_all_killed(tmp_path: Path) -> None:
    """A folder in use stays, and so does what a link points to."""
    used, lost, target = Scratch(tmp_path), Scratch(tmp_path), tmp_path / "target"
    target.mkdir()
    (tmp_path / "netbench-run-12345678").symlink_to(target)
    lost._cleanup.kill()
    lost._cleanup.wait()
    with Scratch(tmp_path):
        pass
    assert sorted(tmp_path.iterdir()) == sorted(
        [used.path, target, tmp_path / "netbench-run-12345678"]
    )
    used.__exit__()


def test_a_folder_that_cannot_be_made_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the system's words."""
    with pytest.raises(TestbedError, match="set TMPDIR"):
        Scratch(tmp_path / "absent")
    assert "No such file" in capfd.readouterr().err
