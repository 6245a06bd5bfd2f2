"""Machines that go and come."""

from __future__ import annotations

import pytest

from netbench.cost.churn import train
from netbench.errors import PlanError
from netbench.plan.build import Choices, build_plan, settings
from netbench.plan.model import Plan
from netbench.scenario import load_scenario
from netbench.scenario.churn import COME, GO, ChurnEvent
from netbench.simulator import simulate
from netbench.systems.rounds import time_round

DAY_S = 86400.0


def planned(peers: str = "A-4") -> Plan:
    scenario = load_scenario("multicloud-a")
    chosen = Choices.of(scenario.sweep, peers=[peers], models=["CONV"])
    ((part, variant, setting),) = settings(scenario, chosen)
    return build_plan(part, variant, setting)


def event(time_s: float, node: int, kind: str) -> ChurnEvent:
    return ChurnEvent(time_s=time_s, node=node, event=kind)


def test_without_interruptions_nothing_is_lost() -> None:
    """Goodput is the throughput of rounds that hold the batch exactly."""
    found, swarm = train(planned(), (), DAY_S), time_round(planned())
    assert found.num_repeated == 0
    assert found.goodput == pytest.approx(swarm.throughput, rel=0.01)
    assert found.machine_s == (DAY_S,) * 4


def test_a_machine_that_never_comes_back_leaves_a_smaller_swarm() -> None:
    """After a minute of a day, four peers are three."""
    found = train(planned("A-4"), [event(60, 3, GO)], DAY_S)
    assert found.goodput == pytest.approx(time_round(planned("A-3")).throughput, rel=0.01)
    assert found.machine_s[3] == 60


def test_who_goes_takes_the_samples_of_the_round() -> None:
    """Just before the first average a peer of two goes: the other computes its half again."""
    plan = planned("A-2")
    swarm = time_round(plan)
    lost = train(plan, [event(swarm.compute_s - 10, 1, GO)], 2 * swarm.compute_s - 30)
    kept = train(plan, (), 2 * swarm.compute_s - 30)
    assert (lost.num_rounds, kept.num_rounds) == (0, 1)


def test_who_goes_during_averaging_makes_others_repeat_it() -> None:
    plan = planned("A-4")
    swarm = time_round(plan)
    during_s = plan.workload.batch / swarm.local_throughput + swarm.average_s / 2
    found = train(plan, [event(during_s, 0, GO)], during_s + 2 * swarm.average_s)
    assert (found.num_rounds, found.num_repeated) == (1, 1)
    assert found.samples == pytest.approx(plan.workload.batch * 3 / 4)


def test_who_comes_helps_once_it_has_the_state() -> None:
    """A machine that is away for a tenth of a day costs more than that: it loads the state."""
    away = [event(0.2 * DAY_S, 2, GO), event(0.3 * DAY_S, 2, COME)]
    found = train(planned("A-4"), away, DAY_S)
    four, three = (time_round(planned(name)).throughput for name in ("A-4", "A-3"))
    assert three < found.goodput < 0.9 * four + 0.1 * three
    assert found.goodput == pytest.approx(0.9 * four + 0.1 * three, rel=0.01)


def test_only_a_swarm_and_diloco_go_on_without_a_machine() -> None:
    with pytest.raises(PlanError, match="use hivemind-swarm or diloco"):
        train(planned_from("example-two-labs", "ddp"), (), DAY_S)


def test_machines_with_several_devices_do_not_go() -> None:
    with pytest.raises(PlanError, match="one device per machine"):
        train(planned_from("case1", "diloco"), (), DAY_S)


def planned_from(name: str, variant: str) -> Plan:
    """The first setting of a scenario."""
    scenario = load_scenario(name)
    ((part, chosen, setting), *_) = settings(
        scenario, Choices.of(scenario.sweep, variants=[variant])
    )
    return build_plan(part, chosen, setting)


H = 20
"""Inner steps of a round of the tests of diloco."""


def diloco() -> tuple[Plan, float, float]:
    """A plan on four machines, the seconds of its inner steps, and of its outer step."""
    plan = planned_from("example-two-labs", f"diloco-h{H}")
    (stage,) = plan.stages
    passes_s = plan.num_micro_batches * (stage.forward_s + stage.backward_s)
    inner_s = H * (passes_s + stage.optimizer_s)
    return plan, inner_s, H * simulate(plan).iteration_s - inner_s


def test_diloco_without_interruptions_has_the_throughput_of_its_iterations() -> None:
    plan, inner_s, outer_s = diloco()
    found = train(plan, (), 1000.5 * (inner_s + outer_s))
    assert (found.num_rounds, found.num_repeated) == (1000, 0)
    assert found.samples == 1000 * H * plan.workload.batch


def test_a_rank_of_diloco_that_goes_takes_its_inner_steps_with_it() -> None:
    """Three of four are left in this round; nobody waits."""
    plan, inner_s, outer_s = diloco()
    found = train(plan, [event(inner_s / 2, 3, GO)], inner_s + outer_s)
    assert (found.num_rounds, found.num_repeated) == (1, 0)
    assert found.samples == 3 / 4 * H * plan.workload.batch


def test_a_rank_of_diloco_that_goes_during_the_outer_step_makes_others_repeat_it() -> None:
    plan, inner_s, outer_s = diloco()
    found = train(plan, [event(inner_s + outer_s / 2, 3, GO)], inner_s + 1.9 * outer_s)
    assert (found.num_rounds, found.num_repeated) == (1, 1)
    assert found.samples == 3 / 4 * H * plan.workload.batch


def test_a_rank_of_diloco_that_comes_waits_for_the_next_round() -> None:
    """It has missed inner steps of this one. Three ranks of the first round, four of the next."""
    plan, inner_s, outer_s = diloco()
    round_s = inner_s + outer_s
    gone_s, back_s = 0.1 * inner_s, 0.2 * inner_s
    found = train(plan, [event(gone_s, 3, GO), event(back_s, 3, COME)], 2.5 * round_s)
    assert found.num_rounds == 2
    assert found.samples == (3 / 4 + 1) * H * plan.workload.batch
    assert found.machine_s[3] == pytest.approx(2.5 * round_s - 0.1 * inner_s)


def test_diloco_goes_on_when_all_have_gone_and_one_comes() -> None:
    """A round begins anew with it alone, which averages with nobody."""
    plan, inner_s, _ = diloco()
    events = [event(0.5 * inner_s, node, GO) for node in range(4)]
    events.append(event(inner_s, 2, COME))
    found = train(plan, events, 3.5 * inner_s)
    assert (found.num_rounds, found.samples) == (2, 2 * H * plan.workload.batch / 4)
