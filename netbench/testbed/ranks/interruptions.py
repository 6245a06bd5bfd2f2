"""Machines that go and come while a plan runs (`Plan.churn`): their ranks end, and start again.

The trace begins with the first iteration. Between iterations, in which ranks start and connect, it
stands still. A machine that has come back takes part from the next iteration on, or from the next
round if a round has several, and not before it would have loaded the state over the network.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from netbench.plan.model import Plan
from netbench.scenario.churn import COME, GO, ChurnEvent, load_s
from netbench.testbed.ranks.elastic import PeerPool


class Interruptions:
    """The trace of a plan, and how far it has run."""

    def __init__(self, plan: Plan) -> None:
        self._events = with_loading(plan)
        self._going = deque(event for event in self._events if event.event == GO)
        self._round = max(1, plan.local_steps)
        self._elapsed_s = 0.0

    def readmit(self, pool: PeerPool, iteration: int) -> None:
        """Let machines that are back join before an iteration, if a round begins with it."""
        if iteration % self._round:
            return
        away: set[int] = set()
        for event in self._events:
            if event.time_s <= self._elapsed_s:
                (away.add if event.event == GO else away.discard)(event.node)
        pool.readmit(away)

    @contextmanager
    def during(self, pool: PeerPool, start_at_s: float) -> Iterator[None]:
        """End ranks of machines that go while an iteration runs, which starts at `start_at_s`."""
        over = threading.Event()
        begin_s = start_at_s - self._elapsed_s

        def end() -> None:
            while self._going:
                wait_s = begin_s + self._going[0].time_s - time.monotonic()
                if over.wait(max(0.0, wait_s)):
                    return
                pool.interrupt(self._going.popleft().node)

        thread = threading.Thread(target=end, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def advance(self, iteration_s: float) -> None:
        """Continue after an iteration."""
        self._elapsed_s += iteration_s


def with_loading(plan: Plan) -> tuple[ChurnEvent, ...]:
    """Return a plan's trace in which machines come once they have the state.

    A machine that goes before that has not come.
    """
    there, found = set(range(len(plan.node_names))), list[ChurnEvent]()
    parameters = plan.stages[0].parameters
    for index, event in enumerate(plan.churn):
        if event.event == GO:
            found.append(event)
            there.discard(event.node)
            continue
        ready_s = event.time_s + load_s(plan.network, parameters, there, event.node)
        there.add(event.node)
        if not _goes_before(plan.churn[index + 1 :], event.node, ready_s):
            found.append(ChurnEvent(time_s=ready_s, node=event.node, event=COME))
    return tuple(sorted(found, key=lambda event: event.time_s))


def _goes_before(events: Sequence[ChurnEvent], node: int, time_s: float) -> bool:
    own = (event for event in events if event.node == node)
    return next((event.time_s <= time_s for event in own), False)
