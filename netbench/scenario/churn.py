"""Machines that go and come, e.g. on the spot market: traces, recorded or drawn.

`netbench.cost.churn` simulates training under a trace. `netbench.testbed.ranks.interruptions`
emulates it, with plans that have one (`Plan.churn`).
"""

import csv
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from netbench.errors import ScenarioError
from netbench.scenario.model import Network

STATE_BYTES = 12
"""Bytes per parameter that a new peer loads: weights and two moments of Adam, in fp32."""

GO, COME = "go", "come"
COLUMNS = ("time_s", "node", "event")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChurnEvent:
    """A machine goes or comes. node: index in the order of the scenario. event: `GO` or `COME`."""

    time_s: float
    node: int
    event: str


def drawn_trace(
    num_nodes: int, seconds: float, *, per_hour: float, away_s: float, seed: int
) -> tuple[ChurnEvent, ...]:
    """Return a trace of `seconds`: each machine goes `per_hour` times per hour that it is there,
    and stays away for `away_s` on average, both exponentially distributed."""
    random, events = np.random.default_rng(seed), []
    for node in range(num_nodes):
        now_s = 0.0
        for event, mean_s in itertools.cycle(((GO, 3600 / per_hour), (COME, away_s))):
            now_s += random.exponential(mean_s)
            if now_s >= seconds:
                break
            events.append(ChurnEvent(time_s=now_s, node=node, event=event))
    return tuple(sorted(events, key=lambda event: (event.time_s, event.node)))


def read_trace(path: Path, num_nodes: int) -> tuple[ChurnEvent, ...]:
    """Read a trace: a CSV with `COLUMNS`, by time. Raises ScenarioError naming the line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
            events = [
                ChurnEvent(time_s=float(row["time_s"]), node=int(row["node"]), event=row["event"])
                for row in rows
            ]
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ScenarioError(
            f"{path}: is not a churn trace ({error}); expected columns {', '.join(COLUMNS)}"
        ) from None
    there, last_s = [True] * num_nodes, 0.0
    for line, event in enumerate(events, start=2):
        wrong = ""
        if not 0 <= event.node < num_nodes:
            wrong = f"node is {event.node}; expected 0 to {num_nodes - 1}"
        elif event.event not in (GO, COME) or there[event.node] != (event.event == GO):
            where = "there" if there[event.node] else "away"
            wrong = f"{event.event} of node {event.node}, which is {where}"
        elif not last_s <= event.time_s < np.inf:
            wrong = f"{event.time_s:g} s is before the line above"
        if wrong:
            raise ScenarioError(f"{path}:{line}: {wrong}")
        there[event.node], last_s = event.event == COME, event.time_s
    return tuple(events)


def trace_text(events: Iterable[ChurnEvent]) -> str:
    """Return a trace as `read_trace` reads it."""
    lines = [f"{event.time_s:.3f},{event.node},{event.event}" for event in events]
    return "\n".join([",".join(COLUMNS), *lines]) + "\n"


def load_s(network: Network, parameters: float, members: Collection[int], node: int) -> float:
    """Return the seconds in which a new machine loads the state, over the fastest connection to a
    member; 0 if there is none to ask."""
    links = [network.link(other, node) for other in members if other != node]
    return (
        min(
            (link.one_way_delay_s * 2 + 8.0 * STATE_BYTES * parameters / link.bandwidth_bps)
            for link in links
        )
        if links
        else 0.0
    )


def machine_seconds(
    events: Sequence[ChurnEvent], num_nodes: int, seconds: float
) -> tuple[float, ...]:
    """Return for how long each machine is there in the first `seconds`. All are there at first."""
    total, since_s = [0.0] * num_nodes, dict.fromkeys(range(num_nodes), 0.0)
    for event in events:
        if event.time_s >= seconds:
            break
        if event.event == GO:
            total[event.node] += event.time_s - since_s.pop(event.node)
        else:
            since_s[event.node] = event.time_s
    for node, time_s in since_s.items():
        total[node] += seconds - time_s
    return tuple(total)
