"""Play a trace on hosts: every node loads its steps at times of the controller's clock.

Clocks need not be synchronised. The offset of each node's clock is measured over its channel, as
NTP does, with an error of half the shortest of several round trips.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from netbench.errors import NetbenchError, NetworkError
from netbench.network.nodes import Channel, at_once, split
from netbench.network.traces.trace import ReplayStep
from netbench.units import counted, format_time

NUM_CLOCK_READINGS = 8
READY_S = 60.0
"""Deadline for every node to have its steps and to report its clock, seconds."""

START_MARGIN_S = 1.0
"""Time between the start order and the first step, seconds: more than any round trip."""

GRACE_S = 30.0
"""Deadline for reports after the last step was due, seconds."""

PRECISION_S = 1e-3
"""Promised precision of a step, seconds. Later steps are reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """Timing of a node's steps.

    late_s: per step, from when it was due until it was loaded, by the node's clock. clock_error_s:
    error of the measured offset of that clock.
    """

    late_s: tuple[float, ...]
    clock_error_s: float

    @property
    def worst_s(self) -> float:
        """Upper bound on the time between when a step was due and when it was loaded."""
        return max(self.late_s, default=0.0) + self.clock_error_s


def play(
    channels: Mapping[int, Channel],
    steps: Mapping[int, Sequence[ReplayStep]],
    started: Callable[[float], None] = lambda at_s: None,
) -> dict[int, Played | Exception]:
    """Play every node's steps over a channel to its agent, which has them already.

    started: called before the start, with its time by this process's monotonic clock. Blocks until
    the last step is loaded. If a node fails, all stop where they are, the channels are closed, and
    the result has only the failed nodes with their errors.
    """
    readings = {node: partial(_clock, channel) for node, channel in channels.items()}
    clocks, failures = split(at_once(readings, READY_S))
    if failures:
        return {**failures}
    start_s = time.monotonic() + START_MARGIN_S
    started(start_s)
    last_s = max((step.time_s for node in channels for step in steps[node]), default=0.0)
    lock, stopping = threading.Lock(), threading.Event()

    def play_one(node: int) -> Played:
        offset_s, error_s = clocks[node]
        try:
            _send(channels[node], {"start_s": start_s + offset_s})
            late_s = tuple(float(_answer(channels[node])["late_s"]) for _ in steps[node])
        except Exception as error:
            with lock:
                if isinstance(error, _Gone) and stopping.is_set():
                    raise _Stopped from None
                stopping.set()
            for channel in channels.values():
                channel.close()
            raise
        return Played(late_s=late_s, clock_error_s=error_s)

    plays = {node: partial(play_one, node) for node in channels}
    results, failures = split(at_once(plays, START_MARGIN_S + last_s + GRACE_S))
    if failures:
        return {n: error for n, error in failures.items() if not isinstance(error, _Stopped)}
    return {**results}


class Playing:
    """A trace that is played in a thread."""

    def __init__(
        self, channels: Mapping[int, Channel], steps: Mapping[int, Sequence[ReplayStep]]
    ) -> None:
        self._times_s = sorted({step.time_s for node in channels for step in steps[node]})
        self._start_s = math.inf
        self._ended: Future[dict[int, Played | Exception]] = Future()

        def run() -> None:
            try:
                self._ended.set_result(play(channels, steps, self._set_start))
            except BaseException as error:
                self._ended.set_exception(error)

        threading.Thread(target=run, daemon=True).start()

    def _set_start(self, at_s: float) -> None:
        self._start_s = at_s

    def wait(self, seconds: float) -> bool:
        """Wait for the end, up to `seconds`; return whether it was reached."""
        return bool(futures.wait([self._ended], seconds).done)

    def result(self) -> dict[int, Played | Exception]:
        """Return what `play` returned. Blocks."""
        return self._ended.result()

    @property
    def progress(self) -> str:
        return progress(self._times_s, time.monotonic() - self._start_s)


def progress(times_s: Sequence[float], elapsed_s: float) -> str:
    """Describe the progress in a trace. times_s: of its changes, in order."""
    done = sum(time_s <= elapsed_s for time_s in times_s)
    text = f"{done} of {counted(len(times_s), 'change')}"
    if done == len(times_s) or math.isinf(elapsed_s):
        return text
    next_s = times_s[done]
    return f"{text}; the next one at {format_time(next_s)}, in {next_s - elapsed_s:.0f} s"


class _Gone(NetworkError):
    """The agent's end of the channel was closed."""


class _Stopped(NetworkError):
    """This node was stopped because another one failed."""


def _clock(channel: Channel) -> tuple[float, float]:
    """Return (node's monotonic clock - ours, error: half of the round trip), seconds."""
    readings = []
    for _ in range(NUM_CLOCK_READINGS):
        sent_s = time.monotonic()
        _send(channel, {"clock": True})
        answer = _answer(channel)
        back_s = time.monotonic()
        readings.append(((back_s - sent_s) / 2, answer["at_s"] - (sent_s + back_s) / 2))
    error_s, offset_s = min(readings)
    return offset_s, error_s


def _send(channel: Channel, order: Mapping[str, Any]) -> None:
    try:
        channel.send(json.dumps(order))
    except NetbenchError:
        _answer(channel)  # raises the error of an agent that refused
        raise


def _answer(channel: Channel) -> dict[str, Any]:
    line = channel.receive()
    if line is None:
        raise _Gone("its agent has gone: the host, its connection or the process was lost")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise NetworkError(answer["error"])
    return answer
