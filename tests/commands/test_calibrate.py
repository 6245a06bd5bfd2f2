"""`netbench calibrate` with a simulated device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from netbench.cli import run
from netbench.commands import calibrate
from netbench.errors import EXIT_NOT_TRUSTWORTHY, UsageError
from netbench.plan.serial import plan_from_json
from netbench.scenario.devices import read_device_profile
from netbench.testbed.cluster.certificate import FOLDER
from netbench.workload.calibration import PASSES, Point
from netbench.workload.costs import layer_forward_flops
from tests.machines import machines

CaptureFixture = pytest.CaptureFixture[str]

FLOPS, LAYER_S, UPDATE_S = 80e9, 2e-4, 1.5e-9


class Device:
    """Device with a constant rate and a constant time per layer."""

    name = ""
    machine = "a machine"
    memory_bytes = 8 << 30
    versions: dict[str, str] = {"torch": "2.x"}  # noqa: RUF012

    def __init__(self, spread: float, slower: float = 1.0) -> None:
        self.spread, self.slower = spread, slower
        self.asked: list[str] = []

    def ask(self, op: str, budget_s: float, **order: Any) -> dict[str, Any]:
        self.asked.append(op)
        if op == "layer" and order["hidden"] > 2048:
            return {"event": "skipped", "reason": "out of memory"}
        if op == "layer":
            pass_s = LAYER_S + layer_forward_flops(Point(**order).workload) / FLOPS
            times = {name: self._time(count * pass_s) for name, count in PASSES.items()}
            memory = {"activation_bytes": 1000, "peak_bytes": 2000}
            return {"event": "layer", "times": times, **memory}
        if op == "optimizer":
            update_s = UPDATE_S * order["parameters"]
            return {"event": "optimizer", "times": {"update": self._time(update_s)}}
        plan = plan_from_json(order["plan"])
        assert plan.compute == "cpu"
        (stage,) = plan.stages
        seconds = plan.num_micro_batches * (stage.forward_s + stage.backward_s) + stage.optimizer_s
        return {"event": "iterated", "times": {"iteration": self._time(seconds * self.slower)}}

    def _time(self, seconds: float) -> dict[str, float]:
        return {"median_s": seconds, "spread": self.spread, "num_runs": 7}


def use(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    @contextmanager
    def open_bench(kind: str, threads: int) -> Iterator[Device]:
        assert (kind, threads) == ("cpu", 1)
        yield device

    monkeypatch.setattr(calibrate, "open_bench", open_bench)


def test_the_profile_has_the_constants_of_the_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The profile has source and versions; the check reports the device's 25% slower iteration."""
    use(monkeypatch, Device(spread=0.01, slower=1.25))
    path = tmp_path / "mine.yaml"
    assert run(["calibrate", "--output", str(path)]) == 0
    profile = read_device_profile("mine", path)
    assert profile.flops == pytest.approx({"fp32": FLOPS, "default": FLOPS}, rel=1e-3)
    assert profile.layer_s == pytest.approx({"fp32": LAYER_S, "default": LAYER_S}, rel=1e-3)
    assert profile.optimizer_s_per_parameter == pytest.approx(
        {"dtfm": UPDATE_S, "default": UPDATE_S}, rel=1e-3
    )
    assert profile.memory_bytes == pytest.approx(8 << 30, rel=1e-3)
    assert "torch 2.x" in profile.source
    assert "predicted (-20.0%)" in profile.source
    out = capsys.readouterr().out
    assert "predicted (-20.0%)" in out
    assert "devices: {mine: mine.yaml}" in out


@pytest.mark.parametrize(("largest", "expected"), [(False, 1536), (True, 3072)])
def test_an_iteration_is_checked_between_two_sizes(*, largest: bool, expected: int) -> None:
    """The small ones on a core, the large ones on a GPU; the only one if there is one."""
    assert calibrate._between([2048, 1024, 4096, 1024], 64, largest=largest) == expected
    assert calibrate._between([512], 64, largest=largest) == 512


def test_unstable_times_change_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """They are named, and the profile is written nevertheless."""
    use(monkeypatch, Device(spread=0.3))
    path = tmp_path / "mine.yaml"
    assert run(["calibrate", "--quick", "--output", str(path)]) == 3
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("unstable"))
    assert line.startswith("unstable: h256 s256 m2 fp32, forward; ")
    assert line.endswith("; update, dtfm; update, default; the check")
    assert read_device_profile("mine", path).flops


def test_sizes_that_cannot_be_measured_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """It is an error if nothing can be measured."""
    use(monkeypatch, Device(spread=0.01))
    options = ["--sequence", "128", "--micro-batch", "1", "--output", str(tmp_path / "x.yaml")]
    assert run(["calibrate", "--hidden", "512,4096", *options]) == 0
    assert "left out h4096 s128 m1 fp32: out of memory" in capsys.readouterr().out
    assert run(["calibrate", "--hidden", "4096", *options]) == 1
    assert "nothing was measured" in capsys.readouterr().err


def test_every_dtype_gets_its_own_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first data type has the default rate."""
    use(monkeypatch, Device(spread=0.01))
    path = tmp_path / "mine.yaml"
    assert run(["calibrate", "--dtype", "bf16,fp32", "--output", str(path)]) == 0
    assert list(read_device_profile("mine", path).flops) == ["bf16", "fp32", "default"]


@pytest.mark.ssh
def test_a_host_of_an_inventory_is_measured_over_ssh(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The profile and the output name it; nothing of the measurement is left there.

    A busy machine gets more time.
    """
    path = tmp_path / "mine.yaml"
    sizes = ["--hidden", "64", "--sequence", "16", "--micro-batch", "1"]
    with machines(tmp_path, "gpu-1", "gpu-2") as inventory:
        text = inventory.read_text().replace("agent:", f"python: {sys.executable}, agent:")
        inventory.write_text(text)
        words = ["calibrate", "--inventory", str(inventory), "--host", "gpu-1", *sizes]
        words += ["--output", str(path)]
        statuses = (run([*words, "--time", budget_s]) for budget_s in ("10", "300"))
        assert next(status for status in statuses if status != 1) in (0, EXIT_NOT_TRUSTWORTHY)
    profile = read_device_profile("mine", path)
    assert profile.flops["fp32"] > 0
    assert profile.source.startswith("gpu-1: ")
    assert "1 core used" in profile.source
    assert "gpu-1: " in capsys.readouterr().out
    assert not list(Path("/tmp").glob(f"{FOLDER.removeprefix('/tmp/')}*"))


def test_several_hosts_get_a_profile_each(tmp_path: Path) -> None:
    """In the order asked for; a host is named in the file's name."""
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text("hosts: [{address: a}, {address: b}, {address: c}]\n")
    output = tmp_path / "device.yaml"
    found = calibrate._benches("cpu", 1, inventory, (), output)
    assert [path.name for path in found] == ["device-a.yaml", "device-b.yaml", "device-c.yaml"]
    found = calibrate._benches("cpu", 1, inventory, ("c", "a"), output)
    assert [bench.host for bench in found.values()] == ["c", "a"]
    assert [*calibrate._benches("cpu", 1, inventory, ("b",), output)] == [output]
    with pytest.raises(UsageError, match=r"hosts.yaml: has no host d, e; it has a, b, c"):
        calibrate._benches("cpu", 1, inventory, ("d", "a", "e"), output)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--dtype", "int4"], "'int4' is not one of fp64, fp32"),
        (["--hidden", "0"], "expected whole numbers from 1 to 1000000"),
        (["--output", "nowhere/x.yaml"], "folder nowhere does not exist"),
        (["--device", "tpu"], "is not one of 'cpu', 'cuda'"),
        (["--host", "gpu-1"], "add --inventory"),
        (["--inventory", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_wrong_request_is_a_usage_error(
    options: list[str], says: str, capsys: CaptureFixture
) -> None:
    """The exit code is 2, before anything starts."""
    assert run(["calibrate", *options]) == 2
    assert says in capsys.readouterr().err
