"""Ctrl-C while `netbench schedule` searches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netbench.api.placement import Limits, make_request
from netbench.commands.schedule.contest import Search, run_searches
from netbench.commands.schedule.interruption import interruptible
from netbench.placement.file import read_placed
from netbench.scenario import load_scenario
from netbench.simulator import simulate

LONG = Limits(seconds=300.0)


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """Enable Ctrl-C, which a shell disables for background processes and their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_before_the_search_ctrl_c_raises_an_interrupt() -> None:
    """During compilation, for example, there is no result to keep."""
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_during_the_search_ctrl_c_ends_the_search() -> None:
    """A search that has begun ends by itself, even before its first candidate."""
    with interruptible() as interrupted:
        budget = Limits(seconds=300.0, interrupted=interrupted).budget()
        signal.raise_signal(signal.SIGINT)
        assert budget.interrupted()


def test_a_process_that_ignores_ctrl_c_still_does() -> None:
    """An example is a process in the background of a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert not interrupted()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_a_second_ctrl_c_raises_an_interrupt() -> None:
    """The first one only ends the search. The handler is restored afterwards."""
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupted_search_keeps_its_best(tmp_path: Path) -> None:
    """After Ctrl-C it saves the best placement, searches no bound, and exits with 130."""
    file = tmp_path / "placement.json"
    command = [sys.executable, "-m", "netbench", "schedule", "uneven-regions"]
    with subprocess.Popen(
        [*command, "--budget", "5min", "-o", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "best" in line:
                process.send_signal(signal.SIGINT)
                break
        printed = process.stdout.read()
    assert process.returncode == 130, printed
    assert "budget 5min, interrupted)" in printed
    assert "Traceback" not in printed
    assert "lower bound" not in printed
    placed = read_placed(file, load_scenario("uneven-regions"))
    assert simulate(placed.plan()).iteration_s == placed.simulated_s
    assert json.loads(file.read_text())["bound_s"] is None


def test_parallel_searches_end_soon_after_an_interrupt() -> None:
    """Two searches of five minutes are interrupted after the first improvement."""
    request = make_request(load_scenario("uneven-regions"), "dtfm-scheduled")
    searches = [Search(scheduler="dtfm", seed=seed) for seed in (0, 1)]
    said: list[str] = []

    def press(index: int, num_evaluated: int, text: str) -> None:
        said.append(text)
        if len(said) == 1:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        list(run_searches(request, searches, LONG, press))
    assert said
    assert signal.getsignal(signal.SIGINT) is before
