"""Spot machines that go and come: the goodput of `hivemind-swarm` and `diloco`, and what it costs.

A peer that goes while the others compute takes its samples of the round with it. If it goes while
they average, they average again without it. A peer that comes loads parameters and moments over the
fastest connection to a member. A machine is paid for while it is there.

- `hivemind-swarm`: whoever is left accumulates what is missing, and a new peer helps at once.
- `diloco`: a round is `Plan.local_steps` inner steps and an outer one. A rank takes as many samples
  per step as without interruptions. A new one waits for the next round.
"""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netbench.cost.bill import Bill, per_million_usd
from netbench.plan.checks import check_churn
from netbench.plan.model import Layout, Plan
from netbench.scenario.churn import COME, ChurnEvent, load_s
from netbench.scenario.model import Prices, Scenario
from netbench.systems.rounds import peer_rates, time_round


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


def train(plan: Plan, events: Sequence[ChurnEvent], seconds: float) -> Outcome:
    """Simulate `seconds` of training of a `hivemind-swarm` or `diloco` plan.

    All machines are there at first. Raises PlanError as `check_churn` does.
    """
    check_churn(plan)
    kind = _Diloco if plan.local_steps else _Swarm
    return kind(plan, events, seconds).run()


def interrupted_usd(
    scenario: Scenario, prices: Prices | None, priced: Bill, outcome: Outcome
) -> float:
    """Return $ per million samples: machines while they are there, traffic by samples.

    scenario: with the plan's machines. prices: None = those of the scenario.
    """
    prices = prices or scenario.prices
    assert prices is not None  # `bill` raises without
    spent = sum(
        prices.places[node.region].spot_usd[node.device] * seconds / 3600
        for node, seconds in zip(scenario.nodes, outcome.machine_s, strict=True)
    )
    hourly = spent / (outcome.seconds / 3600)
    traffic = per_million_usd(priced.traffic_usd, priced.samples_per_s)
    return per_million_usd(hourly, outcome.goodput) + traffic


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
        """Seconds in which a new peer loads the state."""
        return load_s(self._plan.network, self._plan.stages[0].parameters, self._members, peer)


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
