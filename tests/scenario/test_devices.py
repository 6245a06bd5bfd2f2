"""Device profiles, built in and in files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from netbench.errors import ScenarioError
from netbench.plan.build import build_plan
from netbench.scenario import load_scenario
from netbench.scenario.devices import list_device_profiles, load_device_profile, read_device_profile
from netbench.scenario.model import JITTER

Bend = Callable[..., str]


def test_every_built_in_profile_says_where_it_comes_from() -> None:
    """Each has a speed and a memory too."""
    assert "V100" in list_device_profiles()
    for name in list_device_profiles():
        profile = load_device_profile(name)
        assert profile.source
        assert all(1e12 < flops < 1e16 for flops in profile.flops.values())
        assert 1e9 < profile.memory_bytes < 1e12


def test_a_v100_has_16_gb_and_less_speed_than_its_peak() -> None:
    """125 TFLOPS is the peak of its tensor cores (NVIDIA's data sheet)."""
    profile = load_device_profile("V100")
    assert profile.memory_bytes == 16e9
    assert max(profile.flops.values()) < 125e12


@pytest.mark.parametrize(
    ("name", "peak_tflops", "memory_bytes"), [("A40", 150, 48e9), ("T4", 65, 16e9)]
)
def test_a_derived_profile_reaches_the_share_of_its_peak_that_a_v100_does(
    name: str, peak_tflops: float, memory_bytes: float
) -> None:
    """Nominal fp16 TFLOPS over the V100's 125, with three digits; host overheads are equal."""
    derived, v100 = load_device_profile(name), load_device_profile("V100")
    assert derived.flops == {
        system: pytest.approx(flops * peak_tflops / 125, rel=0.002)
        for system, flops in v100.flops.items()
    }
    assert derived.optimizer_s_per_parameter == v100.optimizer_s_per_parameter
    assert derived.collective_s == v100.collective_s
    assert derived.memory_bytes == memory_bytes
    assert "not measured" in derived.source


def test_the_built_in_a40_is_that_of_the_scenarios_that_have_their_own() -> None:
    """fluidstack2 and fluidstack3 contain it."""
    built_in = load_device_profile("A40")
    for name in ("fluidstack2", "fluidstack3"):
        written = load_scenario(name).devices["A40"]
        assert (written.flops, written.memory_bytes) == (built_in.flops, built_in.memory_bytes)
        assert written.optimizer_s_per_parameter == built_in.optimizer_s_per_parameter
        assert written.collective_s == built_in.collective_s


def test_an_unknown_built_in_profile_gets_the_nearest() -> None:
    """The error suggests the nearest name."""
    with pytest.raises(ScenarioError, match='no built-in device profile "V10"; did you mean V100'):
        load_device_profile("V10")


def test_a_profile_in_the_file_can_differ_per_system(bend: Bend) -> None:
    """It may replace a built-in name; missing keys mean no limit and no cost."""
    path = bend(more="devices: {V100: {flops: {dtfm: 50TFLOPS, default: 40TFLOPS}}}\n")
    profile = load_scenario(path).devices["V100"]
    assert profile.flops == {"dtfm": 50e12, "default": 40e12}
    assert profile.optimizer_s_per_parameter == {"default": 0.0}
    assert math.isinf(profile.memory_bytes)


def test_a_single_speed_holds_for_every_system(bend: Bend) -> None:
    """It is stored under `default`, like the optimizer's time."""
    more = "devices: {V100: {flops: 50TFLOPS, optimizer_per_parameter: 2ns, memory: 16GB}}\n"
    profile = load_scenario(bend(more=more)).devices["V100"]
    assert profile.flops == {"default": 50e12}
    assert profile.optimizer_s_per_parameter == {"default": 2e-9}
    assert profile.memory_speed == {}
    assert profile.jitter == JITTER


def test_jitter_is_a_fraction_of_the_time_of_a_pass(bend: Bend) -> None:
    """A plan has that of the device that varies most."""
    more = "devices: {V100: {flops: 50TFLOPS, jitter: 1.5%}}\n"
    assert load_scenario(bend(more=more)).devices["V100"].jitter == 0.015
    mixed = load_scenario("mixed-gpu")
    for varies, least in (("V100", 0.02), ("T4", 0.03)):
        device = dataclasses.replace(mixed.devices[varies], jitter=least)
        several = dataclasses.replace(mixed, devices=mixed.devices | {varies: device})
        plan = build_plan(several, "dtfm-random", several.sweep.first_setting())
        assert plan.jitter == least


@pytest.mark.parametrize(
    ("written", "read"), [("900GB/s", {"default": 9e11}), ("{fp32: 450GB/s}", {"fp32": 4.5e11})]
)
def test_the_speed_of_memory_is_one_or_by_type(
    bend: Bend, written: str, read: dict[str, float]
) -> None:
    """In bytes per second."""
    more = f"devices: {{V100: {{flops: 50TFLOPS, memory_speed: {written}}}}}\n"
    assert load_scenario(bend(more=more)).devices["V100"].memory_speed == read


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("devices: {V101: builtin}\n", ":10: devices.V101 is not built in; did you mean V100?"),
        ("devices: {V100: builtn}\n", ":10: devices.V100 is \"builtn\"; expected 'builtin'"),
        ("devices: {V100: 55}\n", ":10: devices.V100 is 55; expected a mapping with flops"),
        (
            "devices: {V100: {flops: 55}}\n",
            ':10: devices.V100.flops "55" has no unit; write e.g. "55TFLOPS"',
        ),
        ("devices: {V100: {flops: {zero3: 1}}}\n", ':10: devices.V100.flops.zero3 "1" has no unit'),
        (
            "devices: {V100: {flops: 55TFLOPS, memory_speed: 900GB}}\n",
            ':10: devices.V100.memory_speed "900GB" has',
        ),
        (
            "devices: {V100: {flops: 55TFLOPS, memory_speed: {dtfm: 900GB/s}}}\n",
            ":10: devices.V100.memory_speed.dtfm",
        ),
        ("devices: {V100: {flops: 55TFLOPS, jitter: 30%}}\n", ":10: devices.V100.jitter"),
        ("devices: {V100: {memory: 16GB}}\n", ":10: devices.V100.flops is missing; write e.g."),
    ],
)
def test_a_wrong_profile_is_named(bend: Bend, more: str, message: str) -> None:
    """The error has line and key, without names of alternatives."""
    path = bend(more=more)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert str(caught.value).removeprefix(path).startswith(message)


def test_a_profile_can_be_a_file_beside_the_scenario(bend: Bend, tmp_path: Path) -> None:
    """Its path is relative to the scenario's folder, its form that of built-in profiles."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        "flops: {fp32: 60GFLOPS, default: 50GFLOPS}\nlayer: {default: 0.5ms}\nmemory: 8GB\n"
    )
    profile = load_scenario(bend(more="devices: {V100: profiles/mine.yaml}\n")).devices["V100"]
    assert profile.name == "V100"
    assert profile.flops == {"fp32": 60e9, "default": 50e9}
    assert profile.layer_s == {"default": 0.5e-3}
    assert profile.memory_bytes == 8e9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, 'devices.V100 is "mine2.yaml", but '),
        ("memory: 16GB\n", "mine2.yaml:1: flops is missing; write e.g."),
        ("flops: 3\n", 'mine2.yaml:1: flops "3" has no unit'),
        ("flops: 3TFLOPS\nlayers: 1ms\n", "mine2.yaml:2: layers is an unknown key"),
    ],
)
def test_a_wrong_file_is_named(bend: Bend, tmp_path: Path, text: str | None, message: str) -> None:
    """The error is in the scenario if the file is missing, else in the file."""
    if text is not None:
        (tmp_path / "mine2.yaml").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(bend(more="devices: {V100: mine2.yaml}\n"))
    assert message in str(caught.value)


@pytest.mark.parametrize("memory", ["0B", "0GB"])
def test_a_device_without_memory_is_refused(memory: str, tmp_path: Path) -> None:
    """A warning compares with it by division."""
    path = tmp_path / "none.yaml"
    path.write_text(f"flops: 1TFLOPS\nmemory: {memory}\n")
    with pytest.raises(ScenarioError, match=rf'memory is "{memory}"; expected more than 0'):
        read_device_profile("none", path)
