"""Random times of passes, where pipelines meet."""

import dataclasses
import itertools

import numpy as np
import pytest

from netbench.placement.objective import PlanObjective
from netbench.plan.build import build_plan
from netbench.plan.model import Plan
from netbench.scenario import load_scenario
from netbench.scenario.model import JITTER, Setting
from netbench.simulator import simulate
from netbench.simulator.graph import TaskKind
from netbench.simulator.iteration import DRAWS
from netbench.simulator.pipeline import Noise
from netbench.systems import has_random_passes, pipelines_meet, rank_lanes


def published(case: str, variant: str, layers: int = 24, batch: int = 1024) -> Plan:
    return build_plan(load_scenario(case), variant, Setting(layers=layers, batch=batch, seed=2022))


@pytest.mark.parametrize(
    ("case", "variant", "meet"),
    [
        ("case1", "megatron-p8", True),
        ("case1", "dtfm-scheduled", False),  # a pipeline in each node
        ("case1", "megatron-t8", False),
        ("case3", "megatron-p8", False),
        ("case5", "dtfm-random", False),
        ("fluidstack2", "dtfm-scheduled", True),
    ],
)
def test_pipelines_meet_in_nodes_and_in_trunks(case: str, variant: str, meet: bool) -> None:
    assert pipelines_meet(published(case, variant)) is meet


def test_pipelines_meet_in_the_nodes_of_any_tensor_rank() -> None:
    """First tensor ranks are on the node of their pipeline, the others on the next node."""
    plan = published("case1", "megatron-p4t2")
    lanes = rank_lanes(plan).reshape(plan.layout.dp, plan.layout.tp, -1)
    placement = np.zeros(plan.layout.num_ranks, np.int64)
    for pipeline in range(plan.layout.dp):
        following = (pipeline + 1) % plan.layout.dp
        placement[lanes[pipeline, 0]] = 8 * pipeline + np.arange(4)
        placement[lanes[pipeline, 1]] = 8 * following + 4 + np.arange(4)
    assert pipelines_meet(dataclasses.replace(plan, placement=tuple(placement.tolist())))


def test_a_median_has_its_range_where_pipelines_meet() -> None:
    """All draws differ, and equal plans give equal ones."""
    found = simulate(published("case1", "megatron-p8"))
    assert len(set(found.drawn_s)) == DRAWS
    assert list(found.drawn_s) == sorted(found.drawn_s)
    assert found.iteration_s == found.drawn_s[DRAWS // 2]
    assert simulate(found.plan).drawn_s == found.drawn_s


@pytest.mark.parametrize("variant", ["megatron-p8", "dtfm-random"])
def test_nothing_is_random_elsewhere(variant: str) -> None:
    """To the bit, so that placements may be composed of parts."""
    plan = published("case3", variant)
    found = simulate(plan)
    assert found.drawn_s == (found.iteration_s,)
    assert simulate(dataclasses.replace(plan, jitter=0.1)).iteration_s == found.iteration_s
    grid = rank_lanes(plan)
    placed = np.asarray(plan.placement)[grid][None]
    assert PlanObjective(plan).times_s(placed).tolist() == [found.iteration_s]


def test_without_jitter_all_passes_take_their_mean() -> None:
    plan = dataclasses.replace(published("case1", "megatron-p8"), jitter=0.0)
    found = simulate(plan)
    timeline = found.parts[0].timeline
    forward_s = timeline.amount[timeline.kind == TaskKind.FORWARD]
    assert len(found.drawn_s) == 1
    assert forward_s == pytest.approx(plan.stages[0].forward_s, rel=1e-12)


def test_times_have_the_mean_and_the_deviation_asked_for() -> None:
    factors = Noise(0.05, 0).factors((400, 50))
    assert factors.mean() == pytest.approx(1.0, abs=1e-3)
    assert factors.std() == pytest.approx(0.05, rel=0.03)
    assert Noise(0.2, 0).factors((400, 500)).min() >= 0


def test_ranks_that_divide_a_tensor_take_equal_times() -> None:
    """They synchronise in every layer. Two passes take different ones."""
    plan = published("case1", "megatron-p4t2")
    found = simulate(plan)
    timeline = found.parts[0].timeline
    lanes = rank_lanes(plan)
    seconds = {
        (int(rank), int(label)): amount
        for rank, label, amount, kind in zip(
            timeline.rank, timeline.label, timeline.amount, timeline.kind, strict=True
        )
        if kind == TaskKind.FORWARD
    }
    for label, pair in itertools.product((0, 1, 5), range(0, len(lanes), 2)):
        first, second = lanes[pair, 0], lanes[pair + 1, 0]
        assert seconds[int(first), label] == seconds[int(second), label]
    assert len({seconds[int(lanes[0, 0]), label] for label in range(8)}) == 8


@pytest.mark.parametrize("case", ["case1", "case2"])
@pytest.mark.parametrize(
    "variant", ["megatron-p8", "megatron-p4t2", "dtfm-random", "deepspeed-pp-random-nodes"]
)
def test_more_jitter_hardly_changes_a_result(case: str, variant: str) -> None:
    """Twice the jitter moves no published time of 24 layers by more than 3%."""
    for batch in (1024, 4096) if variant != "megatron-p4t2" else (1024,):
        plan = published(case, variant, batch=batch)
        more = dataclasses.replace(plan, jitter=2 * JITTER)
        assert simulate(more).iteration_s == pytest.approx(simulate(plan).iteration_s, rel=0.03)


def test_pipelines_in_step_wait_for_each_other() -> None:
    """Without jitter all eight GPUs of a node send at the same moments, and each takes longer."""
    plan = published("case1", "megatron-p8")
    in_step = simulate(dataclasses.replace(plan, jitter=0.0)).iteration_s
    assert in_step > 1.1 * simulate(plan).iteration_s


def test_only_passes_of_pipelines_are_random() -> None:
    """Peers of one node share its NIC, too, but choose their micro-batches."""
    plan = published("case1", "megatron-p8")
    assert has_random_passes(plan)
    assert not has_random_passes(dataclasses.replace(plan, schedule="accumulate"))
