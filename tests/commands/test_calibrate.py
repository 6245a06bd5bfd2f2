"""`netbench calibrate`, with a device that answers at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from netbench.cli import run
from netbench.commands import calibrate
from netbench.plan import plan_from_json
from netbench.scenario.devices import read_device_profile
from netbench.workload.calibration import PASSES, Point
from netbench.workload.costs import layer_forward_flops

CaptureFixture = pytest.CaptureFixture[str]

FLOPS, LAYER_S, UPDATE_S = 80e9, 2e-4, 1.5e-9


class Device:
    """Computes at a constant rate, and takes a constant time per layer."""

    name = ""
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


def test_the_profile_holds_the_devices_constants(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """As a scenario reads them, with where they come from; the check is off by what it is."""
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


def test_unstable_times_are_named_and_change_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """The profile is written all the same."""
    use(monkeypatch, Device(spread=0.3))
    path = tmp_path / "mine.yaml"
    assert run(["calibrate", "--quick", "--output", str(path)]) == 3
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("unstable"))
    assert line.startswith("unstable: h256 s256 m2 fp32, forward; ")
    assert line.endswith("; update, dtfm; update, default; the check")
    assert read_device_profile("mine", path).flops


def test_what_cannot_be_measured_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: CaptureFixture
) -> None:
    """And nothing at all is an error."""
    use(monkeypatch, Device(spread=0.01))
    options = ["--sequence", "128", "--micro-batch", "1", "--output", str(tmp_path / "x.yaml")]
    assert run(["calibrate", "--hidden", "512,4096", *options]) == 0
    assert "left out h4096 s128 m1 fp32: out of memory" in capsys.readouterr().out
    assert run(["calibrate", "--hidden", "4096", *options]) == 1
    assert "nothing was measured" in capsys.readouterr().err


def test_every_dtype_gets_its_own_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first is the default."""
    use(monkeypatch, Device(spread=0.01))
    path = tmp_path / "mine.yaml"
    assert run(["calibrate", "--dtype", "bf16,fp32", "--output", str(path)]) == 0
    assert list(read_device_profile("mine", path).flops) == ["bf16", "fp32", "default"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--dtype", "int4"], "'int4' is none of fp64, fp32"),
        (["--hidden", "0"], "a size of a layer is 0; expected whole numbers above 0"),
        (["--output", "nowhere/x.yaml"], "there is no folder nowhere"),
        (["--device", "tpu"], "is not one of 'cpu', 'cuda'"),
    ],
)
def test_a_wrong_request_is_a_usage_error(
    options: list[str], says: str, capsys: CaptureFixture
) -> None:
    """Before anything starts."""
    assert run(["calibrate", *options]) == 2
    assert says in capsys.readouterr().err
