"""Micro-steps of zero3 and fsdp against closed forms on uniform networks."""

from __future__ import annotations

import pytest

from netbench.explain.usage import links
from netbench.plan.model import Plan
from netbench.simulator import simulate
from netbench.systems import system_of
from netbench.systems.sharded import unit_parameters
from tests.plans import NO_COSTS, uniform_plan

BANDWIDTH_BPS = 10e9
BIT = 8 * 2 / BANDWIDTH_BPS
"""Seconds per fp16 parameter."""


def sharded_plan(variant: str, *, batch: int = 64, seconds: float = 0.01) -> Plan:
    """8 layers on 4 nodes, all live; forward `seconds`, backward three times as much."""
    return uniform_plan(
        variant, num_nodes=4, bandwidth_bps=BANDWIDTH_BPS, batch=batch, forward_s=seconds
    )


def iteration_s(plan: Plan) -> float:
    simulation = simulate(plan, NO_COSTS)
    assert simulation.iteration_s == pytest.approx(sum(simulation.phases.values()))
    return simulation.iteration_s


def test_groups_gather_and_scatter_inside_and_sum_across_once() -> None:
    """Groups of 2 of 4 ranks: a ring moves half the model, and a shard's all-reduce across two
    groups half of it out and back, in the last of four micro-steps only."""
    plan = sharded_plan("zero3-hybrid2")
    assert plan.num_micro_batches == 4
    parameters = plan.stages[0].parameters
    ring_s, across_s = parameters / 2 * BIT, parameters / 2 * BIT
    expected = 4 * (0.04 + 2 * ring_s) + across_s
    assert iteration_s(plan) == pytest.approx(expected, rel=1e-6)
    assert [(part.name, part.repeat) for part in system_of(plan).segments(plan)] == [
        ("first micro-step", 1), ("micro-step", 2), ("last micro-step", 1), ("update", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("batch", [16, 32, 64])
def test_kept_parameters_are_gathered_and_kept_gradients_scattered_once(batch: int) -> None:
    """Whatever the number of micro-steps: 1, 2, 4."""
    plan = sharded_plan("zero3-accumulate", batch=batch)
    ring_s = 3 / 4 * plan.stages[0].parameters * BIT
    expected = plan.num_micro_batches * 0.04 + 2 * ring_s
    assert iteration_s(plan) == pytest.approx(expected, rel=1e-6)


def test_one_micro_step_of_kept_gradients_is_a_plain_one() -> None:
    kept, plain = (sharded_plan(f"zero3{option}", batch=16) for option in ("-accumulate", ""))
    assert iteration_s(kept) == iteration_s(plain)


def test_prefetched_units_hide_behind_the_computation() -> None:
    """8 units, each computing as long as its scatter and the next gather take:
    what shows is the first gather of either pass and the last scatter. The embeddings make the
    first unit larger: it hides less of itself."""
    plan = sharded_plan("fsdp", batch=16, seconds=8.0)
    unit_s = [3 / 4 * size * BIT for size in unit_parameters(plan)]
    assert len(unit_s) == 8
    assert max(unit_s) < 1.0
    expected = 4 * 8.0 + unit_s[0] + unit_s[-1] + unit_s[0]
    assert iteration_s(plan) == pytest.approx(expected, rel=1e-6)


def test_where_communication_is_slower_prefetching_hides_the_computation() -> None:
    """All but the first unit's: its backward pass comes after the last gather, before the last
    scatter. In turn is what units that are not prefetched would take."""
    plan = sharded_plan("fsdp", batch=16, seconds=0.01)
    communication_s = 3 * sum(3 / 4 * size * BIT for size in unit_parameters(plan))
    seconds = iteration_s(plan)
    assert communication_s <= seconds <= communication_s + 0.04
    assert seconds == pytest.approx(communication_s, rel=0.02)


def test_usage_counts_rings_inside_and_across() -> None:
    """Bytes that leave the 4 ranks: in groups of 2, half the model in each of 8 passes; across, a
    quarter of it out and back."""
    plan = sharded_plan("zero3-hybrid2")
    pairs = [use for use in links(simulate(plan, NO_COSTS)) if use.kind == "pair"]
    model_bytes = plan.stages[0].gradient_bytes
    sent = sum(use.payload_bytes for use in pairs)
    assert sent == pytest.approx(4 * (8 * model_bytes / 2 + 2 * model_bytes / 4), rel=1e-6)
