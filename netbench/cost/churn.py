"""Spot machines that go and come: the goodput of `hivemind-swarm` and `diloco`, and what it costs.

A peer that goes while the others compute takes its samples of the round with it. If it goes while
they average, they average again without it. A peer that comes loads parameters and moments over the
fastest connection to a member. A machine is paid for while it is there.

- `hivemind-swarm`: whoever is left accumulates what is missing, and a new peer helps at once.
- `diloco`: a round is `Plan.local_steps` inner steps and an outer one. A rank takes as many samples
  per step as without interruptions. A new one waits for the next round.
"""

import abc
import csv
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from netbench.errors import PlanError
from netbench.plan.model import Layout, Plan
from netbench.systems import system_of
from netbench.systems.rounds import peer_rates, time_round

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Training under churn. samples: in finished rounds. num_rounds: finished. num_repeated:
    averaged again. machine_s: seconds that each machine was there."""

    seconds: float
    samples: float
    num_rounds: int
    num_repeated: int
    machine_s: tuple[float, ...]

    @property
    def goodput(self) -> float:
        """Samples per second that reached the model."""
        return self.samples / self.seconds


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
    """Read a trace: a CSV with `COLUMNS`, in order of time. Raises PlanError naming the line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
            events = [
                ChurnEvent(time_s=float(row["time_s"]), node=int(row["node"]), event=row["event"])
                for row in rows
            ]
    except (OSError, KeyError, ValueError) as error:
        raise PlanError(
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
        elif event.time_s < last_s:
            wrong = f"{event.time_s:g} s is before the line above"
        if wrong:
            raise PlanError(f"{path}:{line}: {wrong}")
        there[event.node], last_s = event.event == COME, event.time_s
    return tuple(events)


def train(plan: Plan, events: Sequence[ChurnEvent], seconds: float) -> Outcome:
    """Simulate `seconds` of training of a `hivemind-swarm` or `diloco` plan.

    All machines are there at first. Raises PlanError for another system, or several devices on a
    machine.
    """
    if len(plan.placement) != len(plan.node_names):
        raise PlanError(
            f"{plan.variant} has {len(plan.placement)} ranks on {len(plan.node_names)} machines; "
            "interruptions need one device per machine"
        )
    if system_of(plan).has_peers and not plan.staleness:
        return _Swarm(plan, events, seconds).run()
    if plan.local_steps:
        return _Diloco(plan, events, seconds).run()
    raise PlanError(
        f"{plan.variant} does not run with machines that go and come; use hivemind-swarm or diloco"
    )


class _Training(abc.ABC):
    """The state of a simulation. now_s: time. members: that are there and have the state.
    joining: when each new one has it. done: samples of this round, of members that take part."""

    def __init__(self, plan: Plan, events: Sequence[ChurnEvent], seconds: float) -> None:
        self._plan, self._end_s = plan, seconds
        self._events = list(reversed([event for event in events if event.time_s < seconds]))
        self._now_s = 0.0
        self._members = set(range(plan.layout.num_ranks))
        self._joining: dict[int, float] = {}
        self._done = dict.fromkeys(self._members, 0.0)
        self._since_s = dict.fromkeys(self._members, 0.0)
        self._machine_s = dict.fromkeys(self._members, 0.0)
        self._average_s = functools.cache(self._average_of)

    @abc.abstractmethod
    def _compute(self) -> bool:
        """Compute until members average; False: time is over."""

    @abc.abstractmethod
    def _average_of(self, members: frozenset[int]) -> float:
        """Return the seconds in which members average and update."""

    def run(self) -> Outcome:
        samples, num_rounds, num_repeated = 0.0, 0, 0
        while self._now_s < self._end_s:
            if not self._compute():
                break
            averaged = self._average()
            while averaged is not None and not averaged:
                num_repeated += 1
                averaged = self._average()
            if averaged is None:
                break
            samples += sum(self._done.values())
            num_rounds += 1
            self._done = dict.fromkeys(self._members, 0.0)
        for peer, since_s in self._since_s.items():
            self._machine_s[peer] += self._end_s - since_s
        return Outcome(
            seconds=self._end_s,
            samples=samples,
            num_rounds=num_rounds,
            num_repeated=num_repeated,
            machine_s=tuple(self._machine_s[peer] for peer in sorted(self._machine_s)),
        )

    def _average(self) -> bool | None:
        """Average; False: a member went, so again. None: time is over, or nobody is left."""
        members = frozenset(self._done)
        if not members:
            return None
        end_s = self._now_s + self._average_s(members)
        while self._next_s() < min(end_s, self._end_s):
            self._now_s = self._next_s()
            self._take_events()
            if members - self._done.keys():
                return False
        self._now_s = min(end_s, self._end_s)
        return True if end_s < self._end_s else None

    def _next_s(self) -> float:
        """The time of the next event, or when the next new peer is ready."""
        times = [event.time_s for event in self._events[-1:]]
        return min([*times, *self._joining.values()], default=np.inf)

    def _take_events(self) -> None:
        for peer in [peer for peer, at_s in self._joining.items() if at_s <= self._now_s]:
            del self._joining[peer]
            self._members.add(peer)
        while self._events and self._events[-1].time_s <= self._now_s:
            event = self._events.pop()
            if event.event == COME:
                self._since_s[event.node] = event.time_s
                self._joining[event.node] = event.time_s + self._load_s(event.node)
            else:
                self._machine_s[event.node] += event.time_s - self._since_s.pop(event.node)
                self._joining.pop(event.node, None)
                self._members.discard(event.node)
                self._done.pop(event.node, None)

    def _load_s(self, peer: int) -> float:
        """Seconds in which a new peer loads the state; none if there is no member to ask."""
        state_bits = 8.0 * STATE_BYTES * self._plan.stages[0].parameters
        links = [self._plan.network.link(other, peer) for other in self._members if other != peer]
        return min(
            (link.one_way_delay_s * 2 + state_bits / link.bandwidth_bps for link in links),
            default=0.0,
        )


class _Swarm(_Training):
    """Peers of `hivemind-swarm`."""

    def _compute(self) -> bool:
        """Accumulate a round's samples, at least for the matchmaking time."""
        begin_s, rates = self._now_s, peer_rates(self._plan)
        while True:
            missing = self._plan.workload.batch - sum(self._done.values())
            rate = sum(float(rates[peer]) for peer in self._members)
            ready_s = self._now_s + max(0.0, missing) / rate if rate else np.inf
            ready_s = max(ready_s, begin_s + self._plan.matchmaking_s)
            until_s = min(ready_s, self._next_s(), self._end_s)
            for peer in self._members:
                self._done[peer] = self._done.get(peer, 0.0)
                self._done[peer] += float(rates[peer]) * (until_s - self._now_s)
            self._now_s = until_s
            if until_s == self._end_s:
                return False
            if until_s == ready_s and rate:
                return True
            self._take_events()

    def _average_of(self, members: frozenset[int]) -> float:
        found = time_round(_of_members(self._plan, sorted(members)))
        return found.average_s + found.update_s


class _Diloco(_Training):
    """Ranks of `diloco`, as fast as the slowest of all."""

    def _compute(self) -> bool:
        """Take the inner steps of a round. Ranks that are there from its begin take part in it."""
        plan = self._plan
        round_s = plan.local_steps * self._inner_s
        samples = plan.local_steps * plan.num_micro_batches * plan.workload.micro_batch
        while True:
            self._done = dict.fromkeys(self._members, float(samples))
            begin_s = self._now_s
            while self._done or not self._members:
                ready_s = begin_s + round_s if self._done else np.inf
                self._now_s = min(ready_s, self._next_s(), self._end_s)
                if self._now_s == self._end_s:
                    return False
                if self._now_s == ready_s:
                    return True
                self._take_events()

    def _average_of(self, members: frozenset[int]) -> float:
        # numba: only where an iteration is simulated
        from netbench.simulator import simulate

        plan = _of_members(self._plan, sorted(members))
        return (simulate(plan).iteration_s - self._inner_s) * plan.local_steps

    @functools.cached_property
    def _inner_s(self) -> float:
        (stage,) = self._plan.at_slowest().stages
        passes_s = self._plan.num_micro_batches * (stage.forward_s + stage.backward_s)
        return passes_s + stage.optimizer_s


def _of_members(plan: Plan, members: Sequence[int]) -> Plan:
    """The plan of some of its ranks."""
    return dataclasses.replace(
        plan,
        layout=Layout(dp=len(members)),
        placement=tuple(plan.placement[peer] for peer in members),
    )
