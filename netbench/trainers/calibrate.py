"""Measure this machine's device: `python -m netbench.trainers --calibrate`.

The protocol is JSON lines, as for a rank (`protocol`). Orders, each answered once:

    {"op": "open", "device": "cpu" or "cuda", "threads": n}
        {"event": "opened", "name": .., "memory_bytes": .., "versions": {..}, "machine": ..,
         "pid": ..}
    {"op": "layer", "hidden": h, "heads": a, "sequence": s, "micro_batch": b, "dtype": d,
     "budget_s": t}
        {"event": "layer", "times": {"forward": T, "backward": T, "recomputing_backward": T},
         "activation_bytes": .., "peak_bytes": ..}
    {"op": "optimizer", "optimizer": o, "parameters": n, "dtype": d, "budget_s": t}
        {"event": "optimizer", "times": {"update": T}}
    {"op": "iterate", "plan": text of `plan_to_json`, "budget_s": t}
        {"event": "iterated", "times": {"iteration": T}}
    {"op": "stop"}

T is {"median_s": .., "spread": interquartile range / median, "num_runs": ..}. Warm-up runs do not
count. Runs are repeated until the median is known well, or the budget, in seconds, is spent. Any
order but the first may be answered {"event": "skipped", "reason": ..}. An error ends the process:
{"event": "error", "message": ..}.
"""

import contextlib
import ctypes
import math
import os
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.checkpoint import checkpoint

from netbench.errors import NetbenchError, TestbedError
from netbench.machine import machine_name
from netbench.plan.model import Plan
from netbench.plan.serial import plan_from_json
from netbench.trainers.layers.gpt import DTYPES, GPTBlock
from netbench.trainers.layers.real import OPTIMIZERS, find_device
from netbench.trainers.layers.stage import StageRole, TrainedStage, build_stage, run_micro_batches
from netbench.trainers.protocol import ChannelClosed, Message, MessageChannel
from netbench.trainers.rank import is_out_of_memory
from netbench.workload.calibration import NORMAL_SPREAD

T = TypeVar("T")
Stopwatch = Callable[[Callable[[], T]], tuple[T, float]]
"""Runs a function. Returns its result and the seconds that the device took."""

WARM_UP_RUNS, WARM_UP_FRACTION, WARM_UP_LIMIT = 2, 0.05, 0.1
"""Warm-up: at least this many runs, for at least this fraction of the budget (a GPU's clock has to
rise, even if runs are short), unless it takes more than the second fraction."""

MIN_RUNS, LEAST_RUNS, MAX_RUNS = 5, 3, 400
"""Runs that count: at least, at least once the budget is spent, and at most."""

STEADY = 0.005
"""Repeat until the standard error of the median is this fraction of it: far less than the error of
a model of the device."""


def run_calibration(channel: MessageChannel) -> int:
    """Serve orders until told to stop or the channel closes. Return the exit status."""
    try:
        bench = _open(channel.receive())
        channel.send(event="opened", machine=machine_name(), pid=os.getpid(), **bench.about())
        while (order := channel.receive())["op"] != "stop":
            channel.send(**bench.serve(order))
    except ChannelClosed:
        return 0
    except Exception as error:
        if not isinstance(error, NetbenchError):
            traceback.print_exc()
        with contextlib.suppress(ChannelClosed):
            channel.send(event="error", message=str(error) or type(error).__name__)
        return 1
    return 0


class TooSlow(Exception):
    """One run takes longer than the budget."""


def _open(order: Message) -> "DeviceBench":
    device = find_device(order["device"])
    if device.type == "cuda":
        stopwatch: Stopwatch[Any] = cuda_stopwatch
    else:
        torch.set_num_threads(order["threads"])
        clock = time.process_time if order["threads"] == 1 else time.perf_counter
        stopwatch = host_stopwatch(clock)
    load_kernels(device)
    return DeviceBench(device, stopwatch)


def load_kernels(device: torch.device) -> None:
    """Run a small layer in every dtype. The first one takes seconds, for modules and libraries that
    are loaded when they are needed, and they count in nobody's budget."""
    for dtype in DTYPES.values():
        layer = GPTBlock(64, 1).to(device, dtype)
        x = torch.randn(1, 64, 64, dtype=dtype, device=device, requires_grad=True)
        checkpoint(layer, x, use_reentrant=False).sum().backward()


def host_stopwatch(clock: Callable[[], float]) -> Stopwatch[Any]:
    """Measure by `time.process_time`, for one core without other work of the machine, or by
    `time.perf_counter`, for work on several cores."""

    def measure(work: Callable[[], T]) -> tuple[T, float]:
        started_s = clock()
        result = work()
        return result, clock() - started_s

    return measure


def cuda_stopwatch(work: Callable[[], T]) -> tuple[T, float]:
    """Measure the time between two events of the GPU's stream, which is empty before.

    `work` returns as soon as its kernels are queued.
    """
    before, after = (_event() for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    result = work()
    after.record()
    after.synchronize()
    return result, before.elapsed_time(after) / 1e3


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def repeat(
    run: Callable[[], Mapping[str, float]],
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, float]]:
    """Return the times of a run's parts, by name: median_s, spread, num_runs, without warm-up.

    Raises TooSlow if the budget is spent before any run counts.
    """
    started_s = clock()
    spent_s, done = 0.0, 0
    while done < WARM_UP_RUNS or spent_s < WARM_UP_FRACTION * budget_s:
        run()
        spent_s, done = clock() - started_s, done + 1
        if spent_s > budget_s:
            raise TooSlow(f"one run takes {spent_s:.3g} s, and there are {budget_s:.3g} s for it")
        if spent_s > WARM_UP_LIMIT * budget_s:
            break
    runs: list[Mapping[str, float]] = []
    while len(runs) < MAX_RUNS:
        runs.append(run())
        if len(runs) >= LEAST_RUNS and clock() - started_s > budget_s:
            break
        if len(runs) >= MIN_RUNS and all(_known(column) for column in _columns(runs).values()):
            break
    return {
        name: {
            "median_s": statistics.median(column),
            "spread": _spread(column),
            "num_runs": len(column),
        }
        for name, column in _columns(runs).items()
    }


def _columns(runs: list[Mapping[str, float]]) -> dict[str, list[float]]:
    return {name: [run[name] for run in runs] for name in runs[0]}


def _spread(seconds: list[float]) -> float:
    """Return interquartile range over median: half of the runs are within it."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return (high - low) / middle


def _known(seconds: list[float]) -> bool:
    """Return whether the median is known well.

    Its standard error, for normal runs, is 1.2533 sigma / sqrt(n).
    """
    return 1.2533 / NORMAL_SPREAD * _spread(seconds) / math.sqrt(len(seconds)) <= STEADY


class DeviceBench:
    """Measurements of one device."""

    def __init__(self, device: torch.device, stopwatch: Stopwatch[Any]) -> None:
        self._device = device
        self._stopwatch = stopwatch

    def about(self) -> dict[str, Any]:
        """Return name, memory and versions of the device and its software."""
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        if self._device.type == "cuda":
            found = torch.cuda.get_device_properties(self._device)
            versions["cuda"] = str(torch.version.cuda)
            return {"name": found.name, "memory_bytes": found.total_memory, "versions": versions}
        lines = Path("/proc/meminfo").read_text().splitlines()
        total_kib = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal"))
        return {"name": "", "memory_bytes": total_kib * 1024, "versions": versions}

    def serve(self, order: Message) -> Message:
        """Return the answer to one order."""
        orders = {"layer": self._layer, "optimizer": self._optimizer, "iterate": self._iterate}
        if order["op"] not in orders:
            raise TestbedError(f"unknown op {order['op']!r}; expected {', '.join(orders)} or stop")
        try:
            return orders[order["op"]](order)
        except TooSlow as error:
            return {"event": "skipped", "reason": str(error)}
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return {"event": "skipped", "reason": "out of memory"}
        finally:
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _layer(self, order: Message) -> Message:
        dtype = DTYPES[order["dtype"]]
        layer = GPTBlock(order["hidden"], order["heads"]).to(self._device, dtype)
        shape = (order["micro_batch"], order["sequence"], order["hidden"])
        x = torch.randn(shape, dtype=dtype, device=self._device, requires_grad=True)
        gradient = torch.randn_like(x)

        def run() -> dict[str, float]:
            # As in training, gradients of weights add up; those of the input do not.
            x.grad = None
            y, forward_s = self._stopwatch(lambda: layer(x))
            _, backward_s = self._stopwatch(lambda: y.backward(gradient))
            x.grad = None
            y = checkpoint(layer, x, use_reentrant=False)
            _, recomputing_s = self._stopwatch(lambda: y.backward(gradient))
            return {
                "forward": forward_s,
                "backward": backward_s,
                "recomputing_backward": recomputing_s,
            }

        times = repeat(run, order["budget_s"])
        return {
            "event": "layer",
            "times": times,
            "activation_bytes": activation_bytes(layer, x),
            "peak_bytes": self._peak_bytes(lambda: layer(x).backward(gradient)),
        }

    def _optimizer(self, order: Message) -> Message:
        """Measure an update like `RealStage.update`: step on a flat tensor, zero its gradients."""
        dtype, count = DTYPES[order["dtype"]], order["parameters"]
        weights = torch.randn(count, dtype=dtype, device=self._device)
        weights.grad = torch.randn_like(weights)
        optimizer = OPTIMIZERS[order["optimizer"]]([weights])

        def run() -> dict[str, float]:
            def update() -> None:
                optimizer.step()
                assert weights.grad is not None
                weights.grad.zero_()

            return {"update": self._stopwatch(update)[1]}

        return {"event": "optimizer", "times": repeat(run, order["budget_s"])}

    def _iterate(self, order: Message) -> Message:
        """Measure an iteration of a plan of one stage, as a rank would run it."""
        plan = plan_from_json(order["plan"])
        dtype = DTYPES[plan.workload.dtype]
        part = StageRole(index=0, replica=0, gradient_dtype=dtype, gradient_messages=1)
        stage = build_stage(plan, part)

        def run() -> dict[str, float]:
            return {"iteration": self._stopwatch(lambda: iterate(plan, stage))[1]}

        return {"event": "iterated", "times": repeat(run, order["budget_s"])}

    def _peak_bytes(self, work: Callable[[], object]) -> int:
        """Return the peak memory that `work` adds, bytes; on a CPU, resident pages."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            work()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - before
        ctypes.CDLL(None).malloc_trim(0)  # release memory that was freed before
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from VmRSS: proc(5)
        before = _status_bytes("VmRSS")
        work()
        return _status_bytes("VmHWM") - before


def iterate(plan: Plan, stage: TrainedStage) -> None:
    """Run every micro-batch forward and backward, then the update."""
    run_micro_batches(stage, plan.num_micro_batches)
    stage.update()


def activation_bytes(layer: torch.nn.Module, x: torch.Tensor) -> int:
    """Return the bytes that autograd keeps for the backward pass, without weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in layer.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = layer(x)  # kept alive, so that no storage is used twice
    del y
    return sum(kept.values())


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
