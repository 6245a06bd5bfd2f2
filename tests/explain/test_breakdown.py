"""Breakdowns: sums are exact and agree with closed forms."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from netbench.explain.breakdown import (
    GROUPS,
    bound_s,
    breakdown,
    critical_path,
    seconds_by_kind,
    seconds_by_link,
)
from netbench.explain.causes import Cause
from netbench.explain.losses import losses
from netbench.simulator import load_transport, simulate
from tests.plans import BACKWARD_S as B
from tests.plans import FORWARD_S as F
from tests.plans import GOODPUT, MESSAGE_BYTES, NO_LIMITS, pipeline_plan, simulate_published

PUBLISHED = [
    ("case3", "dtfm-scheduled"),
    ("case3", "dtfm-random"),
    ("case3", "dtfm-scheduled-1f1b"),
    ("case3", "megatron-p8"),
    ("case3", "megatron-p8-zero-bubble"),
    ("case3", "megatron-p4-interleaved2"),
    ("case1", "megatron-p2t4"),
    ("case5", "dtfm-scheduled-sharded-ps"),
    ("case3", "zero3"),
    ("case3", "ddp"),
    ("case3", "ddp-central-ps"),
]
every_system = pytest.mark.parametrize(("case", "variant"), PUBLISHED)


@every_system
def test_kinds_sum_to_the_iteration_for_every_rank(case: str, variant: str) -> None:
    """To the last bits of a float, with steady parts and repeated rounds."""
    simulation = simulate_published(case, variant, 2048)
    found = breakdown(simulation)
    assert found.seconds.shape == (64, len(Cause))
    assert (found.seconds >= 0).all()
    sums = sum(found.of(group) for group in GROUPS)
    assert sums == pytest.approx(np.full(64, simulation.iteration_s), rel=1e-12)
    assert found.seconds.sum() == pytest.approx(64 * simulation.iteration_s, rel=1e-12)


@every_system
def test_every_rank_computes_what_its_plan_says(case: str, variant: str) -> None:
    """Without tensor-parallel all-reduces; also where a steady state represents most of it."""
    simulation = simulate_published(case, variant, 2048)
    plan, found = simulation.plan, breakdown(simulation)
    count = plan.num_rounds * plan.num_micro_batches
    stage = plan.stages[-1]
    # zero3 and ddp compute in pieces: each ends at the nearest tick of the simulator's clock.
    pieces = 2 * plan.workload.layers if plan.schedule == "none" else 1
    ticks = count * pieces * 2**-30
    assert found.of("forward") == pytest.approx(count * stage.forward_s, rel=1e-9, abs=ticks)
    assert found.of("backward") == pytest.approx(count * stage.backward_s, rel=1e-9, abs=ticks)


@every_system
def test_the_critical_path_fills_the_iteration(case: str, variant: str) -> None:
    """Without a gap; by kind it has the same sum."""
    simulation = simulate_published(case, variant)
    steps = critical_path(simulation)
    assert all(step.seconds > 0 for step in steps)
    total_s = sum(step.seconds for step in steps)
    assert total_s == pytest.approx(simulation.iteration_s, rel=1e-12)
    assert sum(seconds_by_kind(steps).values()) == pytest.approx(total_s)


@pytest.mark.parametrize("variant", ["dtfm-scheduled", "dtfm-scheduled-1f1b", "megatron"])
@pytest.mark.parametrize(
    ("stages", "rounds", "micro_batches"), [(2, 1, 8), (2, 3, 8), (4, 2, 16), (4, 1, 100)]
)
def test_the_bubble_of_equal_stages(
    variant: str, stages: int, rounds: int, micro_batches: int
) -> None:
    """(p - 1) / (m + p - 1) of the time on a free network, for any rank."""
    rounds = rounds if variant == "dtfm-scheduled" else 1
    plan = pipeline_plan(variant, stages=stages, num_rounds=rounds, micro_batches=micro_batches)
    simulation = simulate(plan, NO_LIMITS)
    found = breakdown(simulation)
    idle = (stages - 1) / (micro_batches + stages - 1)
    assert simulation.iteration_s == pytest.approx(
        rounds * (micro_batches + stages - 1) * (F + B), rel=1e-9
    )
    assert found.of("bubble") / simulation.iteration_s == pytest.approx(np.full(stages, idle))
    for group in ("point_to_point", "collective", "optimizer"):
        assert found.of(group) == pytest.approx(0, abs=1e-12)
    assert set(seconds_by_kind(critical_path(simulation))) == {"forward", "backward"}


def test_only_the_network_takes_time() -> None:
    """Without compute: m messages in sequence and a delay, each way. South waits for North, then
    North for South. The last rank at a barrier sends a message and waits for an answer."""
    m, d, rate = 8, 0.02, 1e9
    plan = pipeline_plan(
        "dtfm-scheduled",
        stages=2,
        num_rounds=2,
        micro_batches=m,
        delay_s=d,
        bandwidth_bps=rate,
        speeds=(math.inf, math.inf),
    )
    simulation = simulate(plan, NO_LIMITS)
    tau = 8 * MESSAGE_BYTES / (rate * GOODPUT)
    barriers_s = 3 * 2 * d  # one in every round, and the last
    assert simulation.iteration_s == pytest.approx(2 * 2 * (m * tau + d) + barriers_s)
    found = breakdown(simulation)
    assert found.of("collective") == pytest.approx(np.full(2, barriers_s))
    assert found.of("point_to_point") == pytest.approx(np.full(2, 2 * 2 * (m * tau + d)))
    assert found.seconds[:, Cause.TRANSFER] == pytest.approx(np.full(2, 4 * m * tau))
    assert found.seconds[:, Cause.DELAY] == pytest.approx(np.full(2, 4 * d))
    steps = critical_path(simulation)
    assert seconds_by_kind(steps) == pytest.approx(
        {"transfer": 4 * m * tau, "delay": 4 * d, "collective delay": barriers_s}
    )
    each_way_s = 2 * (m * tau + d) + barriers_s / 2
    assert seconds_by_link(steps, plan) == pytest.approx(
        {"North -> South": each_way_s, "South -> North": each_way_s}
    )
    assert bound_s(plan) == 0
    loss, barriers = losses(simulation)
    assert (loss.group, barriers.group) == ("point_to_point", "collective")
    assert loss.share + barriers.share == pytest.approx(1)


def test_an_update_is_waited_for_as_optimizer_not_as_bubble() -> None:
    """Data parallelism of two: one member updates between reduce and broadcast, which take the
    bytes and a delay each; the other waits for all three. Stage 1 ends a backward pass and a delay
    sooner, and waits for stage 0's update at the barrier."""
    update_s, d, rate, size = 0.5, 0.01, 1e9, 50_000_000
    plan = pipeline_plan(
        "dtfm-scheduled",
        stages=2,
        pipelines=2,
        micro_batches=4,
        delay_s=d,
        bandwidth_bps=rate,
        activation_bytes=1,
    )
    updated = [
        dataclasses.replace(stage, optimizer_s=update_s, gradient_bytes=size)
        for stage in plan.stages
    ]
    plan = dataclasses.replace(plan, stages=tuple(updated))
    simulation = simulate(plan, NO_LIMITS)
    found = breakdown(simulation)
    sooner_s = plan.stages[0].backward_s + d
    assert found.of("optimizer") == pytest.approx(update_s + np.array([0, sooner_s, 0, 0]))
    assert found.seconds[:, Cause.TRANSFER] == pytest.approx(np.zeros(4), abs=1e-6)
    reduce_and_broadcast_s = 2 * (8 * size / (rate * GOODPUT) + d)
    steps = seconds_by_kind(critical_path(simulation))
    assert steps["collective"] == pytest.approx(reduce_and_broadcast_s - 2 * d)
    assert (found.of("collective") >= reduce_and_broadcast_s - 1e-9).all()


def test_all_reduces_inside_layers_count_as_collective() -> None:
    """4 tensor-parallel ranks: two ring all-reduces of the boundary tensor per layer and pass;
    recomputation adds a pass."""
    simulation = simulate_published("case1", "megatron-p2t4")
    plan = simulation.plan
    all_reduces = 2 * 3 * 12 * 128  # passes, layers of a stage, micro-batches
    ring_s = 2 * 3 / 4 * 8 * plan.activation_bytes / load_transport("nccl").inside_node_bps
    found = breakdown(simulation).seconds[:, Cause.TENSOR_PARALLEL]
    assert found == pytest.approx(np.full(64, all_reduces * ring_s), rel=0.01)


def test_ranks_of_ddp_are_alike() -> None:
    """They wait for the part of a bucket's all-reduce that the last backward pass does not hide."""
    simulation = simulate_published("case3", "ddp")
    found = breakdown(simulation)
    assert (found.seconds == found.seconds[0]).all()
    assert found.of("collective")[0] == pytest.approx(
        simulation.iteration_s - bound_s(simulation.plan)
    )


def test_sums_of_losses_and_sends_on_idle_paths_are_not_taken_for_copies() -> None:
    """Published placements between distant regions. The sums are delays of collectives, hop by hop:
    the slowest hop of the last stages' tree joins Ireland and Seoul. What a send waits for is its
    bytes and its delay."""
    simulation = simulate_published("case5", "megatron-p8-random")
    mean = breakdown(simulation).seconds.mean(axis=0) / simulation.iteration_s
    assert mean[Cause.COPY] < 0.001
    assert min(mean[Cause.TRANSFER], mean[Cause.DELAY], mean[Cause.COLLECTIVE_DELAY]) > 0.2
    links = seconds_by_link(critical_path(simulation), simulation.plan)
    assert [*links][:2] == ["Ireland -> Seoul", "Seoul -> Ireland"]
    (collective,) = (loss for loss in losses(simulation) if loss.group == "collective")
    assert ": gradients of data parallelism and sums of losses, " in collective.text
