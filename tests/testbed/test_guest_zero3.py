"""ZeRO-3 in virtual time on four equal nodes, against closed forms and the simulator."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from netbench.plan import Plan, plan_from_json
from netbench.records import find_run, read_run
from netbench.simulator import simulate

pytestmark = pytest.mark.guest

N = 4
RATE_BPS, DELAY_S = 1e9, 0.001
HEADERS = (1500 + 14) / (1500 - 52)
VARIANTS = ("zero3", "zero3-prefetch", "zero3-hybrid2", "zero3-accumulate")
SCENARIO = """\
regions: [Here]
nodes: [{region: Here, count: 4, device: Slow}]
network: {inside: {one_way_delay: 1ms, bandwidth: 1Gbit}}
devices: {Slow: {flops: 0.1TFLOPS}}
workload: {layers: 8, hidden: 256, heads: 8, sequence: 256, batch: 32, dtype: fp16}
sweep: {pipeline: 4, variants: [VARIANTS]}
"""
RUN_TIMEOUT_S = 500.0


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Plan, float]]:
    """One boot: by variant, the plan and the seconds of the iteration after the warm-up."""
    folder = tmp_path_factory.mktemp("zero3")
    scenario = folder / "uniform.yaml"
    scenario.write_text(SCENARIO.replace("VARIANTS", ", ".join(VARIANTS)))
    options = ("--iterations", "1", "--scale", "1", "--results", str(folder))
    done = subprocess.run(
        [sys.executable, "-m", "netbench.cli", "run", str(scenario), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    path = find_run(folder, "uniform")
    assert path is not None
    run = read_run(path)
    found = {
        record.variant: (
            plan_from_json(json.dumps(run.plans[record.plan_hash])),
            record.iteration_s,
        )
        for record in run.records
        if not record.warmup
    }
    assert found.keys() == set(VARIANTS)
    return found


def computing_s(plan: Plan) -> float:
    """Of an iteration: two micro-steps, and the update."""
    (cost,) = plan.stages
    assert plan.num_micro_batches == 2
    return 2 * (cost.forward_s + cost.backward_s) + cost.optimizer_s


def ring_s(num_bytes: float, size: int) -> float:
    """One pass of a ring: size - 1 steps of a part each."""
    return (size - 1) * (num_bytes / size * 8 / RATE_BPS * HEADERS + DELAY_S)


def test_in_turn_every_micro_step_gathers_and_scatters(
    measured: dict[str, tuple[Plan, float]],
) -> None:
    """All parameters are live, so they are gathered once; at most 3% more."""
    plan, iteration_s = measured["zero3"]
    bound_s = computing_s(plan) + 2 * 2 * ring_s(plan.stages[0].gradient_bytes, N)
    assert bound_s <= iteration_s <= 1.03 * bound_s


def test_prefetched_only_the_first_gather_and_the_last_scatter_show(
    measured: dict[str, tuple[Plan, float]],
) -> None:
    """Of 8 units, each of which computes for longer than its collectives take; at most 3% more."""
    plan, iteration_s = measured["zero3-prefetch"]
    unit_s = ring_s(plan.stages[0].gradient_bytes / 8, N)
    assert unit_s < plan.stages[0].forward_s / 8
    bound_s = computing_s(plan) + 2 * 2 * unit_s
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
