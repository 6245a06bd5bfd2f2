"""Sessions: their console at the end of an error message, and what is left of a killed one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from netbench.testbed.guest.boot import BOOTED
from netbench.testbed.runs.launch import CONSOLE_LINES, SessionProcess

PATIENCE_S = 60.0

CONTROLLER = """\
import sys, time
from dataclasses import replace
from pathlib import Path
from netbench.testbed.runs.launch import start_session
from netbench.testing.nodes import LAPTOP
folder = Path(sys.argv[1])
machine = replace(LAPTOP, guest_kernel=folder / "kernel", guest_tmpdir=folder)
start_session("guest-virtual", machine, {}, 0, print)
time.sleep(600)
"""

KERNEL = [f"[    0.{number:02}] Booting" for number in range(20)]


def tails(lines: list[str], folder: Path) -> tuple[str, str]:
    """Return the tail of a session that prints `lines` and ends: whole, and since the boot."""
    printed = shlex.join(["printf", "%s\\r\\n", *lines]) if lines else "true"
    session = SessionProcess(["sh", "-c", printed], (), folder)
    session._process.wait()
    try:
        return session.console_tail(), session.console_tail(booted=True)
    finally:
        session.close()


def test_a_boot_that_went_well_is_left_out(tmp_path: Path) -> None:
    """But where the guest is all there is to say."""
    whole, since_boot = tails([*KERNEL, BOOTED, "", "Traceback", "KeyError"], tmp_path)
    assert since_boot == "\nlast console lines:\n  | Traceback\n  | KeyError"
    assert whole.endswith("Booting\n  | " + BOOTED + "\n  | Traceback\n  | KeyError")
    assert whole.count("\n  | ") == CONSOLE_LINES


@pytest.mark.parametrize("lines", [[], [*KERNEL, BOOTED]])
def test_nothing_is_said_of_a_console_without_a_word(lines: list[str], tmp_path: Path) -> None:
    """No heading over no lines."""
    assert tails(lines, tmp_path)[1] == ""


def test_a_warning_of_the_kernel_is_shown_but_not_its_chatter(tmp_path: Path) -> None:
    """Every netem beneath HTB is warned of: as many lines as there are links."""
    chatter = [f"htb: netem qdisc {number}: is non-work-conserving?" for number in range(30)]
    lines = [*KERNEL, BOOTED, "WARNING: CPU: 0 PID: 7", *chatter, "Traceback"]
    said = "\nlast console lines:\n  | WARNING: CPU: 0 PID: 7\n  | Traceback"
    assert tails(lines, tmp_path)[1] == said


def test_a_session_on_this_kernel_has_no_boot(tmp_path: Path) -> None:
    """All it printed counts."""
    whole, since_boot = tails(["Traceback"], tmp_path)
    assert whole == since_boot == "\nlast console lines:\n  | Traceback"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_controller_stopped_before_the_first_event_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Neither a process, which would keep the pipe open for minutes, nor a temporary folder."""
    temporary, started = tmp_path / "tmp", tmp_path / "started"
    temporary.mkdir()
    os.mkfifo(started)
    kernel = tmp_path / "kernel"
    kernel.write_text(f"#!/bin/sh\nexec 9>{started}; echo >&9; sleep 600\n")
    kernel.chmod(0o755)
    with (
        subprocess.Popen(
            [sys.executable, "-c", CONTROLLER, str(tmp_path)],
            env={**os.environ, "TMPDIR": str(temporary)},
            stderr=subprocess.PIPE,
        ) as controller,
        started.open("rb", buffering=0) as alive,
    ):
        assert alive.readline() == b"\n"
        assert len(list(temporary.iterdir())) == 1
        controller.send_signal(number)
        controller.communicate(timeout=PATIENCE_S)
        assert alive.read() == b""
    assert list(temporary.iterdir()) == []
