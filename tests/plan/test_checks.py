"""Settings that cannot be planned are refused with a message that says what to choose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netbench.errors import PlanError
from netbench.plan.build import build_plan
from netbench.plan.checks import dynamics_doubt
from netbench.plan.model import Execution
from netbench.plan.scale import keep_dynamics
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting

CASE3 = load_scenario("case3")
EXAMPLE = load_scenario("example-two-labs")


@pytest.mark.parametrize(
    ("variant", "layers", "batch", "message"),
    [
        ("dtfm-random", 0, 1024, "layers is 0; expected a whole number from 1 to 10000"),
        ("dtfm-random", 24, -1, "batch is -1; expected a whole number from 1 to 1000000"),
        ("megatron-t3", 24, 1024, "heads is 16, which does not divide among 3 tensor-parallel"),
        ("megatron-t32", 24, 1024, "heads is 16, which does not divide among 32 tensor-parallel"),
        (
            "megatron-p8-interleaved2",
            24,
            1024,
            "24 layers cannot be divided into 8 stages x 2 chunks",
        ),
        ("megatron-t8-interleaved2", 24, 1024, "megatron-t8-interleaved2 has one pipeline stage"),
        (
            "megatron-p8-interleaved3",
            24,
            96,
            "megatron-p8-interleaved3 interleaves, so it needs a multiple of 8 micro-",
        ),
    ],
)
def test_sizes_that_do_not_suit_the_variant_are_refused(
    variant: str, layers: int, batch: int, message: str
) -> None:
    """With what was found and what was expected."""
    with pytest.raises(PlanError) as caught:
        build_plan(
            CASE3,
            variant,
            Setting(layers=layers, batch=batch, seed=2022),
            Execution(iterations=3, warmup_iterations=1),
        )
    assert str(caught.value).startswith(message)


def test_layers_that_cannot_compute_are_refused_before_any_rank_starts() -> None:
    """Named models on a GPT's tokens."""
    named = load_scenario("dp-scaling")
    batch = named.workload.batch
    with pytest.raises(PlanError, match="resnet18 is trained on synthetic data; leave out the tok"):
        build_plan(
            named,
            "ddp",
            Setting(layers=18, batch=batch),
            Execution(iterations=2, warmup_iterations=1, compute="cpu", token_file="tokens.bin"),
        )


@pytest.mark.parametrize(("iterations", "warmup"), [(1, 1), (2, 3), (2, -1), (0, 0)])
def test_at_least_one_iteration_must_count(iterations: int, warmup: int) -> None:
    """Warm-ups alone give no result."""
    with pytest.raises(PlanError, match="iterations"):
        build_plan(
            EXAMPLE,
            "zero3",
            Setting(layers=8, batch=16),
            Execution(iterations=iterations, warmup_iterations=warmup),
        )


@pytest.mark.parametrize("scale", [0.0, -1.0, 0.001, 1e308, float("nan"), float("inf")])
def test_a_scale_divides_by_one_to_a_million(scale: float) -> None:
    """It divides bytes and rates."""
    with pytest.raises(PlanError, match="expected a number from 1 to 1000000"):
        build_plan(EXAMPLE, "zero3", Setting(layers=8, batch=16), Execution(scale=scale))


@pytest.mark.parametrize("variant", ["dtfm-random", "dtfm-scheduled"])
@pytest.mark.parametrize("seed", [-1, 1 << 32])
def test_a_seed_must_be_one(variant: str, seed: int) -> None:
    """Even if the placement ignores the seed."""
    with pytest.raises(PlanError, match=rf"seed is {seed}; expected .* 0 to 4294967295"):
        build_plan(
            load_scenario("case3"), variant, Setting(layers=24, batch=1024, seed=seed), Execution()
        )


def test_a_micro_batch_must_be_positive() -> None:
    """Like layers and batch."""
    with pytest.raises(
        PlanError, match="micro_batch is 0; expected a whole number from 1 to 1000000"
    ):
        build_plan(EXAMPLE, "zero3", Setting(layers=8, batch=16, micro_batch=0), Execution())


@pytest.mark.parametrize("stage_layers", [(0, 6, 6), (-1, 7, 6), (6, 6), (4, 4, 5)])
def test_stages_without_layers_or_that_do_not_add_up_are_refused(
    stage_layers: tuple[int, ...],
) -> None:
    """Three stages of 12 layers: each has one at least."""
    with pytest.raises(PlanError, match="expected 3 stages of at least one layer each that add up"):
        build_plan(
            load_scenario("gpt3-small"),
            "dtfm-scheduled",
            Setting(layers=12, batch=64, network="10ms-1Gbit"),
            Execution(),
            stage_layers=stage_layers,
        )


def test_a_scale_without_segments_is_doubted_where_the_first_window_would_matter() -> None:
    """Case 3: 1.12 Gbit/s x 22 ms are 3.1 MB, 16 sockets start with 160 x 8949 bytes, 1.4 MB."""
    case3 = load_scenario("case3")
    setting = case3.sweep.first_setting()
    plan = build_plan(case3, "dtfm-scheduled", setting, Execution(scale=1000.0))
    doubt = dynamics_doubt(plan)
    assert "2 kinds of links, up to 3.08MB" in doubt
    assert "first window of 1.43184MB; use --faithful" in doubt
    sharded = build_plan(case3, "zero3", setting, Execution(scale=1000.0))
    assert "too large for --faithful" in dynamics_doubt(sharded)
    assert "use --faithful" not in dynamics_doubt(sharded)
    assert keep_dynamics(sharded, case3) == sharded
    assert dynamics_doubt(replace(plan, scale=1.0)) == ""
    assert dynamics_doubt(keep_dynamics(plan, case3)) == ""
    near = replace(case3.network, links=((case3.network.links[0][0],) * 2,) * 2)
    assert dynamics_doubt(replace(plan, network=near)) == ""  # 5 Gbit/s x 2 ms fit
