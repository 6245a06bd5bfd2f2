"""Moments at which the ranks of a plan with churn end and start again, against a fake pool."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection
from typing import Any, cast

import pytest

from netbench.plan.build import build_plan
from netbench.plan.model import Plan
from netbench.scenario import load_scenario
from netbench.scenario.churn import COME, GO, ChurnEvent, load_s
from netbench.scenario.model import Setting
from netbench.testbed.ranks.interruptions import Interruptions, with_loading


def planned(*events: tuple[float, int, str], variant: str = "diloco-h4") -> Plan:
    plan = build_plan(load_scenario("example-two-labs"), variant, Setting(layers=8, batch=16))
    churn = tuple(ChurnEvent(time_s=t, node=node, event=event) for t, node, event in events)
    return dataclasses.replace(plan, churn=churn)


class Pool:
    """Remembers which nodes stayed away, and which went when."""

    def __init__(self) -> None:
        self.away: list[set[int]] = []
        self.gone: list[tuple[int, float]] = []

    def readmit(self, away: Collection[int]) -> None:
        self.away.append(set(away))

    def interrupt(self, node: int) -> None:
        self.gone.append((node, time.monotonic()))


def test_a_machine_is_back_once_it_has_the_state() -> None:
    plan = planned((10, 1, GO), (20, 1, COME))
    state_s = load_s(plan.network, plan.stages[0].parameters, {0, 2, 3}, 1)
    assert state_s > 0
    assert [event.time_s for event in with_loading(plan)] == [10, 20 + state_s]


def test_a_machine_that_goes_while_it_loads_was_not_back() -> None:
    plan = planned((10, 1, GO), (20, 1, COME), (20.001, 1, GO), (5000, 1, COME))
    assert [event.event for event in with_loading(plan)] == [GO, GO, COME]


def test_machines_join_before_a_round_only() -> None:
    """A round of `diloco-h4` has four iterations."""
    churn, pool = Interruptions(planned((10, 1, GO), (2000, 1, COME))), Pool()
    for iteration in range(9):
        churn.readmit(cast(Any, pool), iteration)
        churn.advance(5 if iteration < 4 else 1000)
    assert pool.away == [set(), {1}, set()]


def test_a_machine_stays_away_until_it_comes() -> None:
    churn, pool = Interruptions(planned((10, 1, GO), (2000, 1, COME), variant="diloco-h1")), Pool()
    for iteration in range(4):
        churn.readmit(cast(Any, pool), iteration)
        churn.advance(9 if iteration < 2 else 3000)
    assert pool.away == [set(), set(), {1}, set()]


def test_ranks_end_when_their_machine_goes() -> None:
    """By the clock of the trace, which has run for 100 s: one at once, one later, one not."""
    churn, pool = Interruptions(planned((100.1, 1, GO), (100.3, 2, GO), (200, 3, GO))), Pool()
    churn.advance(100)
    start_s = time.monotonic() + 0.1
    with churn.during(cast(Any, pool), start_s):
        time.sleep(0.7)
    assert [node for node, _ in pool.gone] == [1, 2]
    assert [at_s - start_s for _, at_s in pool.gone] == pytest.approx([0.1, 0.3], abs=0.15)
