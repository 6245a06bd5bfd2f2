"""Measuring a device: what is repeated, what counts, and the process that does it."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from netbench.errors import TestbedError
from netbench.testbed.runs.calibration import DeviceProcess, open_bench
from netbench.trainers import calibrate
from netbench.trainers.calibrate import (
    LEAST_RUNS,
    MAX_RUNS,
    MIN_RUNS,
    WARM_UP_RUNS,
    TooSlow,
    activation_bytes,
    cuda_stopwatch,
    host_stopwatch,
    repeat,
)
from netbench.trainers.layers.gpt import GPTBlock
from netbench.workload.calibration import PASSES

BUDGETS_S = (2.0, 20.0, 200.0)
"""Budgets of a measurement, seconds. On a busy machine the first may not be enough."""


class Runs:
    """Runs of given lengths on a clock of their own; the last length is repeated for ever."""

    def __init__(self, *seconds: float) -> None:
        self._seconds: Iterator[float] = itertools.chain(seconds, itertools.repeat(seconds[-1]))
        self.now_s = 0.0
        self.lengths: list[float] = []

    def run(self) -> Mapping[str, float]:
        self.lengths.append(next(self._seconds))
        self.now_s += self.lengths[-1]
        return {"whole": self.lengths[-1], "half": self.lengths[-1] / 2}

    def clock(self) -> float:
        return self.now_s


def test_warm_ups_do_not_count() -> None:
    """Two slow runs first, then all alike: known at once."""
    runs = Runs(9.0, 5.0, 1.0)
    found = repeat(runs.run, 200.0, runs.clock)
    assert found["whole"] == {"median_s": 1.0, "spread": 0.0, "num_runs": MIN_RUNS}
    assert found["half"]["median_s"] == 0.5
    assert len(runs.lengths) == WARM_UP_RUNS + MIN_RUNS


def test_short_runs_warm_up_for_a_share_of_the_time() -> None:
    """However many that are: 5 of 100 seconds."""
    runs = Runs(*([0.02] * 50), 0.01)
    found = repeat(runs.run, 100.0, runs.clock)
    assert found["whole"] == {"median_s": 0.01, "spread": 0.0, "num_runs": MIN_RUNS}
    assert sum(runs.lengths[:-MIN_RUNS]) == pytest.approx(5.0, abs=0.011)


def test_a_slow_run_warms_up_once() -> None:
    """One run takes more than a tenth of the budget."""
    runs = Runs(20.0)
    found = repeat(runs.run, 100.0, runs.clock)
    assert (found["whole"]["num_runs"], runs.now_s) == (5, 120.0)


def test_times_that_scatter_are_repeated_until_the_median_is_known() -> None:
    """Quartiles and median as the standard library has them, of the runs that count."""
    lengths = [1.0, 1.0, *([1.0, 1.02, 0.98, 1.05, 0.95] * 200)]
    runs = Runs(*lengths)
    found = repeat(runs.run, 1e3, runs.clock)["whole"]
    counted = runs.lengths[-int(found["num_runs"]) :]
    low, middle, high = statistics.quantiles(counted, n=4)
    assert found["spread"] == pytest.approx((high - low) / middle)
    assert len(counted) > 2 * MIN_RUNS
    # The standard error of a median of normal values, sigma from the quartiles: half a percent.
    error = 1.2533 * (high - low) / 1.349 / len(counted) ** 0.5
    assert error <= 0.005 * middle
    worse = 1.2533 * (high - low) / 1.349 / (len(counted) - 10) ** 0.5
    assert worse > 0.005 * middle


def test_the_budget_ends_it_with_a_spread_to_judge_by() -> None:
    """Never more than the budget and the runs that are needed; never for ever."""
    runs = Runs(1.0, 1.0, *([1.0, 3.0] * 500))
    assert repeat(runs.run, 20.0, runs.clock)["whole"]["num_runs"] < 20
    assert 20.0 < runs.now_s <= 23.0
    slow = Runs(30.0, 30.0, 50.0, 40.0)
    found = repeat(slow.run, 40.0, slow.clock)["whole"]
    assert found["num_runs"] == LEAST_RUNS
    wild = Runs(*([0.001, 0.002, 0.004] * MAX_RUNS))
    assert repeat(wild.run, 10.0, wild.clock)["whole"]["num_runs"] == MAX_RUNS


def test_what_takes_longer_than_there_is_time_is_given_up() -> None:
    """After one run."""
    runs = Runs(50.0)
    with pytest.raises(TooSlow, match="one run takes 50 s, and there are 40 s for it"):
        repeat(runs.run, 40.0, runs.clock)
    assert len(runs.lengths) == 1


def test_the_stopwatch_of_a_host_reads_its_clock_before_and_after() -> None:
    """The result of the work comes back."""
    runs = Runs(2.5)
    assert host_stopwatch(runs.clock)(runs.run) == ({"whole": 2.5, "half": 1.25}, 2.5)


@pytest.mark.parametrize(("threads", "clock"), [(1, "process_time"), (2, "perf_counter")])
def test_one_core_is_timed_by_its_own_time_and_several_by_that_of_the_wall(
    threads: int, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    asked: list[object] = []
    monkeypatch.setattr(calibrate, "host_stopwatch", asked.append)
    loaded: list[torch.device] = []
    monkeypatch.setattr(calibrate, "load_kernels", loaded.append)
    calibrate._open({"device": "cpu", "threads": threads})
    assert loaded == [torch.device("cpu")]
    assert asked == [getattr(time, clock)]


def test_the_stopwatch_of_a_gpu_waits_for_the_stream_at_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Empty stream, event, work, event, and the last event over before it is read, in ms."""
    said: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            said.append("record")

        def synchronize(self) -> None:
            said.append("wait for event")

        def elapsed_time(self, other: Event) -> float:
            assert other is not self
            said.append("read")
            return 12.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("wait for all"))

    def work() -> int:
        said.append("work")
        return 7

    assert cuda_stopwatch(work) == (7, 0.0125)
    assert said == ["wait for all", "record", "work", "record", "wait for event", "read"]


def test_activations_are_what_autograd_keeps() -> None:
    """For linear, GELU, linear: the input of each, and no weights."""
    layers = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    x = torch.randn(5, 8, requires_grad=True)
    assert activation_bytes(layers, x) == 4 * 5 * (8 + 32 + 32)


def test_activations_of_a_layer_grow_with_the_micro_batch() -> None:
    """All of them, as Korthikanti et al. 2022 (equation 1) count them: linear in b; with attention
    that keeps no scores, also in s."""
    layer = GPTBlock(64, 1)
    kept = {
        (b, s): activation_bytes(layer, torch.randn(b, s, 64, requires_grad=True))
        for b, s in ((1, 32), (2, 32), (1, 64))
    }
    assert kept[2, 32] == pytest.approx(2 * kept[1, 32], rel=0.01)
    assert kept[1, 64] == pytest.approx(2 * kept[1, 32], rel=0.01)


def ask(bench: DeviceProcess, op: str, **order: Any) -> dict[str, Any]:
    """The answer within the first budget that is enough."""
    answers = (bench.ask(op, budget_s, **order) for budget_s in BUDGETS_S)
    return next(answer for answer in answers if answer["event"] != "skipped")


def test_a_process_measures_layers_and_updates() -> None:
    """Forward less than backward less than recomputing; more work takes longer; SGD less than
    Adam, which reads and writes two moments beside."""
    sizes = {"heads": 4, "sequence": 128, "micro_batch": 1, "dtype": "fp32"}
    with open_bench("cpu", 1) as bench:
        assert bench.name == ""
        assert bench.memory_bytes > 1e9
        assert bench.versions["torch"] == torch.__version__
        small = ask(bench, "layer", hidden=64, **sizes)
        large = ask(bench, "layer", hidden=512, **sizes)
        for answer in (small, large):
            times = [answer["times"][name]["median_s"] for name in PASSES]
            assert 0 < times[0] < times[1] < times[2]
            assert answer["activation_bytes"] > 0
        assert large["times"]["forward"]["median_s"] > 2 * small["times"]["forward"]["median_s"]
        updates = {
            name: ask(bench, "optimizer", optimizer=name, parameters=1 << 20, dtype="fp32")
            for name in ("sgd", "adam")
        }
        sgd, adam = (updates[s]["times"]["update"]["median_s"] for s in ("sgd", "adam"))
        assert 0 < sgd < adam
        skipped = bench.ask("layer", 1e-9, hidden=64, **sizes)
        assert skipped["event"] == "skipped"
        with pytest.raises(TestbedError, match="unknown op 'dance'; expected layer, optimizer"):
            bench.ask("dance", 1.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named() -> None:
    """With what to do instead."""
    with (
        pytest.raises(TestbedError, match="no CUDA device here; choose cpu"),
        open_bench("cuda", 1),
    ):
        pass


def test_the_process_ends_with_its_controller() -> None:
    """Without an order to stop."""
    with open_bench("cpu", 1) as bench:
        os.kill(bench.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(bench.pid, 0)


def test_a_layer_beyond_this_machine_s_memory_is_skipped() -> None:
    """On a CPU, whose allocator refuses a matrix of 4 TB."""
    bench = calibrate.DeviceBench(torch.device("cpu"), host_stopwatch(time.perf_counter))
    order = {"op": "layer", "hidden": 1_000_000, "heads": 1, "sequence": 1, "micro_batch": 1}
    found = bench.serve({**order, "dtype": "fp32", "budget_s": 1.0})
    assert found == {"event": "skipped", "reason": "out of memory"}


def test_out_of_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest can still be measured."""
    bench = calibrate.DeviceBench(torch.device("cpu"), host_stopwatch(time.perf_counter))

    def fail(order: object) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench, "_layer", fail)
    assert bench.serve({"op": "layer"}) == {"event": "skipped", "reason": "out of memory"}
