"""Fit the V100's constants to the published iteration times of cases 1 and 2.

Every fit is a least-squares fit of the relative error of `netbench.simulator.iteration`:
- dtfm, seconds per layer: to the time that a larger batch adds to dtfm-scheduled, so that one-time
  costs of an iteration cancel; then optimiser seconds per parameter, to all its rows;
- megatron, seconds per layer, the rate inside a node, and that of a host's sockets: to the
  tensor-parallel layouts. The rates are only compared with those of the transport profile and of
  scenarios/case2.yaml;
- zero3, host seconds per collective, and the parameters that stay gathered, in steps of 1e8: to
  all its rows. Its layers take Megatron's time.
All else is a check. No constant is fitted to cases 3 to 5, which are predictions.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from netbench.plan.build import build_plan
from netbench.plan.model import Execution, Plan
from netbench.scenario.load import load_scenario
from netbench.scenario.model import DeviceProfile, Scenario, Setting, Workload
from netbench.simulator import TransportProfile, simulate
from netbench.systems import find_variant, system_of
from netbench.systems.sharded import MICRO_BATCH as ZERO3_MICRO_BATCH
from netbench.systems.zero3 import LIVE_PARAMETERS
from netbench.workload.costs import backward_factor, layer_forward_flops

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "results" / "published" / "published_iteration_times.csv"
TRANSFERS = ROOT / "results" / "published" / "p2p_under_tc.csv"

FITTED_ON = ("case1", "case2")
PREDICTED = ("case3", "case4", "case5")
TENSOR = ("megatron-t8", "megatron-p2t4", "megatron-p4t2")
SEEDS = (2022, 2023, 2024)
PIPELINES = 8
"""Number of pipelines in all published layouts with 8 stages."""

LIVE_LIMITS = tuple(range(1_000_000_000, 1_300_000_001, 100_000_000))
"""Limits that zero3 is fitted with."""

HEAD_FLOPS = 6 * 2048 * 2048 * 51200
"""FLOPs of a language-model head per sequence: 2 s h V forward and twice that backward, with the
vocabulary of GPT-2 padded as in Megatron-LM."""

Times = Mapping[tuple[str, str, int, int], float]
"""(case, variant, layers, batch) -> published seconds per iteration, mean of the seeds."""

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """Fitted constants.

    layer_s: seconds per layer and sequence, forward + backward, per system. optimizer_s: seconds
    per parameter of a dtfm rank alone on its node. collective_s: seconds per collective of zero3.
    Updates of Megatron (on the GPU) and ZeRO-3 (split 64 ways) are below the published noise: 0.
    """

    layer_s: Mapping[str, float]
    optimizer_s: float = 0.0
    collective_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """One published setting and its simulation, seconds."""

    case: str
    variant: str
    layers: int
    batch: int
    published_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        return self.simulated_s / self.published_s - 1


def read_published(path: Path = PUBLISHED) -> Times:
    """Return the mean over seeds of every published setting."""
    runs: dict[tuple[str, str, int, int], list[float]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            key = row["case"], row["system"], int(row["layers"]), int(row["batch"])
            runs[key].append(float(row["iteration_s"]))
    return {key: sum(times) / len(times) for key, times in runs.items()}


def profile_of(constants: Constants, workload: Workload) -> DeviceProfile:
    """Return the device profile that gives these seconds for `workload`'s layers."""
    work = sequence_flops(workload)
    return DeviceProfile(
        name="V100",
        flops={system: work / seconds for system, seconds in constants.layer_s.items()},
        optimizer_s_per_parameter={"dtfm": constants.optimizer_s, "default": 0.0},
        collective_s={"zero3": constants.collective_s, "default": 0.0},
    )


def as_written(constants: Constants) -> Constants:
    """Round the constants to the digits of a written profile: 0.1 TFLOPS, 0.01 ns and 0.1 ms."""
    work = sequence_flops(load_scenario(FITTED_ON[0]).workload)
    return Constants(
        layer_s={
            system: work / (round(work / seconds / 1e11) * 1e11)
            for system, seconds in constants.layer_s.items()
        },
        optimizer_s=round(constants.optimizer_s * 1e11) / 1e11,
        collective_s=round(constants.collective_s * 1e4) / 1e4,
    )


def sequence_flops(workload: Workload) -> float:
    """Return the FLOPs of one layer and one sequence, forward + backward."""
    one = dataclasses.replace(workload, micro_batch=1)
    return layer_forward_flops(one) * (1 + backward_factor(one))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Simulator:
    """Simulates published settings with given constants and transport.

    change: applied to every plan before it is simulated.
    """

    constants: Constants
    transport: TransportProfile
    change: Callable[[Plan], Plan] | None = None

    def seconds(self, job: tuple[str, str, int, int, tuple[int, ...]]) -> list[float]:
        """Simulate (case, variant, layers, seed, batches); return the iteration of each batch."""
        case, variant, layers, seed, batches = job
        scenario = _scenario(case)
        device = profile_of(self.constants, scenario.workload)
        scenario = dataclasses.replace(scenario, devices={"V100": device})
        plans = [
            build_plan(
                scenario,
                variant,
                Setting(layers=layers, batch=batch, seed=seed),
                Execution(iterations=2, warmup_iterations=1, scale=1.0),
            )
            for batch in batches
        ]
        change = self.change or (lambda plan: plan)
        return [simulate(change(plan), self.transport).iteration_s for plan in plans]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Several changes of a plan, one after another. A pool can send it to its workers."""

    steps: tuple[Callable[[Plan], Plan], ...]

    def __call__(self, plan: Plan) -> Plan:
        for step in self.steps:
            plan = step(plan)
        return plan


class Bench:
    """Simulates published settings, several at once. change: of every plan, after a simulator's."""

    def __init__(
        self, times: Times, pool: Executor, change: Callable[[Plan], Plan] | None = None
    ) -> None:
        self.times = times
        self._pool, self._change = pool, change

    def residuals(
        self, simulator: Simulator, cases: Collection[str], variants: Collection[str]
    ) -> list[Residual]:
        """Simulate every published setting of `variants` in `cases`; average random placements."""
        steps = tuple(step for step in (simulator.change, self._change) if step is not None)
        simulator = dataclasses.replace(simulator, change=Changes(steps=steps))
        keys = [key for key in self.times if key[0] in cases and key[1] in variants]
        batches: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        for key in keys:
            batches[key[:3]].append(key[3])
        jobs = [
            (*setting, seed, tuple(sizes))
            for setting, sizes in batches.items()
            for seed in _seeds(setting[1])
        ]
        found: dict[tuple[str, str, int, int], list[float]] = defaultdict(list)
        for job, seconds in zip(jobs, self._pool.map(simulator.seconds, jobs), strict=True):
            for batch, iteration_s in zip(job[4], seconds, strict=True):
                found[*job[:3], batch].append(iteration_s)
        return [
            Residual(
                case=key[0],
                variant=key[1],
                layers=key[2],
                batch=key[3],
                published_s=self.times[key],
                simulated_s=float(np.mean(found[key])),
            )
            for key in keys
        ]

    def errors(
        self, simulator: Simulator, cases: Collection[str], variants: Collection[str]
    ) -> Floats:
        return np.array([row.error for row in self.residuals(simulator, cases, variants)])


@functools.cache
def _scenario(case: str) -> Scenario:
    return load_scenario(case)


def _seeds(variant: str) -> tuple[int, ...]:
    return SEEDS if find_variant(variant).scheduler == "random" else SEEDS[:1]


def gauss_newton(
    residuals: Callable[[Floats], Floats], start: Floats, steps: int = 2, difference: float = 0.02
) -> Floats:
    """Minimise squares by Gauss-Newton with forward differences, relative."""
    x = start
    for _ in range(steps):
        here = residuals(x)
        columns = []
        for index in range(len(x)):
            moved = x.copy()
            moved[index] *= 1 + difference
            columns.append((residuals(moved) - here) / (moved[index] - x[index]))
        x = x - np.linalg.lstsq(np.array(columns).T, here, rcond=None)[0]
    return x


def fit_dtfm(bench: Bench, transport: TransportProfile) -> Constants:
    """Fit seconds per layer, then optimiser seconds per parameter."""

    def rows(layer_s: float, optimizer_s: float, cases: Collection[str]) -> list[Residual]:
        constants = Constants(layer_s={"dtfm": layer_s}, optimizer_s=optimizer_s)
        simulator = Simulator(constants=constants, transport=transport)
        return bench.residuals(simulator, cases, ("dtfm-scheduled",))

    def slopes(x: Floats) -> Floats:
        return np.array([add.error for add in per_slot(rows(float(x[0]), 0.0, FITTED_ON))])

    layer_s = float(gauss_newton(slopes, np.array([17e-3]))[0])

    def totals(x: Floats) -> Floats:
        return np.array([row.error for row in rows(layer_s, float(x[0]), FITTED_ON)])

    optimizer_s = float(gauss_newton(totals, np.array([5e-9]))[0])
    return Constants(layer_s={"dtfm": layer_s}, optimizer_s=max(0.0, optimizer_s))


def per_slot(rows: Iterable[Residual]) -> list[Residual]:
    """Return the time per additional micro-batch in every pipeline, from the smallest to the
    largest batch of each setting. Settings with a single batch are skipped."""
    found: dict[tuple[str, str, int], list[Residual]] = defaultdict(list)
    for row in rows:
        found[row.case, row.variant, row.layers].append(row)
    slots = []
    for group in found.values():
        few, many = (pick(group, key=lambda row: row.batch) for pick in (min, max))
        count = (many.batch - few.batch) / PIPELINES
        if count:
            slots.append(
                dataclasses.replace(
                    many,
                    published_s=(many.published_s - few.published_s) / count,
                    simulated_s=(many.simulated_s - few.simulated_s) / count,
                )
            )
    return slots


def fit_megatron(bench: Bench, transport: TransportProfile) -> tuple[Constants, float, float]:
    """Fit seconds per layer, and the rates inside a node and of a host's sockets, bit/s."""

    def errors(x: Floats) -> Floats:
        simulator = Simulator(
            constants=Constants(layer_s={"megatron": float(x[0])}),
            transport=transport.model_copy(update={"inside_node_bps": float(x[1])}),
            change=functools.partial(with_hosts, host_bps=float(x[2])),
        )
        return bench.errors(simulator, FITTED_ON, TENSOR)

    start = np.array([17e-3, 130e9, 17e9])
    # Passes take random times: a small difference would be lost in theirs.
    found = gauss_newton(errors, start, steps=4, difference=0.1)
    layer_s, inside_bps, host_bps = found.tolist()
    return Constants(layer_s={"megatron": layer_s}), inside_bps, host_bps


def with_hosts(plan: Plan, host_bps: float) -> Plan:
    """Return the plan with another limit of the hosts that have one."""
    limits = tuple(host_bps if np.isfinite(bps) else bps for bps in plan.network.host_bps)
    return dataclasses.replace(plan, network=dataclasses.replace(plan.network, host_bps=limits))


def fit_zero3(
    bench: Bench,
    transport: TransportProfile,
    layer_s: float,
    *,
    micro_batch: int = ZERO3_MICRO_BATCH,
    live_parameters: int = LIVE_PARAMETERS,
) -> Simulator:
    """Fit host seconds per collective, with `layer_s` seconds per layer and sequence."""

    def simulator(x: Floats) -> Simulator:
        constants = Constants(layer_s={"zero3": layer_s}, collective_s=max(0.0, float(x[0])))
        steps = (
            functools.partial(with_micro_batch, size=micro_batch),
            functools.partial(with_live_parameters, limit=live_parameters),
        )
        return Simulator(constants=constants, transport=transport, change=Changes(steps=steps))

    def errors(x: Floats) -> Floats:
        return bench.errors(simulator(x), FITTED_ON, ("zero3",))

    return simulator(gauss_newton(errors, np.array([15e-3])))


def with_micro_batch(plan: Plan, size: int) -> Plan:
    """Return a zero3 plan with micro-steps of `size` sequences per rank."""
    factor = size / plan.workload.micro_batch
    stages = tuple(
        dataclasses.replace(
            stage, forward_s=stage.forward_s * factor, backward_s=stage.backward_s * factor
        )
        for stage in plan.stages
    )
    return dataclasses.replace(
        plan,
        workload=dataclasses.replace(plan.workload, micro_batch=size),
        num_micro_batches=round(plan.num_micro_batches / factor),
        stages=stages,
        activation_bytes=round(plan.activation_bytes * factor),
    )


def with_live_parameters(plan: Plan, limit: int) -> Plan:
    """Return a zero3 plan that keeps `limit` parameters gathered."""
    return system_of(plan).unmerged(dataclasses.replace(plan, live_parameters=limit))


def with_head(plan: Plan, flops: float) -> Plan:
    """Return the plan with a language-model head in its last stage, at `flops` per second."""
    head_s = HEAD_FLOPS * plan.workload.micro_batch / plan.layout.tp / flops
    last = plan.stages[-1]
    last = dataclasses.replace(
        last, forward_s=last.forward_s + head_s / 3, backward_s=last.backward_s + head_s * 2 / 3
    )
    return dataclasses.replace(plan, stages=(*plan.stages[:-1], last))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShardedFit:
    """A fit of zero3: host seconds per collective, and mean absolute errors of zero3 in the cases
    that were fitted, and in each of those that are predicted."""

    collective_s: float
    fitted_error: float
    predicted_errors: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """All constants, further findings from cases 1 and 2, and every residual.

    inside_bps, host_bps: rates inside a node and of a host's sockets, fitted to Megatron's
    tensor-parallel layouts. tensor_error,
    head_error: mean absolute error of these layouts, without and with a language-model head.
    pipelines_s: Megatron's seconds per layer if fitted to megatron-p8 instead. micro_batches: fits
    of zero3 by assumed micro-batch. live_parameters: by parameters that stay gathered.
    """

    constants: Constants
    transport: TransportProfile
    inside_bps: float
    host_bps: float
    tensor_error: float
    head_error: float
    pipelines_s: float
    micro_batches: Mapping[int, ShardedFit]
    live_parameters: Mapping[int, ShardedFit]
    rows: Sequence[Residual]


def calibrate(
    times: Times,
    pool: Executor,
    transport: TransportProfile,
    change: Callable[[Plan], Plan] | None = None,
) -> Calibration:
    """Run every fit and compute every residual. change: of every plan, to try an idea."""
    bench = Bench(times, pool, change)
    dtfm = fit_dtfm(bench, transport)
    megatron, inside_bps, host_bps = fit_megatron(bench, transport)
    layer_s = megatron.layer_s["megatron"]

    def zero3(**assumed: int) -> ShardedFit:
        fitted = fit_zero3(bench, transport, layer_s, **assumed)
        groups = (FITTED_ON, *((case,) for case in PREDICTED))
        errors = [float(np.abs(bench.errors(fitted, group, ("zero3",))).mean()) for group in groups]
        return ShardedFit(
            collective_s=fitted.constants.collective_s,
            fitted_error=errors[0],
            predicted_errors=tuple(errors[1:]),
        )

    by_limit = {limit: zero3(live_parameters=limit) for limit in LIVE_LIMITS}
    constants = as_written(
        Constants(
            layer_s={**dtfm.layer_s, **megatron.layer_s, "zero3": layer_s},
            optimizer_s=dtfm.optimizer_s,
            collective_s=by_limit[LIVE_PARAMETERS].collective_s,
        )
    )
    found = transport.model_copy(update={"inside_node_bps": inside_bps})
    flops = sequence_flops(load_scenario(FITTED_ON[0]).workload) / layer_s
    plain, head = (
        bench.errors(
            Simulator(constants=constants, transport=found, change=change), FITTED_ON, TENSOR
        )
        for change in (None, functools.partial(with_head, flops=flops))
    )

    def pipelines(x: Floats) -> Floats:
        other = Simulator(
            constants=Constants(layer_s={"megatron": float(x[0])}), transport=transport
        )
        return bench.errors(other, FITTED_ON, ("megatron-p8",))

    everything = Simulator(constants=constants, transport=transport)
    cases, variants = FITTED_ON + PREDICTED, {key[1] for key in times}
    return Calibration(
        constants=constants,
        transport=transport,
        inside_bps=inside_bps,
        host_bps=host_bps,
        tensor_error=float(np.abs(plain).mean()),
        head_error=float(np.abs(head).mean()),
        pipelines_s=float(gauss_newton(pipelines, np.array([25e-3]))[0]),
        micro_batches={size: zero3(micro_batch=size) for size in (2, 4, 8)},
        live_parameters=by_limit,
        rows=bench.residuals(everything, cases, variants),
    )
