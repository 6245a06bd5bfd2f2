"""Groups of tensor-parallel ranks and their all-reduces."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from netbench.errors import PlanError
from netbench.plan.build import build_plan
from netbench.plan.model import Execution, Plan
from netbench.plan.scale import network_bytes
from netbench.plan.tensor import (
    inside_all_reduce_s,
    message_bytes,
    num_passes,
    on_one_node,
    tensor_groups,
)
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator.collectives import ring_all_reduce
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, TaskKind
from netbench.simulator.iteration import simulate
from netbench.systems import system_of
from netbench.transport.profile import load_transport


def case1(variant: str) -> Plan:
    """8 nodes of 8 GPUs each."""
    return build_plan(
        load_scenario("case1"),
        variant,
        Setting(layers=24, batch=1024, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )


def test_neighbours_in_the_order_of_ranks_share_layers() -> None:
    """Megatron's order: the tensor index counts first."""
    groups = tensor_groups(case1("megatron-p2t4"))
    assert groups == tuple(tuple(range(first, first + 4)) for first in range(0, 64, 4))


@pytest.mark.parametrize("variant", ["megatron-t8", "megatron-p2t4", "megatron-p4t2"])
def test_published_layouts_share_layers_inside_nodes(variant: str) -> None:
    """Groups of up to 8 in nodes of 8; a random placement tears them apart."""
    plan, torn = case1(variant), case1(f"{variant}-random")
    assert all(on_one_node(plan, group) for group in tensor_groups(plan))
    assert not all(on_one_node(torn, group) for group in tensor_groups(torn))


def test_an_all_reduce_inside_a_node_takes_what_the_simulator_says() -> None:
    """The closed form against the ring, flow by flow, over the profile's rate."""
    plan, transport = case1("megatron-t8"), load_transport("nccl")
    assert plan.transport.inside_node_bps == transport.inside_node_bps
    graph = Graph(Fabric(plan.network, np.zeros(8, np.int64), transport))
    members = np.arange(8)[None]
    gate = graph.work(TaskKind.MARK, members)
    done = ring_all_reduce(graph, members, float(plan.activation_bytes), gate)
    assert inside_all_reduce_s(plan) == pytest.approx(graph.run().end_s[done].max(), rel=1e-4)


def test_the_network_carries_what_leaves_a_node() -> None:
    """With 8 replicas of 8 ranks inside 8 nodes, only gradients cross the network."""
    plan, torn = case1("megatron-t8"), case1("megatron-t8-random")
    gradients = 8 * 2 * 7 * plan.stages[0].gradient_bytes
    assert network_bytes(plan) == pytest.approx(gradients)
    assert network_bytes(torn) == system_of(torn).iteration_bytes(torn) > 100 * gradients
    assert plan.scale < torn.scale


def test_without_recomputation_there_is_a_pass_less() -> None:
    """Forward and backward."""
    plan = case1("megatron-t8")
    plain = dataclasses.replace(plan.workload, recomputation=False)
    assert num_passes(plan) == 3
    assert num_passes(dataclasses.replace(plan, workload=plain)) == 2


def test_ranks_send_their_part_of_a_boundary_tensor() -> None:
    """4 ranks: a quarter each."""
    plan = case1("megatron-p2t4")
    assert 4 * message_bytes(plan) == plan.activation_bytes


def test_sequence_parallelism_takes_as_long() -> None:
    """It cuts every all-reduce into its two halves: the same bytes over the same ring."""
    for variant in ("megatron-t8", "megatron-p4t2-random"):
        plain, split = case1(variant), case1(variant.replace("-random", "") + "-sp")
        split = dataclasses.replace(split, placement=plain.placement)
        assert split.sequence_parallel
        assert simulate(split).iteration_s == pytest.approx(simulate(plain).iteration_s, rel=0.01)


def test_sequence_parallelism_needs_somebody_to_share_with() -> None:
    """And a sequence that divides among them."""
    scenario = load_scenario("case1")
    with pytest.raises(PlanError, match="needs tensor-parallel ranks"):
        build_plan(scenario, "megatron-p8t1-sp", Setting(layers=24, batch=1024), Execution())
    odd = dataclasses.replace(
        scenario, workload=dataclasses.replace(scenario.workload, sequence=2047)
    )
    with pytest.raises(PlanError, match="sequence is 2047, which does not divide among 8"):
        build_plan(odd, "megatron-t8-sp", Setting(layers=24, batch=1024), Execution())
