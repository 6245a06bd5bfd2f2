"""The console of a session at the end of an error message."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from netbench.testbed.guest.boot import BOOTED
from netbench.testbed.runs.launch import CONSOLE_LINES, SessionProcess

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
