"""Play a trace on machines: every node loads its steps at times of one clock, the controller's.

No clock is set and none has to be right: how far each node's is from the controller's is measured
over the channel, as NTP does, to half of the shortest round trip of a few.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from netbench.errors import NetworkError
from netbench.network.command import all_or_error, at_once
from netbench.network.trace import Step

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
) -> dict[int, Played]:
    """Play every node's steps, over a channel to its agent that has been given them.

    started: called with the start by this process's monotonic clock, before it. Blocks until the
    last step is loaded. Raises NetworkError that lists every node that failed.
    """
    clocks = all_or_error(
        at_once({n: partial(_clock, channel) for n, channel in channels.items()}, READY_S),
        "reading the nodes' clocks",
    )
    start_s = time.monotonic() + START_MARGIN_S
    started(start_s)
    last_s = max((step.time_s for node in channels for step in steps[node]), default=0.0)
    plays = {
        node: partial(_play, channel, start_s + clocks[node][0], len(steps[node]))
        for node, channel in channels.items()
    }
    lateness = all_or_error(at_once(plays, START_MARGIN_S + last_s + GRACE_S), "playing the trace")
    return {
        node: Played(late_s=late_s, clock_error_s=clocks[node][1])
        for node, late_s in lateness.items()
    }


def _clock(channel: Channel) -> tuple[float, float]:
    """(node's monotonic clock - ours, half of the round trip it was read over), seconds."""
    readings = []
    for _ in range(NUM_CLOCK_READINGS):
        sent_s = time.monotonic()
        channel.send(json.dumps({"clock": True}))
        answer = _answer(channel)
        back_s = time.monotonic()
        readings.append(((back_s - sent_s) / 2, answer["at_s"] - (sent_s + back_s) / 2))
    error_s, offset_s = min(readings)
    return offset_s, error_s


def _play(channel: Channel, start_s: float, num_steps: int) -> tuple[float, ...]:
    channel.send(json.dumps({"start_s": start_s}))
    return tuple(float(_answer(channel)["late_s"]) for _ in range(num_steps))


def _answer(channel: Channel) -> dict[str, Any]:
    line = channel.receive()
    if line is None:
        raise NetworkError("the node's agent has gone")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise NetworkError(answer["error"])
    return answer
