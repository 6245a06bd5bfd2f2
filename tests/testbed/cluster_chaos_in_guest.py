"""A run on two machines with a fault at a random moment: run in a guest as root, /run private.

`python -m tests.testbed.cluster_chaos_in_guest SPECS` plays a JSON list of faults and prints a line
of JSON for each: what is left a minute after the run has ended. Expects virtual time.
`benchmarks.chaos` starts it. A fault is {"kind": a name of `FAULTS`, "lines": that the controller
has printed before, "after_s": then, of virtual time, "node": 0 or 1}; a kind "none" continues a run
to its end. Each run continues the one before, until all its iterations are on disk.

What a line says besides: "missed", why a fault struck nothing (such a try does not count), and
"error", what is wrong otherwise.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from netbench.errors import EXIT_NOT_TRUSTWORTHY
from netbench.records import find_run, read_run
from tests.testbed.chaos_in_guest import left
from tests.testbed.cluster_in_guest import HOST_SECONDS, REPORTS, SCRIPT, Cluster
from tests.testbed.safety_controllers import Controller
from tests.testbed.safety_in_guest import SCRATCH
from tests.testbed.safety_machines import STATE, is_sshd

ITERATIONS = 3
"""Iterations of a run, beside its warm-up. Each takes seven seconds of virtual time, which cost
nothing; what is done after each does."""

FINISHED = (0, EXIT_NOT_TRUSTWORTHY)
"""Statuses of a run that has come to its end. The second: links were measured during a fault."""

AWAY_S = 25.0
"""Time that a machine is frozen, cut off or without sshd, seconds: it is given up within it."""


class Play(Cluster):
    """Machines, and the run that is continued."""

    def __init__(self) -> None:
        super().__init__()
        SCRIPT.write_text(REPORTS.format(body="time.sleep(5.0)"))
        self._num_runs = 0
        self.kept: set[int] = set()
        self.next_run()

    def next_run(self) -> None:
        self._num_runs += 1
        self.results = SCRATCH / f"run{self._num_runs}"
        self.kept = set()

    def go_on(self) -> Controller:
        """Start the run, or continue it."""
        words = ["--command", f"{sys.executable} -S {SCRIPT}", "--iterations", str(ITERATIONS)]
        what = ["--resume"] if find_run(self.results, "two") else words
        self._num_controllers += 1
        output = SCRATCH / f"output{self._num_controllers}"
        where = ["--inventory", str(self.inventories["two"]), "--replace"]
        results = ["--results", str(self.results)]
        return Controller(output, "alpha", "run", f"{SCRATCH}/two.yaml", *where, *results, *what)

    def recorded(self) -> set[int]:
        path = find_run(self.results, "two")
        return {record.iteration for record in read_run(path).records} if path else set()


class Missed(Exception):
    """A fault struck nothing."""


Fault = Callable[[Play, Controller, int], AbstractContextManager[None]]


def _sent(number: signal.Signals) -> Fault:
    @contextmanager
    def fault(play: Play, controller: Controller, node: int) -> Iterator[None]:
        controller.signal(number)
        yield

    return fault


def _rank(number: signal.Signals) -> Fault:
    @contextmanager
    def fault(play: Play, controller: Controller, node: int) -> Iterator[None]:
        ranks = play.pids(node, "script.py")
        if not ranks:
            raise Missed("there was no rank")
        play.machines.send(ranks, number)
        yield

    return fault


@contextmanager
def _sshd_killed(play: Play, controller: Controller, node: int) -> Iterator[None]:
    play.machines.stop_sshd(node)
    time.sleep(AWAY_S)
    play.machines.start_sshd(node)
    yield


@contextmanager
def _channel_cut(play: Play, controller: Controller, node: int) -> Iterator[None]:
    """The sshd that listens is the first of them."""
    sessions = sorted(pid for pid, name in play.machines.processes(node).items() if is_sshd(name))
    if not sessions[1:]:
        raise Missed("there was no channel")
    play.machines.send(sessions[1:], signal.SIGKILL)
    yield


@contextmanager
def _frozen(play: Play, controller: Controller, node: int) -> Iterator[None]:
    play.machines.signal(node, signal.SIGSTOP, lambda name: True)
    time.sleep(AWAY_S)
    play.machines.signal(node, signal.SIGCONT, lambda name: True)
    yield


@contextmanager
def _cable_out(play: Play, controller: Controller, node: int) -> Iterator[None]:
    with play.machines.unplugged(node):
        time.sleep(AWAY_S)
    yield


@contextmanager
def _disk_full(play: Play, controller: Controller, node: int) -> Iterator[None]:
    with play.machines.full(node, "/tmp", STATE):
        yield


@contextmanager
def _power_lost(play: Play, controller: Controller, node: int) -> Iterator[None]:
    play.machines.lose(node)
    try:
        yield
    finally:
        play.machines.boot(node)


FAULTS: dict[str, Fault] = {
    "controller interrupted": _sent(signal.SIGINT),
    "controller terminated": _sent(signal.SIGTERM),
    "controller killed": _sent(signal.SIGKILL),
    "rank killed": _rank(signal.SIGKILL),
    "rank stopped": _rank(signal.SIGSTOP),
    "sshd killed": _sshd_killed,
    "channel cut": _channel_cut,
    "host frozen": _frozen,
    "cable out": _cable_out,
    "disk full": _disk_full,
    "power lost": _power_lost,
}


def try_one(play: Play, fault: dict[str, Any]) -> dict[str, Any]:
    """Continue the run until the fault and what follows from it; return what is left."""
    controller = play.go_on()
    controller.await_lines(fault["lines"])
    time.sleep(fault["after_s"])
    missed = "" if controller.is_running else "the run had ended"
    if missed:
        status = controller.end()
    else:
        try:
            with FAULTS[fault["kind"]](play, controller, fault["node"]):
                status = controller.end()
        except Missed as error:
            missed, status = str(error), controller.end()
    time.sleep(HOST_SECONDS)
    result = {"status": status, "missed": missed, **found(play, controller), **left(play)}
    if missed and (status not in FINISHED or len(play.kept) != ITERATIONS + 1):
        result["error"] = f"failed without a fault: {controller.output}"
    return result


def found(play: Play, controller: Controller) -> dict[str, Any]:
    """Return the iterations on disk, and those that were and are no longer."""
    printed = {int(one) for one in re.findall(r"(?:iteration|warm-up) (\d+):", controller.output)}
    recorded = play.recorded()
    lost = sorted((play.kept | printed) - recorded)
    play.kept = recorded
    said = {"error": controller.output} if "Traceback" in controller.output else {}
    return {"recorded": len(recorded), "lost": lost, **said}


def conclude(play: Play) -> dict[str, Any]:
    """Continue the run to its end, without a fault."""
    controller = play.go_on()
    status = controller.end()
    time.sleep(HOST_SECONDS)
    result = found(play, controller)
    if status not in FINISHED or len(play.kept) != ITERATIONS + 1:
        result["error"] = f"not resumed to its end: {controller.output}"
    play.next_run()
    return {"status": status, **result, **left(play)}


def main() -> int:
    """Play the faults of a file."""
    play = Play()
    for fault in json.loads(Path(sys.argv[1]).read_text()):
        try:
            result = conclude(play) if fault["kind"] == "none" else try_one(play, fault)
        except Exception:
            result = {"error": traceback.format_exc()}
        print(json.dumps({"fault": fault, "found": result}), flush=True)
        if len(play.kept) > ITERATIONS:
            play.next_run()
        if any(result.get(key) for key in ("error", "processes", "files", "shaped")):
            play.repair()
    return 0


if __name__ == "__main__":
    sys.exit(main())
