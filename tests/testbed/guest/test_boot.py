"""Boots that fail, of kernels that are scripts; a real one without a home."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.guest import run_in_guest
from netbench.testbed.guest.boot import boot_check, take_core
from netbench.testbed.machine.capabilities import probe_machine


def script(directory: Path, body: str) -> Path:
    file = directory / "linux"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


def test_the_line_that_says_why_is_picked_from_the_console(tmp_path: Path) -> None:
    """The cause is quoted rather than the stack that follows it."""
    body = "echo booting; echo ' userspace - ptrace set fp regs failed'; echo trace; exit 134"
    result = boot_check(script(tmp_path, body), tmp_path, virtual_time=True)
    assert result.error == "userspace - ptrace set fp regs failed"


def test_a_kernel_that_says_nothing_is_reported_by_its_exit_status(tmp_path: Path) -> None:
    """Without a telling line: the status and the last line."""
    result = boot_check(script(tmp_path, "echo hm; exit 7"), tmp_path, virtual_time=False)
    assert result.error == "exit 7; last line: hm"


def test_a_file_that_cannot_be_executed_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    """Its name and the system's words."""
    result = boot_check(tmp_path / "absent", tmp_path, virtual_time=True)
    assert str(tmp_path / "absent") in result.error
    assert result.error.endswith("No such file or directory")


def test_a_kernel_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It and what it started; the wait has an end."""
    monkeypatch.setattr("netbench.testbed.guest.boot.BOOT_TIMEOUT_S", 0.4)
    result = boot_check(script(tmp_path, "echo hm; sleep 600"), tmp_path, virtual_time=True)
    assert result.error == "no answer in 0 s; last line: hm"


@pytest.mark.guest
@pytest.mark.parametrize("home", [None, "/proc/none", "relative", "/etc/passwd"])
def test_a_guest_needs_no_home_and_leaves_nothing_there(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UML makes a folder per guest in ~/.uml by default, and panics where it cannot, as it does
    when the path of its first program has a space."""
    machine, left = probe_machine(), set(Path.home().glob(".uml/*"))
    temporary = tmp_path / "a space"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.delenv("HOME")
    if home is not None:
        monkeypatch.setenv("HOME", home)
    assert run_in_guest(machine, ["true"])[0] == 0
    monkeypatch.undo()
    assert set(Path.home().glob(".uml/*")) == left
    assert list(temporary.iterdir()) == []


def test_guests_share_cores_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is alone on a core while there are enough, then beside one other. A core is free
    again when the process that has it ends."""
    monkeypatch.setattr("netbench.testbed.guest.boot.CORE", str(tmp_path / "cpu{number}"))
    cores = os.sched_getaffinity(0)
    for core in cores:
        (tmp_path / f"cpu{core}" / "topology").mkdir(parents=True)
    show = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]

    def taken() -> tuple[int, int]:
        command, kept = take_core(show)
        return int(subprocess.check_output(command)), kept

    def taken_once() -> int:
        core, kept = taken()
        os.close(kept)
        return core

    first = [taken() for _ in cores]
    assert {core for core, _ in first} == cores
    second = [taken() for _ in cores]
    assert {core for core, _ in second} == cores
    for descriptor in (kept for _, kept in first):  # every core has a guest left
        os.close(descriptor)
    idle, kept = second[0]
    os.close(kept)
    assert [taken_once() for _ in range(8)] == [idle] * 8
    for descriptor in (kept for _, kept in second[1:]):
        os.close(descriptor)
    first = [taken() for _ in cores]
    freed, kept = first[0]
    os.close(kept)
    again, kept = taken()
    assert again == freed
    for descriptor in (kept, *(kept for _, kept in first[1:])):
        os.close(descriptor)
