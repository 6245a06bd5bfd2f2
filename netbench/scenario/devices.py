"""Read device profiles, from `netbench/workload/profiles/*.yaml` or other files."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from netbench.errors import ScenarioError, nearest
from netbench.scenario.model import DeviceProfile
from netbench.scenario.schema import DeviceForm
from netbench.scenario.source import read_source
from netbench.scenario.validate import validate

PROFILES = Path(__file__).parent.parent / "workload" / "profiles"


def list_device_profiles() -> tuple[str, ...]:
    """Return the names of the built-in profiles."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


def load_device_profile(name: str) -> DeviceProfile:
    """Return the built-in profile `name`. Raises ScenarioError suggesting the nearest."""
    known = list_device_profiles()
    if name not in known:
        raise ScenarioError(f'no built-in device profile "{name}"; {nearest(name, known)}')
    form = validate(read_source(PROFILES / f"{name}.yaml"), DeviceForm)
    return device_profile(name, form)


def read_device_profile(name: str, path: Path) -> DeviceProfile:
    """Read a profile from a file, e.g. one that `netbench calibrate` wrote.

    Raises ScenarioError naming file, line and key.
    """
    return device_profile(name, validate(read_source(path), DeviceForm))


def device_profile(name: str, form: DeviceForm) -> DeviceProfile:
    """Return the profile that a form describes; a single value applies to every system."""
    return DeviceProfile(
        name=name,
        flops=_plain(form.flops),
        optimizer_s_per_parameter=_per_system(form.optimizer_per_parameter),
        collective_s=_per_system(form.collective),
        layer_s=_per_system(form.layer),
        memory_speed={} if form.memory_speed is None else _plain(form.memory_speed),
        memory_bytes=math.inf if form.memory is None else form.memory,
        source=form.source,
        throughput={str(model): speed for model, speed in form.throughput.items()},
        step=form.step,
        host_factor=form.host_factor,
        jitter=form.jitter,
    )


def _plain(values: Mapping[Any, float] | float) -> dict[str, float]:
    return dict(values) if isinstance(values, Mapping) else {"default": values}


def _per_system(seconds: dict[str, float] | float | None) -> dict[str, float]:
    return _plain(seconds or 0.0)
