"""Pipelines in virtual time on four equal nodes, without data parallelism, against closed forms
written here and against the simulator."""

from __future__ import annotations

import pytest

from netbench.plan.model import Plan
from netbench.simulator import simulate
from tests.testbed.uniform import DELAY_S, HEADERS, NUM_NODES, RATE_BPS, run_uniform, timed

pytestmark = pytest.mark.guest

P = NUM_NODES
VARIANTS = ("dtfm-scheduled", "megatron", "megatron-interleaved2", "megatron-zero-bubble")
WORKLOAD = "{layers: 8, hidden: 512, heads: 8, sequence: 256, batch: 16, dtype: fp16}"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Plan, float]]:
    """By variant, the plan and the seconds of the iteration after the warm-up."""
    folder = tmp_path_factory.mktemp("pipelines")
    return timed(run_uniform(folder, VARIANTS, speed="0.1745TFLOPS", workload=WORKLOAD))


def parts_s(plan: Plan) -> tuple[int, float, float]:
    """Micro-batches, seconds of computing one in a stage, seconds of a message between stages."""
    stage = plan.stages[0]
    assert plan.layout.pp == P
    assert {(s.forward_s, s.backward_s) for s in plan.stages} == {
        (stage.forward_s, stage.backward_s)
    }
    message_s = plan.activation_bytes * 8 / RATE_BPS * HEADERS + DELAY_S
    return plan.num_micro_batches, stage.forward_s + stage.backward_s, message_s


def test_gpipe_takes_its_computations_and_the_messages_of_one_micro_batch(
    measured: dict[str, tuple[Plan, float]],
) -> None:
    """(m + p - 1) (F + B), and 2 (p - 1) messages that nothing hides; at most 3% more."""
    plan, iteration_s = measured["dtfm-scheduled"]
    m, compute_s, message_s = parts_s(plan)
    bound_s = (m + P - 1) * compute_s + 2 * (P - 1) * message_s
    assert bound_s <= iteration_s <= 1.03 * bound_s


def test_1f1b_takes_its_computations_and_the_messages_of_every_pth_micro_batch(
    measured: dict[str, tuple[Plan, float]],
) -> None:
    """(m + p - 1) (F + B), and a round of 2 (p - 1) messages for every p micro-batches, since a
    stage has no more than p under way; at most 3% more."""
    plan, iteration_s = measured["megatron"]
    m, compute_s, message_s = parts_s(plan)
    bound_s = (m + P - 1) * compute_s + 2 * (P - 1) * (m / P) * message_s
    assert bound_s <= iteration_s <= 1.03 * bound_s


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_simulator_tells_what_every_schedule_takes(
    measured: dict[str, tuple[Plan, float]], variant: str
) -> None:
    """Within 2%."""
    plan, iteration_s = measured[variant]
    assert simulate(plan).iteration_s == pytest.approx(iteration_s, rel=0.02)


@pytest.mark.parametrize("variant", ["megatron-interleaved2", "megatron-zero-bubble"])
def test_schedules_with_smaller_bubbles_are_faster(
    measured: dict[str, tuple[Plan, float]], variant: str
) -> None:
    """Than 1F1B, and no faster than a pipeline without a bubble."""
    plan, iteration_s = measured[variant]
    m, compute_s, _ = parts_s(plan)
    assert m * compute_s < iteration_s < measured["megatron"][1]
