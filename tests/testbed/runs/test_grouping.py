"""Plans that share a session."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from netbench.plan.build import Choices, build_plans
from netbench.plan.experiment import Experiment
from netbench.plan.model import Execution, Plan
from netbench.scenario import load_scenario
from netbench.scenario.model import NO_TCP
from netbench.testbed.effort import emulation_s, in_parts
from netbench.testbed.runs.grouping import dealt


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, ...]:
    """The default slice of case 3 without TCP, as `--fast` runs it."""
    found = build_plans(
        load_scenario("case3"),
        Choices(
            variants=("dtfm-scheduled", "dtfm-random", "megatron-p8", "zero3"),
            layers=(24,),
            batch=(1024,),
            seeds=(2022,),
        ),
        Execution(iterations=1, warmup_iterations=0, scale=1000.0),
    )
    return in_parts(
        dataclasses.replace(plan, network=dataclasses.replace(plan.network, tcp=NO_TCP))
        for plan in found
    )


def load_s(session: Sequence[Experiment]) -> float:
    plans = [plan for plan in session if isinstance(plan, Plan)]
    return sum(emulation_s(part) for plan in plans for part in plan.shortened())


def test_sessions_take_about_as_long(plans: tuple[Plan, ...]) -> None:
    """The longest plan is not put on top of others; the order is kept."""
    first, second = dealt(plans, 2)
    assert {*first, *second} == {*plans}
    for session in (first, second):
        assert session == [plan for plan in plans if plan in session]
    longest = max(load_s([plan]) for plan in plans)
    assert max(load_s(first), load_s(second)) <= max(longest, 0.6 * load_s([*plans]))
    assert dealt(plans, 1) == [[*plans]]
    assert sorted(map(len, dealt(plans, 9))) == [1, 1, 1, 1]


def test_many_networks_have_a_session_each(plans: tuple[Plan, ...]) -> None:
    """Divided further, plans would share less, and run no sooner."""
    networks = [dataclasses.replace(plans[0].network, mtu_bytes=size) for size in (1500, 2000)]
    moved = [
        dataclasses.replace(plan, network=network) for network in networks for plan in plans[:2]
    ]
    assert dealt(moved, 2) == [moved[:2], moved[2:]]


def test_a_plan_on_another_network_has_another_session(plans: tuple[Plan, ...]) -> None:
    """A plan at another scale, and one where TCP acts, have their own too."""
    others = [
        dataclasses.replace(plans[1], scale=500.0),
        dataclasses.replace(
            plans[2], network=dataclasses.replace(plans[2].network, mtu_bytes=9000)
        ),
        dataclasses.replace(
            plans[3],
            network=dataclasses.replace(
                plans[3].network, tcp=dataclasses.replace(plans[3].network.tcp, congestion="cubic")
            ),
        ),
    ]
    assert dealt([plans[0], *others, plans[1]], 1) == [
        [plans[0], plans[1]], *([other] for other in others)
    ]  # fmt: skip


def test_ranks_that_leave_or_run_scripts_are_alone() -> None:
    scenario = load_scenario("example-two-labs")
    found = build_plans(
        scenario,
        Choices(variants=["hivemind", "zero3"], layers=[8], batch=[16], seeds=[1]),
        Execution(iterations=2, warmup_iterations=1, scale=1.0),
    )
    quick = [
        dataclasses.replace(plan, network=dataclasses.replace(plan.network, tcp=NO_TCP))
        for plan in (*found, dataclasses.replace(found[1], seed=2))
    ]
    assert dealt(quick, 1) == [[quick[0]], [quick[1], quick[2]]]
