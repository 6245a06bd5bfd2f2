"""Iterations and their parts under many placements, against the simulator and closed forms."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.errors import PlanError
from netbench.placement.objective import PlanObjective
from netbench.placement.parts import Parts
from netbench.placement.plan_problem import Request, grid_of, placement_of
from netbench.placement.problem import Floats, Grid
from netbench.plan.build import build_plan
from netbench.plan.model import Execution, Plan
from netbench.scenario import load_scenario
from netbench.scenario.model import Link, Network, Setting
from netbench.simulator import simulate
from tests.placement.small import pipelines_apart
from tests.plans import NO_COSTS, uniform_plan

VARIANTS = (
    "dtfm-random",
    "dtfm-random-1f1b",
    "dtfm-random-allreduce",
    "dtfm-random-sharded-ps",
    "deepspeed-pp-p4",
    "megatron-p4",
    "megatron-p4-zero-bubble",
    "megatron-p4-interleaved2",
)
NUM_NODES, PP = 12, 4
FEW, MANY = 36, 360
"""Batches: in one, every micro-batch of a pipeline is simulated; in the other, some of them."""

HOME = Link(one_way_delay_s=0.001, bandwidth_bps=5e9)
NEAR = Link(one_way_delay_s=0.02, bandwidth_bps=1e9)
FAR = Link(one_way_delay_s=0.12, bandwidth_bps=4e8)


TWO_REGIONS = ((HOME, FAR), (FAR, HOME))


def plan_of(
    variant: str,
    links: tuple[tuple[Link, ...], ...],
    regions: tuple[int, ...],
    sharing: str,
    *,
    batch: int = FEW,
    nodes: tuple[int, ...] = tuple(range(NUM_NODES)),
) -> Plan:
    """Return a plan of 12 GPUs in 3 pipelines of 4 stages, on the nodes of `nodes`."""
    scenario = load_scenario("case5")
    network = Network(
        regions=tuple("abc"[: len(links)]),
        links=links,
        node_regions=regions,
        sharing=sharing,
        nic_bps=(2e9,) * NUM_NODES,
        mtu_bytes=9001,
    )
    scenario = dataclasses.replace(
        scenario,
        nodes=scenario.nodes[:NUM_NODES],
        network=network,
        sweep=dataclasses.replace(scenario.sweep, pipeline=PP),
    )
    plan = build_plan(
        scenario,
        variant,
        Setting(layers=8, batch=batch, seed=1),
        Execution(iterations=2, warmup_iterations=1),
    )
    return dataclasses.replace(plan, device_nodes=nodes)


def simulated_s(plan: Plan, grid: Grid) -> float:
    placed = dataclasses.replace(plan, placement=placement_of(plan, grid))
    return simulate(placed).iteration_s


@st.composite
def plans(draw: st.DrawFn, sharings: tuple[str, ...] = ("pair", "class")) -> Plan:
    """Draw a plan of single-GPU nodes in up to 3 regions, some links equal in one direction."""
    size = draw(st.integers(1, 3))
    between = st.sampled_from((NEAR, FAR, HOME))
    links = tuple(
        tuple(HOME if a == b else draw(between) for b in range(size)) for a in range(size)
    )
    regions = draw(st.lists(st.integers(0, size - 1), min_size=NUM_NODES, max_size=NUM_NODES))
    return plan_of(
        draw(st.sampled_from(VARIANTS)),
        links,
        tuple(regions),
        draw(st.sampled_from(sharings)),
        batch=draw(st.sampled_from((FEW, MANY))),
    )


def random_grids(plan: Plan, count: int, seed: int) -> Grid:
    rng = np.random.default_rng(seed)
    shape = grid_of(plan).shape
    num_devices = len(plan.device_nodes)
    return np.array(
        [rng.permutation(num_devices)[: math.prod(shape)].reshape(shape) for _ in range(count)]
    )


@settings(max_examples=20, deadline=None)
@given(plan=plans(), seed=st.integers(0, 99))
def test_an_iteration_put_together_from_parts_is_the_simulated_one(plan: Plan, seed: int) -> None:
    """Equal to the bit, whether or not a rank's last messages share links with its gradients."""
    grids = random_grids(plan, 3, seed)
    with pipelines_apart():
        objective = PlanObjective(plan)
        assert objective.independent
        assert objective.times_s(grids).tolist() == [simulated_s(plan, grid) for grid in grids]


@pytest.mark.parametrize("sharing", ["pair", "class"])
def test_pipelines_that_sum_their_losses_are_simulated_whole(sharing: str) -> None:
    """A pipeline waits for the slowest one after every micro-batch; one replica sums nothing."""
    plan = plan_of("megatron-p4", ((NEAR,),), (0,) * NUM_NODES, sharing, batch=MANY)
    objective, grids = PlanObjective(plan), random_grids(plan, 2, 1)
    assert not objective.independent
    found_s = objective.times_s(grids).tolist()
    assert found_s == [simulated_s(plan, grid) for grid in grids]
    with pipelines_apart():
        apart_s = PlanObjective(plan).times_s(grids).tolist()
    assert all(whole > apart for whole, apart in zip(found_s, apart_s, strict=True))
    alone = dataclasses.replace(
        plan, layout=dataclasses.replace(plan.layout, dp=1), placement=(0, 1, 2, 3)
    )
    assert PlanObjective(alone).independent


@pytest.mark.parametrize("sharing", ["nic", "trunk"])
def test_shared_nics_and_trunks_are_simulated_whole(sharing: str) -> None:
    """Pipelines share resources there, so nothing is composed."""
    plan = plan_of("dtfm-random", TWO_REGIONS, (0, 1) * 6, sharing)
    objective, grids = PlanObjective(plan), random_grids(plan, 2, 1)
    assert not objective.independent
    assert objective.times_s(grids).tolist() == [simulated_s(plan, grid) for grid in grids]


def test_gpus_of_one_node_are_told_from_gpus_of_two() -> None:
    """It matters which ranks share a node, but not which of several equal nodes."""
    beside = tuple(np.repeat(np.arange(6), 2).tolist())
    plan = plan_of("megatron-p4", ((NEAR,),), (0,) * NUM_NODES, "pair", nodes=beside)
    objective = PlanObjective(plan)
    straight = np.arange(12).reshape(3, 4)
    turned, apart = 11 - straight, np.arange(12).reshape(4, 3).T
    assert not objective.independent
    alone_s = objective.pipelines_s(np.array([straight[0], turned[0], apart[0]]))[:, 1]
    assert alone_s[0] == alone_s[1] < 0.9 * alone_s[2]
    grids = np.array([straight, turned, apart])
    together_s = objective.times_s(grids)
    assert together_s.tolist() == [simulated_s(plan, grid) for grid in grids]
    assert together_s[0] == together_s[1] != together_s[2]


def test_what_cannot_be_told_apart_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of one region are interchangeable, devices of two regions are not."""
    plan = plan_of("dtfm-random", TWO_REGIONS, (0,) * 6 + (1,) * 6, "pair")
    timed: list[int] = []
    pipelines = Parts.pipelines

    def counted(parts: Parts, some: Grid) -> Floats:
        timed.append(len(some))
        return pipelines(parts, some)

    monkeypatch.setattr(Parts, "pipelines", counted)
    rows = [[0, 1, 2, 3], [3, 5, 1, 0], [0, 1, 2, 6], [0, 1, 2, 11], [0, 6, 1, 2]]
    objective = PlanObjective(plan)
    found_s = objective.pipelines_s(np.array(rows)).tolist()
    assert timed == [3]
    assert found_s[0] == found_s[1]
    assert found_s[2] == found_s[3]
    assert len({tuple(each) for each in found_s}) == 3


def with_slow_devices(plan: Plan, device_types: tuple[int, ...]) -> Plan:
    """Return the plan with devices of type 1 three times as slow."""
    slow = tuple(
        dataclasses.replace(stage, forward_s=3 * stage.forward_s, backward_s=3 * stage.backward_s)
        for stage in plan.stages
    )
    return dataclasses.replace(
        plan,
        device_types=device_types,
        type_stages=(plan.stages, slow),
        type_names=("fast", "slow"),
    )


def test_a_pipeline_takes_as_long_as_its_kind_of_devices() -> None:
    """On a free network only compute counts."""
    plan = with_slow_devices(uniform_plan("dtfm-random-1f1b", num_nodes=16), (0,) * 8 + (1,) * 8)
    fast_s, slow_s = PlanObjective(plan, NO_COSTS).pipelines_s(np.arange(16).reshape(2, 8))[:, 1]
    assert slow_s == pytest.approx(3 * fast_s)


@pytest.mark.parametrize("variant", VARIANTS)
def test_iterations_of_mixed_devices_are_the_simulated_ones(variant: str) -> None:
    """Slow devices anywhere, in both regions."""
    regions = (0,) * 6 + (1,) * 6
    plan = with_slow_devices(plan_of(variant, TWO_REGIONS, regions, "class"), (0, 1, 1) * 4)
    objective, grids = PlanObjective(plan), random_grids(plan, 3, 1)
    assert objective.times_s(grids).tolist() == [simulated_s(plan, grid) for grid in grids]


def test_devices_may_be_left_over() -> None:
    """A placement need not use all devices."""
    plan = plan_of("megatron-p4", TWO_REGIONS, (0, 1) * 6, "class")
    layout = dataclasses.replace(plan.layout, dp=2)
    plan = dataclasses.replace(plan, layout=layout, placement=tuple(range(8)))
    grids = random_grids(plan, 3, 5)
    assert grids.shape == (3, 2, 4)
    found_s = PlanObjective(plan).times_s(grids)
    assert found_s.tolist() == [simulated_s(plan, grid) for grid in grids]


def test_pipelines_alone_on_a_free_network_are_fill_and_micro_batches() -> None:
    """GPipe's forward passes, then its backward passes: all micro-batches and all rounds."""
    plan = uniform_plan("dtfm-scheduled", batch=512)
    micro_batches, rounds = plan.num_micro_batches, plan.num_rounds
    assert (micro_batches, rounds) == (64, 8)
    found_s = PlanObjective(plan, NO_COSTS).pipelines_s(np.arange(8)[None])
    each = rounds * (micro_batches + 8 - 1)
    assert found_s == pytest.approx(np.array([[0.01 * each, 0.03 * each]]))


def test_a_schedule_that_mixes_its_passes_has_one_time() -> None:
    """1F1B on a free network: fill, micro-batches."""
    plan = uniform_plan("megatron-p8", batch=64)
    found_s = PlanObjective(plan, NO_COSTS).pipelines_s(np.arange(8)[None])
    assert found_s == pytest.approx(np.array([[0.0, 0.04 * (64 + 8 - 1)]]))


def test_groups_alone_are_a_collective_and_an_update() -> None:
    """A ring without delay moves 2 (n - 1) / n of its bytes over every link."""
    plan = uniform_plan("megatron-p2", bandwidth_bps=1e9, optimizer_s=0.5)
    assert plan.layout.dp == 4
    gradients = [stage.gradient_bytes for stage in plan.stages]
    objective = PlanObjective(plan, NO_COSTS)
    for stage, size_bytes in enumerate(gradients):
        expected_s = 2 * 3 / 4 * size_bytes * 8 / 1e9 + 0.5
        found_s = objective.groups_s(stage, np.array([[0, 1, 2, 3], [7, 5, 4, 6]]))
        assert found_s == pytest.approx(np.full(2, expected_s))


@pytest.mark.parametrize("variant", VARIANTS)
def test_parts_of_equal_devices_compose_to_the_iteration(variant: str) -> None:
    """With equal pipelines, the members of a group are ready at the same time."""
    plan = plan_of(variant, ((NEAR,),), (0,) * NUM_NODES, "pair", batch=MANY)
    grids = random_grids(plan, 1, 0)
    with pipelines_apart():
        objective = PlanObjective(plan)
        assert objective.composed_s(grids) == pytest.approx(objective.times_s(grids), rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(plan=plans(), seed=st.integers(0, 99))
def test_parts_alone_compose_to_nearly_the_iteration(plan: Plan, seed: int) -> None:
    """Members begin at different times, which changes windows and overlap slightly."""
    grids = random_grids(plan, 3, seed)
    with pipelines_apart():
        objective = PlanObjective(plan)
        assert objective.composed_s(grids) == pytest.approx(objective.times_s(grids), rel=0.25)


def test_plans_without_pipelines_of_single_devices_have_no_parts() -> None:
    """Whole iterations can still be timed."""
    scenario = load_scenario("case1")
    for variant in ("zero3", "megatron-p2t4"):
        problem = Request(
            scenario=scenario, variant=variant, setting=Setting(layers=24, batch=1024)
        ).problem()
        assert not problem.objective.independent
        grid = np.arange(64).reshape(problem.shape)
        assert problem.objective.times_s(grid[None])[0] > 0
        with pytest.raises(PlanError, match="cannot be timed alone"):
            problem.objective.composed_s(grid[None])
