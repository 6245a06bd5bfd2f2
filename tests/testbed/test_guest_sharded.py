"""zero3 and fsdp in virtual time on four equal nodes, against closed forms and the simulator."""

from __future__ import annotations

import pytest

from netbench.plan.model import Plan
from netbench.simulator import simulate
from tests.testbed.uniform import DELAY_S, HEADERS, NUM_NODES, RATE_BPS, run_uniform, timed

pytestmark = pytest.mark.guest

N = NUM_NODES
VARIANTS = ("zero3", "fsdp", "zero3-hybrid2", "zero3-accumulate")
WORKLOAD = "{layers: 8, hidden: 256, heads: 8, sequence: 256, batch: 32, dtype: fp16}"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Plan, float]]:
    """By variant, the plan and the seconds of the iteration after the warm-up."""
    folder = tmp_path_factory.mktemp("zero3")
    return timed(run_uniform(folder, VARIANTS, speed="0.1TFLOPS", workload=WORKLOAD))


def computing_s(plan: Plan) -> float:
    """Phases of an iteration: two micro-steps, and the update."""
    (cost,) = plan.stages
    assert plan.num_micro_batches == 2
    return 2 * (cost.forward_s + cost.backward_s) + cost.optimizer_s


def ring_s(num_bytes: float, size: int) -> float:
    """One pass of a ring: size - 1 steps of a part each, in two slices.

    The first slice goes on while the second arrives, so all but the last step hide half a part or
    the delay.
    """
    part_s = num_bytes / size * 8 / RATE_BPS * HEADERS
    return (size - 2) * max(part_s, part_s / 2 + DELAY_S) + part_s + DELAY_S


def test_in_turn_every_micro_step_gathers_and_scatters(
    measured: dict[str, tuple[Plan, float]],
) -> None:
    """All parameters are live, so they are gathered once; at most 3% more."""
    plan, iteration_s = measured["zero3"]
    bound_s = computing_s(plan) + 2 * 2 * ring_s(plan.stages[0].gradient_bytes, N)
    assert bound_s <= iteration_s <= 1.03 * bound_s


def test_of_fsdp_only_the_first_gathers_and_the_last_scatter_show(
    measured: dict[str, tuple[Plan, float]],
) -> None:
    """8 units compute for longer than their collectives take: at most 3% more."""
    plan, iteration_s = measured["fsdp"]
    unit_s = ring_s(plan.stages[0].gradient_bytes / 8, N)
    assert unit_s < plan.stages[0].forward_s / 8
    bound_s = computing_s(plan) + 2 * 3 * unit_s
    assert bound_s <= iteration_s <= 1.03 * bound_s
    assert iteration_s < measured["zero3"][1]


def test_groups_of_two_sum_across_once(measured: dict[str, tuple[Plan, float]]) -> None:
    """Rings of two in both micro-steps, then the halves across, out and back; at most 3% more."""
    plan, iteration_s = measured["zero3-hybrid2"]
    model_bytes = plan.stages[0].gradient_bytes
    bound_s = computing_s(plan) + 2 * 2 * ring_s(model_bytes, 2) + 2 * ring_s(model_bytes / 2, 2)
    assert bound_s <= iteration_s <= 1.03 * bound_s


def test_kept_gradients_are_scattered_once(measured: dict[str, tuple[Plan, float]]) -> None:
    """And parameters gathered once; at most 3% more."""
    plan, iteration_s = measured["zero3-accumulate"]
    bound_s = computing_s(plan) + 2 * ring_s(plan.stages[0].gradient_bytes, N)
    assert bound_s <= iteration_s <= 1.03 * bound_s


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_simulator_tells_what_every_variant_takes(
    measured: dict[str, tuple[Plan, float]], variant: str
) -> None:
    """Within 3%."""
    plan, iteration_s = measured[variant]
    assert simulate(plan).iteration_s == pytest.approx(iteration_s, rel=0.03)
