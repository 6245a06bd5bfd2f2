"""The calibration of the V100 profile."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.calibrate_v100 import (
    BATCHES,
    LAYERS,
    TENSOR_LAYOUTS,
    Constants,
    fit_megatron,
    fit_zero3,
    gauss_newton,
    profile_of,
    read_published,
    replay_rows,
)
from netbench.scenario.devices import load_device_profile
from netbench.scenario.load import load_scenario
from netbench.workload.costs import pflop_per_iteration, stage_costs


def test_gauss_newton_finds_the_least_squares_of_a_curve() -> None:
    """A decay whose constants are known."""
    t = np.linspace(0.1, 2, 20)
    measured = 3.0 * np.exp(-1.5 * t)
    found = gauss_newton(lambda x: x[0] * np.exp(-x[1] * t) - measured, np.array([2.8, 1.4]), 8)
    assert found == pytest.approx([3.0, 1.5], rel=1e-6)


def test_megatron_fit_recovers_the_constants_of_made_up_times() -> None:
    """18 ms a layer, 3 ms a ring pass, and a constant per layout."""
    times = {
        ("case1", name, layers, batch): (batch // 8 + pp - 1)
        * (layers / pp * (0.018 / tp + 0.003 * 2 * (tp - 1) / tp))
        + batch // 8 * 0.01 * tp
        for name, (tp, pp) in TENSOR_LAYOUTS.items()
        for layers in LAYERS
        for batch in BATCHES
    }
    found = fit_megatron(times)
    assert (found.layer_s, found.ring_s) == pytest.approx((0.018, 0.003))
    assert list(found.layout_s.values()) == pytest.approx(
        [0.01 * tp for tp, _ in TENSOR_LAYOUTS.values()]
    )


def test_no_constant_depends_on_cases_3_to_5() -> None:
    """The fits give the same without those rows, and the profile in the package holds them."""
    times = {key: s for key, s in read_published().items() if key[0] in ("case1", "case2")}
    fitted = Constants(layer_s={"megatron": fit_megatron(times).layer_s, "zero3": fit_zero3(times)})
    flops = profile_of(fitted, load_scenario("case1").workload).flops
    kept = load_device_profile("V100").flops
    assert {name: kept[name] for name in flops} == pytest.approx(flops, rel=2e-3)


def test_a_profile_spends_the_seconds_it_was_made_from() -> None:
    """Through the workload's own cost model, forward + backward of one layer."""
    workload = load_scenario("case1").workload
    profile = profile_of(Constants(layer_s={"dtfm": 0.02}), workload)
    stage = stage_costs(workload, profile, system="dtfm", num_stages=8)[0]
    assert stage.forward_s + stage.backward_s == pytest.approx(0.02 * workload.layers / 8)
    work = 1e15 * pflop_per_iteration(workload) / workload.layers / workload.batch
    assert profile.flops["dtfm"] == pytest.approx(work / 0.02)


def test_the_profile_explains_scheduled_dtfm_in_case_1() -> None:
    """Every published setting within 5%, 3% on average."""
    profile = load_device_profile("V100")
    workload = load_scenario("case1").workload
    one_second = profile_of(Constants(layer_s={"dtfm": 1.0}), workload).flops["dtfm"]
    constants = Constants(
        layer_s={"dtfm": one_second / profile.flops["dtfm"]},
        dtfm_optimizer_s=profile.optimizer_s_per_parameter["dtfm"],
    )
    rows = list(replay_rows(("case1",), "dtfm-scheduled", constants, read_published()))
    assert len(rows) == len(LAYERS) * len(BATCHES)
    errors = [abs(row.error) for row in rows]
    assert max(errors) < 0.05
    assert sum(errors) / len(errors) < 0.03
