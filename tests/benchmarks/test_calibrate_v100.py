"""The calibration of the V100 profile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibrate_v100 import (
    A40_SCENARIOS,
    DERIVED,
    render_profile,
    rewrite_a40,
    rewrite_derived,
    summary_table,
)
from benchmarks.fit_v100 import (
    HEAD_FLOPS,
    Bench,
    Constants,
    Residual,
    Simulator,
    as_written,
    fit_dtfm,
    fit_megatron,
    fit_zero3,
    gauss_newton,
    per_slot,
    profile_of,
    with_head,
    with_micro_batch,
)
from netbench.plan.build import build_plan
from netbench.plan.model import Execution
from netbench.scenario.devices import device_profile, read_device_profile
from netbench.scenario.load import load_scenario
from netbench.scenario.model import Setting
from netbench.scenario.schema import DeviceForm
from netbench.scenario.source import read_source
from netbench.scenario.validate import validate
from netbench.simulator import load_transport, simulate
from netbench.workload.costs import pflop_per_iteration, stage_costs

NCCL = load_transport("nccl")
KNOWN = Constants(
    layer_s={"dtfm": 18e-3, "megatron": 16.5e-3, "zero3": 16.5e-3},
    optimizer_s=4.5e-9,
    collective_s=12e-3,
)


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def made_up(pool: Executor, *keys: tuple[str, str, int, int]) -> Bench:
    """Return settings whose published times are those of KNOWN; cases 1 and 2 only, so a fit that
    asked for another case would fail."""
    bench = Bench(dict.fromkeys(keys, 1.0), pool)
    simulator = Simulator(constants=KNOWN, transport=NCCL)
    rows = bench.residuals(simulator, {key[0] for key in keys}, {key[1] for key in keys})
    times = {(r.case, r.variant, r.layers, r.batch): r.simulated_s for r in rows}
    return Bench(times, pool)


def test_gauss_newton_finds_the_least_squares_of_a_curve() -> None:
    """A decay whose constants are known."""
    t = np.linspace(0.1, 2, 20)
    measured = 3.0 * np.exp(-1.5 * t)
    found = gauss_newton(lambda x: x[0] * np.exp(-x[1] * t) - measured, np.array([2.8, 1.4]), 8)
    assert found == pytest.approx([3.0, 1.5], rel=1e-6)


def test_dtfm_fit_recovers_the_constants_of_made_up_times(pool: Executor) -> None:
    """The layer from the time that a larger batch adds, the optimiser from the rest."""
    bench = made_up(
        pool,
        ("case1", "dtfm-scheduled", 24, 1024),
        ("case1", "dtfm-scheduled", 24, 4096),
        ("case2", "dtfm-scheduled", 40, 1024),
        ("case2", "dtfm-scheduled", 40, 4096),
    )
    found = fit_dtfm(bench, NCCL)
    assert found.layer_s["dtfm"] == pytest.approx(KNOWN.layer_s["dtfm"], rel=1e-3)
    assert found.optimizer_s == pytest.approx(KNOWN.optimizer_s, rel=1e-2)


def test_megatron_fit_recovers_layer_and_rates_inside_a_node_and_of_its_host(
    pool: Executor,
) -> None:
    """More tensor parallelism is more all-reduce and less compute; only case 2 has hosts that are
    slower than their NICs in both directions."""
    bench = made_up(
        pool,
        ("case1", "megatron-t8", 24, 1024),
        ("case1", "megatron-p4t2", 24, 1024),
        ("case2", "megatron-p4t2", 24, 1024),
    )
    found, inside_bps, host_bps = fit_megatron(bench, NCCL)
    assert host_bps == pytest.approx(min(load_scenario("case2").network.host_bps), rel=2e-2)
    assert found.layer_s["megatron"] == pytest.approx(KNOWN.layer_s["megatron"], rel=1e-2)
    assert inside_bps == pytest.approx(NCCL.inside_node_bps, rel=2e-2)


def test_zero3_fit_recovers_the_host_time_of_a_collective(pool: Executor) -> None:
    """With a known layer time."""
    bench = made_up(pool, ("case1", "zero3", 40, 1024))
    found = fit_zero3(bench, NCCL, KNOWN.layer_s["zero3"])
    assert found.constants.collective_s == pytest.approx(KNOWN.collective_s, rel=1e-2)


@pytest.mark.parametrize("variant", ["dtfm-scheduled", "megatron-p8", "zero3"])
def test_every_batch_of_a_setting_is_simulated(variant: str) -> None:
    """Equal to simulating the plan of each batch with the fitted device."""
    simulator = Simulator(constants=KNOWN, transport=NCCL)
    batches = (1024, 2048, 4096)
    found = simulator.seconds(("case1", variant, 24, 2022, batches))
    scenario = load_scenario("case1")
    scenario.devices["V100"] = profile_of(KNOWN, scenario.workload)
    plans = [
        build_plan(
            scenario,
            variant,
            Setting(layers=24, batch=batch, seed=2022),
            Execution(iterations=2, warmup_iterations=1, scale=1.0),
        )
        for batch in batches
    ]
    assert found == [simulate(plan).iteration_s for plan in plans]


def test_residuals_are_those_of_the_profile_that_is_written(tmp_path: Path) -> None:
    """The constants read back from the file are those of the residuals."""
    constants = as_written(KNOWN)
    path = tmp_path / "V100.yaml"
    path.write_text(render_profile(constants), encoding="utf-8")
    read = validate(read_source(path), DeviceForm)
    judged = profile_of(constants, load_scenario("case1").workload)
    assert isinstance(read.flops, dict)
    assert isinstance(read.optimizer_per_parameter, dict)
    assert isinstance(read.collective, dict)
    assert {name: read.flops[name] for name in judged.flops} == pytest.approx(
        judged.flops, rel=1e-12
    )
    assert read.optimizer_per_parameter["dtfm"] == pytest.approx(constants.optimizer_s, rel=1e-12)
    assert read.collective["zero3"] == pytest.approx(constants.collective_s, rel=1e-12)


def test_a_profile_spends_the_seconds_it_was_made_from() -> None:
    """Through the workload's own cost model, forward + backward of one layer."""
    workload = load_scenario("case1").workload
    profile = profile_of(Constants(layer_s={"dtfm": 0.02}), workload)
    stage = stage_costs(workload, profile, system="dtfm", num_stages=8)[0]
    assert stage.forward_s + stage.backward_s == pytest.approx(0.02 * workload.layers / 8)
    work = 1e15 * pflop_per_iteration(workload) / workload.layers / workload.batch
    assert profile.flops["dtfm"] == pytest.approx(work / 0.02)


def test_a_rendered_profile_is_read_back(tmp_path: Path) -> None:
    """It loads like a built-in one; the host time of a collective affects only zero3's plans."""
    path = tmp_path / "V100.yaml"
    path.write_text(render_profile(KNOWN), encoding="utf-8")
    read = device_profile("V100", validate(read_source(path), DeviceForm))
    scenario = load_scenario("case1")
    made = profile_of(KNOWN, scenario.workload)
    assert {name: read.flops[name] for name in made.flops} == pytest.approx(made.flops, rel=2e-3)
    assert read.optimizer_s_per_parameter == pytest.approx(made.optimizer_s_per_parameter)
    assert (read.collective_s, read.memory_bytes) == ({"zero3": 12e-3, "default": 0.0}, 16e9)
    scenario.devices["V100"] = read
    plans = [
        build_plan(
            scenario,
            variant,
            Setting(layers=24, batch=1024, seed=2022),
            Execution(iterations=2, warmup_iterations=1, scale=1.0),
        )
        for variant in ("zero3", "ddp", "dtfm-scheduled")
    ]
    assert [plan.collective_s for plan in plans] == [12e-3, 0.0, 0.0]


@pytest.mark.parametrize("path", A40_SCENARIOS, ids=lambda path: path.stem)
def test_an_a40_is_rewritten_by_the_ratio_of_the_peaks(path: Path, tmp_path: Path) -> None:
    """150 TFLOPS over 125; nothing else of the scenario changes."""
    before = load_scenario(str(path))
    copy = tmp_path / path.name
    copy.write_text(rewrite_a40(path.read_text(encoding="utf-8"), KNOWN), encoding="utf-8")
    after = load_scenario(str(copy))
    made = profile_of(KNOWN, before.workload).flops
    found = after.devices["A40"].flops
    assert {name: found[name] for name in made} == pytest.approx(
        {name: flops * 150 / 125 for name, flops in made.items()}, rel=2e-3
    )
    assert (after.network, after.nodes, after.workload) == (
        before.network,
        before.nodes,
        before.workload,
    )
    assert after.devices["A40"].memory_bytes == before.devices["A40"].memory_bytes


@pytest.mark.parametrize(("path", "factor"), DERIVED.items(), ids=lambda value: str(value)[-8:])
def test_a_derived_profile_is_rewritten_by_the_ratio_of_the_peaks(
    path: Path, factor: float, tmp_path: Path
) -> None:
    """150 and 65 TFLOPS over 125; its memory and its source stay."""
    copy = tmp_path / path.name
    copy.write_text(rewrite_derived(path.read_text(encoding="utf-8"), KNOWN, factor))
    before, after = (read_device_profile(path.stem, file) for file in (path, copy))
    made = profile_of(KNOWN, load_scenario("case1").workload).flops
    assert {name: after.flops[name] for name in made} == pytest.approx(
        {name: flops * factor for name, flops in made.items()}, rel=2e-3
    )
    assert after.flops != before.flops
    assert (after.memory_bytes, after.source) == (before.memory_bytes, before.source)
    with pytest.raises(ValueError, match="0 speeds"):
        rewrite_derived("memory: 16GB\n", KNOWN, factor)


def test_a_scenario_without_an_a40_is_refused() -> None:
    """It is not left unchanged silently."""
    with pytest.raises(ValueError, match="0 A40 profiles"):
        rewrite_a40("devices:\n  V100: builtin\n", KNOWN)


def test_a_head_works_in_the_last_stage_and_is_shared_by_tensor_parallel_ranks() -> None:
    """6 s h V FLOP, a third of it forward."""
    plan = build_plan(
        load_scenario("case1"),
        "megatron-p4t2",
        Setting(layers=24, batch=1024, seed=2022),
        Execution(iterations=2, warmup_iterations=1, scale=1.0),
    )
    changed = with_head(plan, 50e12)
    assert changed.stages[:-1] == plan.stages[:-1]
    head_s = 6 * 2048 * 2048 * 51200 / 50e12 / 2
    assert pytest.approx(HEAD_FLOPS / 50e12 / 2) == head_s
    forward_s = changed.stages[-1].forward_s - plan.stages[-1].forward_s
    backward_s = changed.stages[-1].backward_s - plan.stages[-1].backward_s
    assert (forward_s, backward_s) == pytest.approx((head_s / 3, 2 * head_s / 3))


def test_micro_steps_of_another_size_compute_as_much() -> None:
    """Half the sequences, twice the steps."""
    plan = build_plan(
        load_scenario("case1"),
        "zero3",
        Setting(layers=24, batch=1024, seed=2022),
        Execution(iterations=2, warmup_iterations=1, scale=1.0),
    )
    changed = with_micro_batch(plan, 2)
    assert (plan.num_micro_batches, changed.num_micro_batches) == (4, 8)
    assert changed.num_micro_batches * changed.stages[0].forward_s == pytest.approx(
        plan.num_micro_batches * plan.stages[0].forward_s
    )


def test_what_a_micro_batch_adds_is_a_difference_of_batches() -> None:
    """8 pipelines share 3072 more sequences; a setting with one batch has no difference."""
    rows = [
        Residual(
            case="case1",
            variant=variant,
            layers=24,
            batch=batch,
            published_s=10 + batch / 1024,
            simulated_s=5 + batch / 512,
        )
        for variant, batch in (
            ("dtfm-scheduled", 1024),
            ("dtfm-scheduled", 4096),
            ("megatron-t8", 1024),
        )
    ]
    (slot,) = per_slot(rows)
    assert (slot.published_s, slot.simulated_s) == pytest.approx((8 / 1024, 8 / 512))


def test_the_summary_averages_errors_without_their_signs() -> None:
    """+10% and -20% are 15% off, -5% on average."""
    rows = [
        Residual(
            case="case1",
            variant="zero3",
            layers=24,
            batch=batch,
            published_s=10.0,
            simulated_s=seconds,
        )
        for batch, seconds in ((1024, 11.0), (2048, 8.0))
    ]
    assert summary_table(rows).splitlines()[-1] == "| zero3 | 15.0% (-5.0%) | 15.0% |"
