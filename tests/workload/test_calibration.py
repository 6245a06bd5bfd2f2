"""Fits of a device, on times made from known constants; and the profile that is written."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from netbench.scenario.devices import read_device_profile
from netbench.workload.calibration import (
    PASSES,
    Calibration,
    LayerTimes,
    Point,
    Time,
    fit_layer,
    grid,
    profile_yaml,
)
from netbench.workload.costs import layer_forward_flops, layer_traffic_bytes, stage_costs

POINTS = grid([256, 512, 1024], [128, 256], [1, 2, 4], ["fp32"])


def timed(
    point: Point, flops: float, layer_s: float, noise: float = 0.0, memory_speed: float = math.inf
) -> LayerTimes:
    """Seconds of a pass on a device with these constants."""
    random = np.random.default_rng(point.hidden + point.sequence + point.micro_batch)
    return LayerTimes(
        point=point,
        passes={
            name: Time(
                median_s=count
                * (
                    layer_s
                    + layer_forward_flops(point.workload) / flops
                    + layer_traffic_bytes(point.workload) / memory_speed
                )
                * (1 + noise * random.uniform(-1, 1)),
                spread=0.02,
                num_runs=9,
            )
            for name, count in PASSES.items()
        },
        activation_bytes=1_000_000,
        peak_bytes=2_000_000,
    )


@pytest.mark.parametrize(("flops", "layer_s"), [(50e9, 0.0), (50e9, 1e-3), (300e12, 2e-5)])
def test_the_constants_of_a_device_are_found(flops: float, layer_s: float) -> None:
    """To rounding without noise, and within it with 5%."""
    found = fit_layer([timed(point, flops, layer_s) for point in POINTS])
    assert found.flops == pytest.approx(flops, rel=1e-6)
    assert found.layer_s == pytest.approx(layer_s, rel=1e-6, abs=1e-12)
    noisy = fit_layer([timed(point, flops, layer_s, 0.05) for point in POINTS])
    assert noisy.flops == pytest.approx(flops, rel=0.1)


@pytest.mark.parametrize("layer_s", [0.0, 1e-4])
def test_the_speed_of_memory_is_told_from_that_of_products(layer_s: float) -> None:
    """Only where there is any: other devices get no third constant, and with 1% of noise the speeds
    come out within a fifth, although both kinds of work grow with the same sizes."""
    found = fit_layer([timed(point, 50e9, layer_s, memory_speed=20e9) for point in POINTS])
    assert found.memory_speed == pytest.approx(20e9, rel=1e-5)
    assert found.flops == pytest.approx(50e9, rel=1e-5)
    assert found.layer_s == pytest.approx(layer_s, rel=1e-4, abs=1e-9)
    noisy = fit_layer([timed(point, 50e9, layer_s, 0.01, 20e9) for point in POINTS])
    assert noisy.memory_speed == pytest.approx(20e9, rel=0.2)
    assert noisy.flops == pytest.approx(50e9, rel=0.2)
    assert math.isinf(fit_layer([timed(point, 50e9, layer_s) for point in POINTS]).memory_speed)


def test_a_device_whose_rate_falls_with_size_gets_no_negative_constant() -> None:
    """The line that fits best would pass below the origin: the rate alone is fitted."""
    measured = [timed(point, 60e9 if point.hidden < 1024 else 20e9, 0.0) for point in POINTS]
    found = fit_layer(measured)
    assert found.layer_s == 0
    errors = [abs(found.residual(times, name)) for times in measured for name in PASSES]
    for factor in (0.97, 1.03):  # least squares of the relative error: no rate beside it is better
        other = dataclasses.replace(found, flops=found.flops * factor)
        worse = [abs(other.residual(times, name)) for times in measured for name in PASSES]
        assert sum(e**2 for e in worse) > sum(e**2 for e in errors)


def test_one_point_gives_its_own_rate() -> None:
    """It cannot tell a constant from a rate, and needs none."""
    (point, *_) = POINTS
    found = fit_layer([timed(point, 50e9, 0.0)])
    assert found.flops == pytest.approx(50e9)
    assert found.layer_s == 0


def test_the_grid_is_one_axis_at_a_time_cheapest_first() -> None:
    """3 + 2 + 3 values around one middle: 6 points per dtype."""
    points = grid([1024, 256, 512], [128, 256], [4, 1, 2], ["fp32", "bf16"])
    assert len(points) == len(set(points)) == 2 * (3 + 2 + 3 - 2)
    work = [layer_forward_flops(point.workload) for point in points]
    assert work[:6] == sorted(work[:6]) == work[6:]
    assert {point.dtype for point in points[:6]} == {"fp32"}
    assert all(point.hidden == 64 * point.heads for point in points)


@pytest.mark.parametrize("memory_speed", [math.inf, 20e9])
def test_the_profile_predicts_what_was_measured(tmp_path: Path, memory_speed: float) -> None:
    """Written, read as a scenario would, and given to the cost model: the times come back, to the
    digits that are written, with and without recomputation."""
    measured = tuple(timed(point, 50e9, 1e-3, memory_speed=memory_speed) for point in POINTS)
    calibration = Calibration(
        device="test device",
        measured=measured,
        fits={"fp32": fit_layer(measured)},
        optimizer_s={"dtfm": 1.2345e-9, "default": 3e-9},
        memory_bytes=8_000_000_000,
        provenance=("a machine", "a date: today"),
    )
    path = tmp_path / "mine.yaml"
    path.write_text(profile_yaml(calibration))
    profile = read_device_profile("mine", path)
    assert profile.optimizer_s_per_parameter == pytest.approx(calibration.optimizer_s, rel=1e-3)
    assert profile.memory_bytes == 8e9
    assert profile.jitter == pytest.approx(0.02 / 1.349, abs=5e-5)
    assert bool(profile.memory_speed) == math.isfinite(memory_speed)
    assert profile.source == "a machine a date: today"
    assert calibration.error("fp32") == pytest.approx(0, abs=1e-6)
    for times in measured:
        for recomputes, name in ((False, "backward"), (True, "recomputing_backward")):
            workload = dataclasses.replace(times.point.workload, recomputation=recomputes)
            (stage,) = stage_costs(workload, profile, system="megatron", num_stages=1)
            assert stage.forward_s == pytest.approx(times.passes["forward"].median_s, rel=1e-3)
            assert stage.backward_s == pytest.approx(times.passes[name].median_s, rel=1e-3)


def test_a_dtype_without_a_fit_takes_the_first(tmp_path: Path) -> None:
    """fp16 on a device that was measured in fp32 and bf16."""
    measured = {
        dtype: tuple(timed(dataclasses.replace(point, dtype=dtype), flops, 0.0) for point in POINTS)
        for dtype, flops in (("fp32", 50e9), ("bf16", 80e9))
    }
    calibration = Calibration(
        device="test device",
        measured=(*measured["fp32"], *measured["bf16"]),
        fits={dtype: fit_layer(times) for dtype, times in measured.items()},
        optimizer_s={"default": 3e-9},
        memory_bytes=8_000_000_000,
        provenance=("a machine",),
    )
    path = tmp_path / "mine.yaml"
    path.write_text(profile_yaml(calibration))
    profile = read_device_profile("mine", path)
    workload = POINTS[0].workload
    seconds = {
        dtype: stage_costs(
            dataclasses.replace(workload, dtype=dtype), profile, system="dtfm", num_stages=1
        )[0].forward_s
        for dtype in ("fp32", "bf16", "fp16")
    }
    assert seconds["fp16"] == seconds["fp32"]
    assert seconds["bf16"] == pytest.approx(seconds["fp32"] * 50 / 80, rel=1e-3)
