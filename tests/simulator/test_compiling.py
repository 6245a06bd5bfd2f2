"""Tests of `netbench.simulator`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import njit
from numba.core import event

from netbench import simulator
from netbench.simulator import FirstCompilation, kernel


def test_only_the_first_compilation_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two functions are compiled, one after the other; calling compiled code logs nothing."""
    monkeypatch.setattr(simulator, "compiled_before", lambda: False)
    one, other = njit(lambda x: x + 1), njit(lambda x: x - 1)
    with (
        caplog.at_level(logging.WARNING),
        event.install_listener("numba:compile", FirstCompilation()),
    ):
        assert (one(1), other(1), one(2)) == (2, 0, 3)
    told = [r.getMessage() for r in caplog.records if r.name == "netbench.simulator"]
    # The listener of the process may tell of it too, if nothing was compiled before.
    assert 1 <= len(told) <= 2
    assert all("compiling, once per installation" in message for message in told)


FIRST = """
import logging; logging.basicConfig(format='%(message)s')
import netbench.simulator
from numba.core import event
for _ in range(2): event.start_event('numba:compile')
print(netbench.simulator.kernel._run.stats.cache_path)
"""
"""Compiles for the first time in its process, and prints where its code is kept."""


def first_compilation(cache: Path) -> tuple[list[str], Path]:
    """Return what a process that compiles says, and where it keeps the simulator's code."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
    )
    return done.stderr.splitlines(), Path(done.stdout.strip())


def test_an_installation_logs_its_compilation_once(tmp_path: Path) -> None:
    """Importing the simulator registers the listener with numba. A later process says nothing, even
    if it compiles something else, unless the simulator is newer than its compiled code."""
    (said,), kept = first_compilation(tmp_path)
    assert "compiling, once per installation" in said
    assert kept.is_relative_to(tmp_path)
    kept.mkdir(parents=True, exist_ok=True)
    index = kept / "kernel._run-1.py311.nbi"
    index.touch()
    assert first_compilation(tmp_path) == ([], kept)
    os.utime(index, (0, Path(kernel.__file__).stat().st_mtime - 1))
    assert len(first_compilation(tmp_path)[0]) == 1
