"""Play a trace on machines: every node loads its steps at times of one clock, the controller's.

No clock is set and none has to be right: how far each node's is from the controller's is measured
over the channel, as NTP does, to half of the shortest round trip of a few.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from netbench.errors import NetbenchError, NetworkError
from netbench.network.command import at_once
from netbench.network.trace import Step
from netbench.units import counted, format_time

NUM_CLOCK_READINGS = 8
READY_S = 60.0
"""For every node to have its steps and to have been asked for its clock, seconds."""

START_MARGIN_S = 1.0
"""From the order to start until the first step may be due: more than any round trip."""

GRACE_S = 30.0
"""After the last step was due, for nodes to report, seconds."""

PRECISION_S = 1e-3
"""What is promised: later than this is said."""


class Channel(Protocol):
    """JSON lines to and from an agent's `replay`."""

    def send(self, line: str) -> None:
        """Send one line (without its newline)."""

    def receive(self) -> str | None:
        """The next line, blocking; None when the agent has gone."""

    def close(self) -> None:
        """Drop the channel, from any thread: `receive` ends, and the agent stops."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """How a node kept time. late_s: per step, from when it was due until it was loaded, by the
    node's clock. clock_error_s: how far off the node's idea of the common clock may be.
    """

    late_s: tuple[float, ...]
    clock_error_s: float

    @property
    def worst_s(self) -> float:
        """How far from its time a step may have been loaded."""
        return max(self.late_s, default=0.0) + self.clock_error_s


def play(
    channels: Mapping[int, Channel],
    steps: Mapping[int, Sequence[Step]],
    started: Callable[[float], None] = lambda at_s: None,
) -> dict[int, Played | Exception]:
    """Play every node's steps, over a channel to its agent that has been given them.

    started: called with the start by this process's monotonic clock, before it. Blocks until the
    last step is loaded, or a node fails: then all stop where they are and the channels are closed,
    and the answer has only those that failed, with why.
    """
    found = at_once({n: partial(_clock, channel) for n, channel in channels.items()}, READY_S)
    failures: dict[int, Played | Exception] = {
        node: clock for node, clock in found.items() if isinstance(clock, Exception)
    }
    if failures:
        return failures
    clocks = {node: clock for node, clock in found.items() if not isinstance(clock, Exception)}
    start_s = time.monotonic() + START_MARGIN_S
    started(start_s)
    last_s = max((step.time_s for node in channels for step in steps[node]), default=0.0)
    lock, stopping = threading.Lock(), threading.Event()

    def play_one(node: int) -> Played:
        offset_s, error_s = clocks[node]
        try:
            late_s = _play(channels[node], start_s + offset_s, len(steps[node]))
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
    results = at_once(plays, START_MARGIN_S + last_s + GRACE_S)
    if any(isinstance(result, Exception) for result in results.values()):
        wanted = {n: r for n, r in results.items() if isinstance(r, Exception)}
        return {n: r for n, r in wanted.items() if not isinstance(r, _Stopped)}
    return dict(results)


class Playing:
    """A trace that is played in a thread of its own."""

    def __init__(
        self, channels: Mapping[int, Channel], steps: Mapping[int, Sequence[Step]]
    ) -> None:
        self._times_s = sorted({step.time_s for node in channels for step in steps[node]})
        self._start_s = math.inf
        self._ended: Future[dict[int, Played | Exception]] = Future()
        threading.Thread(target=self._play, args=(channels, steps), daemon=True).start()

    def _play(self, channels: Mapping[int, Channel], steps: Mapping[int, Sequence[Step]]) -> None:
        try:
            self._ended.set_result(play(channels, steps, self._set_start))
        except BaseException as error:
            self._ended.set_exception(error)

    def _set_start(self, at_s: float) -> None:
        self._start_s = at_s

    def wait(self, seconds: float) -> bool:
        """Whether it has ended by then; no longer than it takes."""
        return bool(futures.wait([self._ended], seconds).done)

    def result(self) -> dict[int, Played | Exception]:
        """See `play`. Blocks."""
        return self._ended.result()

    @property
    def progress(self) -> str:
        """Where in the trace it is, in words."""
        return progress(self._times_s, time.monotonic() - self._start_s)


def progress(times_s: Sequence[float], elapsed_s: float) -> str:
    """Where in a trace one is, in words. times_s: of its changes, in order."""
    done = sum(time_s <= elapsed_s for time_s in times_s)
    text = f"{done} of {counted(len(times_s), 'change')}"
    if done == len(times_s) or math.isinf(elapsed_s):
        return text
    next_s = times_s[done]
    return f"{text}; the next one at {format_time(next_s)}, in {next_s - elapsed_s:.0f} s"


class _Gone(NetworkError):
    """The agent's end of a channel is closed."""


class _Stopped(NetworkError):
    """Of a node that did nothing wrong."""


def _clock(channel: Channel) -> tuple[float, float]:
    """(node's monotonic clock - ours, half of the round trip it was read over), seconds."""
    readings = []
    for _ in range(NUM_CLOCK_READINGS):
        sent_s = time.monotonic()
        _send(channel, {"clock": True})
        answer = _answer(channel)
        back_s = time.monotonic()
        readings.append(((back_s - sent_s) / 2, answer["at_s"] - (sent_s + back_s) / 2))
    error_s, offset_s = min(readings)
    return offset_s, error_s


def _play(channel: Channel, start_s: float, num_steps: int) -> tuple[float, ...]:
    _send(channel, {"start_s": start_s})
    return tuple(float(_answer(channel)["late_s"]) for _ in range(num_steps))


def _send(channel: Channel, order: Mapping[str, Any]) -> None:
    try:
        channel.send(json.dumps(order))
    except NetbenchError:
        _answer(channel)  # one that refused has said why
        raise


def _answer(channel: Channel) -> dict[str, Any]:
    line = channel.receive()
    if line is None:
        raise _Gone("its agent has gone: the host, its connection or the process was lost")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise NetworkError(answer["error"])
    return answer
