"""Simulate the graph of an iteration with a plain SimPy model, as a peer of the simulator.

Each task is a process that waits for its predecessors, then works for its time or sends its bytes.
The flows of a link share it evenly, and a flow gets the least rate of its links. That is not
max-min fairness, but equal to it where a flow has only one busy link. Connections have no slow
start; `never_slow` removes it from the simulator too.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import simpy

from netbench.simulator import TransportProfile
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import TaskTimeline

Process = Generator[simpy.Event, object, None]


def never_slow(transport: TransportProfile) -> TransportProfile:
    """Return the transport without slow start: its first window holds everything."""
    return transport.model_copy(update={"first_window_segments": 10**12})


class Flow:
    """Bytes in flight across links, at `rate` bytes/s since `since_s`."""

    def __init__(self, env: simpy.Environment, size: float, links: list[Link]) -> None:
        self.env, self.left, self.links = env, size, links
        self.rate, self.since_s, self.version = 0.0, env.now, 0
        self.done = env.event()

    def update(self) -> None:
        """Subtract the bytes sent so far, and predict the end at the present rate."""
        rate = min(link.capacity / len(link.flows) for link in self.links)
        if rate == self.rate:
            return
        self.left -= self.rate * (self.env.now - self.since_s)
        self.rate, self.since_s = rate, self.env.now
        self.version += 1
        self.env.process(self._end(self.version, max(0.0, self.left) / rate))

    def _end(self, version: int, wait_s: float) -> Process:
        yield self.env.timeout(wait_s)
        if version != self.version:
            return
        for link in self.links:
            del link.flows[self]
        for flow in {flow: None for link in self.links for flow in link.flows}:
            flow.update()
        self.done.succeed()


class Link:
    """A capacity in bytes/s and the flows that share it (an ordered dict)."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.flows: dict[Flow, None] = {}


def end_times(timeline: TaskTimeline, fabric: Fabric) -> list[float]:
    """Return when every task of the graph ends, seconds."""
    env = simpy.Environment()
    network = fabric.network()
    links = [Link(float(capacity)) for capacity in network.capacity]
    routes = [[links[hop] for hop in hops if hop >= 0] for hops in network.hops.tolist()]
    count = len(timeline.amount)
    before: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    edges = (timeline.before.tolist(), timeline.after.tolist(), timeline.lag_s.tolist())
    for first, later, lag_s in zip(*edges, strict=True):
        before[later].append((first, lag_s))
    done = [env.event() for _ in range(count)]
    ends = [float("nan")] * count
    amounts, paths = timeline.amount.tolist(), timeline.path.tolist()

    def task(index: int) -> Process:
        ready_s = 0.0
        for first, lag_s in before[index]:
            if not done[first].processed:
                yield done[first]
            ready_s = max(ready_s, ends[first] + lag_s)
        if ready_s > env.now:
            yield env.timeout(ready_s - env.now)
        if amounts[index] > 0 and paths[index] < 0:
            yield env.timeout(amounts[index])
        elif amounts[index] > 0 and routes[paths[index]]:
            flow = Flow(env, amounts[index], routes[paths[index]])
            for link in flow.links:
                link.flows[flow] = None
            for other in {other: None for link in flow.links for other in link.flows}:
                other.update()
            yield flow.done
        ends[index] = env.now
        done[index].succeed()

    for index in range(count):
        env.process(task(index))
    env.run()
    return ends


def last_end(timeline: TaskTimeline, fabric: Fabric) -> float:
    """Return when the whole graph ends, seconds."""
    return float(np.max(end_times(timeline, fabric)))
