"""Load changes of a tc configuration at given times.

The controller sends lines on stdin, and gets one line for each:

    {"clock": true}   answered with {"at_s": this node's monotonic clock}
    {"start_s": ...}  load every step when it is due, time_s after that; answered after each step
                      with {"late_s": ...}
    end of file       stop; what was loaded stays
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from netbench.network.remote.agent import state
from netbench.network.remote.agent.host import TOOL_S, AgentError, check_batch, tool_environment
from netbench.network.remote.agent.messages import Request
from netbench.network.shaping.batch import refusal_text

NEAR_S = 0.01
"""Longest single wait before a step, seconds; a timer is late by up to 50 us."""


def replay(request: Request) -> Any:
    """Serve {owner, interface, steps: [[time_s, `tc -batch` text], ...]}, steps in order of time.

    Stops with an error when the lease has ended or was taken over.
    """
    with state.locked():
        state.caller_state(request)
    for _, text in request["steps"]:
        check_batch(text, request["interface"])
    steps = [(time_s, {"": text}) for time_s, text in request["steps"]]
    check = partial(state.caller_state, request)
    return {"loaded": serve_steps(steps, lambda _: start_batch(), check)}


def start_batch() -> subprocess.Popen[bytes]:
    """Start a `tc -batch` that loads each line as it comes."""
    pipe = subprocess.PIPE
    command = ["tc", "-j", "-batch", "-"]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=tool_environment())


def serve_steps(
    steps: list[tuple[float, dict[str, str]]],
    start: Callable[[str], subprocess.Popen[bytes]],
    check: Callable[[], object] = lambda: None,
) -> int:
    """Serve the lines of stdin that the module describes; return the number of steps loaded.

    steps: time_s, and what each place loads then, by its name ("" for the only place).
    start: calls `start_batch` in a place, once, so that a step only has to be written to it.
    check: called before each step; raises AgentError when nothing may be loaded any more.
    """
    places = dict.fromkeys(place for _, texts in steps for place in texts)
    with ExitStack() as processes:
        batches = {place: Batch(processes.enter_context(start(place))) for place in places}
        for batch in batches.values():
            batch.feed("")
        _await_all("at the start", batches)
        while line := sys.stdin.readline():
            order = json.loads(line)
            if "start_s" in order:
                return _load_steps(order["start_s"], steps, batches, check)
            print(json.dumps({"at_s": time.monotonic()}), flush=True)
    return 0


def _load_steps(
    start_s: float,
    steps: list[tuple[float, dict[str, str]]],
    batches: dict[str, Batch],
    check: Callable[[], object],
) -> int:
    for number, (time_s, texts) in enumerate(steps):
        if not _wait_until(start_s + time_s):
            return number
        check()
        for place, text in texts.items():
            batches[place].feed(text)
        _await_all(f"at {time_s:g} s", {place: batches[place] for place in texts})
        late_s = time.monotonic() - (start_s + time_s)
        print(json.dumps({"late_s": late_s}), flush=True)
    return len(steps)


def _await_all(when: str, batches: dict[str, Batch]) -> None:
    for place, batch in batches.items():
        if why := batch.refusal():
            raise AgentError(f"{place}{', ' if place else ''}{when}: {why}")


class Batch:
    """A persistent `tc -batch`. A query ends every text; its answer is one line, even if `[]`."""

    QUERY = "qdisc show dev lo\n"

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._given = ""

    def feed(self, text: str) -> None:
        """Give tc a text, without waiting until it is loaded."""
        self._given += text + self.QUERY
        with suppress(BrokenPipeError):  # `refusal` says why it has ended
            self._stdin.write((text + self.QUERY).encode())
            self._stdin.flush()

    def refusal(self) -> str:
        """Wait until the text is loaded; return why it was not, or ""."""
        answer = b""
        while not answer.endswith(b"\n"):
            if not select.select([self._stdout], [], [], TOOL_S)[0]:
                self._process.kill()
                return f"tc did not end within {TOOL_S:g} s"
            part = os.read(self._stdout.fileno(), 4096)
            if not part:
                return refusal_text(self._given, self._stderr.read().decode(errors="replace"))
            answer += part
        return ""


def _wait_until(at_s: float) -> bool:
    """Wait until `at_s` of the monotonic clock; return False at once if the controller goes."""
    while (left_s := at_s - time.monotonic()) > 0:
        # The kernel lets `select` be late by a thousandth of its timeout.
        wait_s = left_s if left_s < NEAR_S else left_s / 2
        if select.select([sys.stdin], [], [], wait_s)[0]:
            return False
    return True
