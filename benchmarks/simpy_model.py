"""The graph of a simulated iteration as a plain SimPy model: what most people would write.

One process per task, which waits for the tasks before it, then works for its time or sends its
bytes. A link is shared evenly by its flows, and a flow gets the least of its links' shares: not
max-min fairness, but the same wherever a flow has only one busy link. Connections never start
slowly; `never_slow` takes that from the simulator, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator

import numpy as np
import simpy

from netbench.simulator import TransportProfile
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Timeline

Process = Generator[simpy.Event, object, None]


def never_slow(transport: TransportProfile) -> TransportProfile:
    """The transport without slow start: its first window holds everything."""
    return dataclasses.replace(transport, first_window_segments=10**12)


class Flow:
    """Bytes on their way across links, at `rate` bytes/s since `since_s`."""

    def __init__(self, env: simpy.Environment, size: float, links: list[Link]) -> None:
        self.env, self.left, self.links = env, size, links
        self.rate, self.since_s, self.version = 0.0, env.now, 0
        self.done = env.event()

    def update(self) -> None:
        """Settle what has been sent, and predict the end at the rate that it has now."""
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
    """Capacity in bytes/s, and the flows that share it (a dict, for its order)."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.flows: dict[Flow, None] = {}


def end_times(timeline: Timeline, fabric: Fabric) -> list[float]:
    """When every task of the graph ends, seconds."""
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


def last_end(timeline: Timeline, fabric: Fabric) -> float:
    """When the whole graph has ended, seconds."""
    return float(np.max(end_times(timeline, fabric)))
