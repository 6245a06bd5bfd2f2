"""Simulating plans in several processes."""

from __future__ import annotations

import os

import pytest

from netbench.errors import TestbedError
from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Plan
from netbench.scenario import load_scenario
from netbench.simulator import parallel, simulate
from netbench.simulator.parallel import LocalPool, time_plans

SMALL = load_scenario("gpt3-small")


def plans() -> tuple[Plan, ...]:
    sweep = SMALL.sweep
    return build_plans(
        SMALL,
        Choices(
            variants=sweep.variants,
            layers=[12],
            batch=[64],
            seeds=[1],
            networks=[network.name for network in sweep.networks],
        ),
    )


@pytest.mark.parametrize("num_workers", [1, 3])
def test_processes_change_nothing(num_workers: int) -> None:
    """In order, to the bit, more plans than any process gets at once."""
    found = [timing.iteration_s for timing in time_plans(plans(), LocalPool(num_workers))]
    assert len(set(found)) > 10
    assert found == [simulate(plan).iteration_s for plan in plans()]


def test_nothing_to_do_is_done() -> None:
    """No plans are left, as in a resumed run that had finished."""
    assert list(time_plans([])) == []


def test_a_dead_process_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises one error: no hang, no traceback of the pool."""
    parent = os.getpid()

    def die(plan: Plan) -> object:
        return simulate(plan) if os.getpid() == parent else os._exit(1)

    monkeypatch.setattr(parallel, "simulate", die)
    with pytest.raises(TestbedError, match="continue with --resume"):
        list(time_plans(plans(), LocalPool(2)))
