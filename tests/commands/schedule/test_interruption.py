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

from netbench.commands.schedule.contest import Entry, run_entries
from netbench.commands.schedule.interruption import interruptible
from netbench.commands.schedule.request import Limits, make_request
from netbench.scenario import load_scenario
from netbench.simulator import simulate
from netbench.simulator.placement_file import read_placed

LONG = Limits(seconds=300.0)


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """What a shell starts in the background ignores Ctrl-C, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_before_anybody_looks_it_interrupts_as_ever() -> None:
    """While something is compiled, say: there is nothing to keep."""
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_from_the_first_candidate_on_it_ends_the_search() -> None:
    """A search that has begun, and has not looked yet, is not interrupted in the middle."""
    with interruptible() as interrupted:
        budget = Limits(seconds=300.0, interrupted=interrupted).budget()
        signal.raise_signal(signal.SIGINT)
        assert budget.interrupted()


def test_where_it_is_ignored_it_stays_so() -> None:
    """In the background of a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert not interrupted()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_pressed_once_it_is_told_pressed_twice_it_interrupts() -> None:
    """And what Ctrl-C did before, it does again afterwards."""
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_best_so_far_is_the_answer(tmp_path: Path) -> None:
    """A process that is interrupted when it has told of a placement: it prints and keeps its best,
    says that it was interrupted, and exits with 130; no bound is looked for."""
    file = tmp_path / "placement.json"
    command = [sys.executable, "-m", "netbench.cli", "schedule", "uneven-regions"]
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


def test_many_searches_end_soon_when_they_are_interrupted() -> None:
    """Two of five minutes, interrupted when the first has found something: nothing waits for the
    rest of them."""
    request = make_request("uneven-regions")
    entries = [Entry(scheduler="dtfm", seed=seed) for seed in (0, 1)]
    said: list[str] = []

    def press(index: int, text: str) -> None:
        said.append(text)
        if len(said) == 1:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        list(run_entries(request, entries, LONG, press))
    assert said
    assert signal.getsignal(signal.SIGINT) is before
