"""Tests of `netbench.simulator`."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from numba import njit
from numba.core import event

from netbench.simulator import FirstCompilation


def test_only_the_first_compilation_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two functions are compiled, one after the other; calling compiled code logs nothing."""
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


def test_a_process_that_simulates_logs_its_compilation_once() -> None:
    """Importing the simulator registers the listener with numba."""
    script = (
        "import logging; logging.basicConfig(format='%(message)s')\n"
        "import netbench.simulator\n"
        "from numba.core import event\n"
        "for _ in range(2): event.start_event('numba:compile')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    (said,) = done.stderr.splitlines()
    assert "compiling, once per installation" in said
