"""Derives the V100 device profile from the published iteration times of cases 1 and 2.

    python -m benchmarks.calibrate_v100            print constants, residuals and predictions
    python -m benchmarks.calibrate_v100 --write    and write the profile, the A40s derived from it,
                                                   and docs/calibration.md

Least squares of the relative error of `netbench.simulator.simulate`. What is fitted on what:
- dtfm, seconds per layer: what a larger batch adds to dtfm-scheduled, of both cases; what an
  iteration does once cancels. Then optimiser seconds per parameter: its rows of both cases;
- megatron, seconds per layer: the tensor-parallel layouts of both cases. They also ask for a rate
  inside a node, which is printed beside what the transport profile has;
- zero3, host seconds per collective: all its rows. Its layers are Megatron's.
Everything else is a check, and cases 3 to 5 are predictions: no constant is fitted on them.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from netbench.plan.build import ZERO3_MICRO_BATCH, build_plan
from netbench.plan.model import Plan
from netbench.plan.variants import find_variant
from netbench.scenario.load import load_scenario
from netbench.scenario.model import DeviceProfile, Scenario, Workload
from netbench.simulator import TransportProfile, load_transport, simulate
from netbench.workload.costs import backward_factor, layer_forward_flops

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "results" / "published" / "published_iteration_times.csv"
TRANSFERS = ROOT / "results" / "published" / "p2p_under_tc.csv"
PROFILE = ROOT / "netbench" / "workload" / "profiles" / "V100.yaml"
PAGE = ROOT / "docs" / "calibration.md"
A40_SCENARIOS = tuple(ROOT / "scenarios" / f"fluidstack{n}.yaml" for n in (2, 3))

FITTED_ON = ("case1", "case2")
PREDICTED = ("case3", "case4", "case5")
SLOTTED = ("dtfm-scheduled", "megatron-p8")
TENSOR = ("megatron-t8", "megatron-p2t4", "megatron-p4t2")
SEEDS = (2022, 2023, 2024)
PIPELINES = 8
"""Side by side, in all published layouts with pipelines of 8 stages."""

BATCHES = (1024, 4096)
"""Two, because an iteration is affine in the batch: rounds, micro-batches and micro-steps repeat
themselves. tests/benchmarks/test_calibrate_v100.py"""

A40_SPEED = 150 / 125
"""Nominal fp16 TFLOPS of an A40 over a V100's. Source: scenarios/fluidstack2.yaml."""

HEAD_FLOPS = 6 * 2048 * 2048 * 51200
"""Of a language-model head, forward + backward, per sequence: 2 s h V forward, twice that backward,
with the vocabulary of GPT-2 padded as Megatron-LM does."""

Times = Mapping[tuple[str, str, int, int], float]
"""(case, variant, layers, batch) -> published seconds per iteration, mean of the seeds."""

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """layer_s: seconds per layer and sequence, forward + backward, per system. optimizer_s: of
    dtfm, seconds per parameter. collective_s: of zero3, seconds per collective.

    Megatron's updates run on the GPU and ZeRO-3's are split 64 ways: both are lost in the published
    noise, and taken as 0."""

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
    """The mean over seeds of every published setting."""
    runs: dict[tuple[str, str, int, int], list[float]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            key = row["case"], row["system"], int(row["layers"]), int(row["batch"])
            runs[key].append(float(row["iteration_s"]))
    return {key: sum(times) / len(times) for key, times in runs.items()}


def profile_of(constants: Constants, workload: Workload) -> DeviceProfile:
    """The device profile that gives these seconds for `workload`'s layers."""
    work = sequence_flops(workload)
    return DeviceProfile(
        name="V100",
        flops={system: work / seconds for system, seconds in constants.layer_s.items()},
        optimizer_s_per_parameter={"dtfm": constants.optimizer_s, "default": 0.0},
        collective_s={"zero3": constants.collective_s, "default": 0.0},
    )


def sequence_flops(workload: Workload) -> float:
    """Of one layer and one sequence, forward + backward."""
    one = dataclasses.replace(workload, micro_batch=1)
    return layer_forward_flops(one) * (1 + backward_factor(one))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Simulator:
    """How a published setting is simulated: with which constants, over which transport.

    change: made to every plan before it is simulated.
    """

    constants: Constants
    transport: TransportProfile
    change: Callable[[Plan], Plan] | None = None

    def affine(self, job: tuple[str, str, int, int]) -> tuple[float, float]:
        """Seconds of (case, variant, layers, seed): at no batch, and per sequence."""
        case, variant, layers, seed = job
        scenario = _scenario(case)
        device = profile_of(self.constants, scenario.workload)
        scenario = dataclasses.replace(scenario, devices={"V100": device})
        few, many = (self._iteration_s(scenario, variant, layers, b, seed) for b in BATCHES)
        per_sequence_s = (many - few) / (BATCHES[1] - BATCHES[0])
        return few - per_sequence_s * BATCHES[0], per_sequence_s

    def _iteration_s(
        self, scenario: Scenario, variant: str, layers: int, batch: int, seed: int
    ) -> float:
        plan = build_plan(scenario, variant, layers, batch, seed, 2, 1, scale=1.0)
        return simulate(self.change(plan) if self.change else plan, self.transport).iteration_s


class Bench:
    """Simulates published settings, several at once."""

    def __init__(self, times: Times, pool: Executor) -> None:
        self.times = times
        self._pool = pool

    def residuals(
        self, simulator: Simulator, cases: Collection[str], variants: Collection[str]
    ) -> list[Residual]:
        """Every published setting of `variants` in `cases`; random placements averaged."""
        keys = [key for key in self.times if key[0] in cases and key[1] in variants]
        settings = list(dict.fromkeys(key[:3] for key in keys))
        jobs = [(*setting, seed) for setting in settings for seed in _seeds(setting[1])]
        found: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
        for job, affine in zip(jobs, self._pool.map(simulator.affine, jobs), strict=True):
            found[job[:3]].append(affine)
        mean = {setting: np.mean(found[setting], axis=0) for setting in settings}
        return [
            Residual(
                case=key[0],
                variant=key[1],
                layers=key[2],
                batch=key[3],
                published_s=self.times[key],
                simulated_s=float(mean[key[:3]] @ [1, key[3]]),
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


def gauss_newton(residuals: Callable[[Floats], Floats], start: Floats, steps: int = 2) -> Floats:
    """Least squares by Gauss-Newton with forward differences of 2%."""
    x = start
    for _ in range(steps):
        here = residuals(x)
        columns = []
        for index in range(len(x)):
            moved = x.copy()
            moved[index] *= 1.02
            columns.append((residuals(moved) - here) / (moved[index] - x[index]))
        x = x - np.linalg.lstsq(np.array(columns).T, here, rcond=None)[0]
    return x


def fit_dtfm(bench: Bench, transport: TransportProfile) -> Constants:
    """Seconds per layer, then optimiser seconds per parameter."""

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
    """What one more micro-batch in every pipeline adds, from the smallest to the largest batch of
    each setting; a slot of the full pipeline where the rest of an iteration does not depend on
    it. Settings with one batch say nothing."""
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


def fit_megatron(bench: Bench, transport: TransportProfile) -> tuple[Constants, float]:
    """Seconds per layer, and the rate inside a node that tensor parallelism finds, bit/s."""

    def errors(x: Floats) -> Floats:
        constants = Constants(layer_s={"megatron": float(x[0])})
        inside = dataclasses.replace(transport, inside_node_bps=float(x[1]))
        return bench.errors(Simulator(constants=constants, transport=inside), FITTED_ON, TENSOR)

    layer_s, inside_bps = gauss_newton(errors, np.array([17e-3, 130e9])).tolist()
    return Constants(layer_s={"megatron": layer_s}), inside_bps


def fit_zero3(
    bench: Bench,
    transport: TransportProfile,
    layer_s: float,
    micro_batch: int = ZERO3_MICRO_BATCH,
) -> Simulator:
    """Host seconds per collective, at `layer_s` seconds per layer and sequence."""

    def simulator(x: Floats) -> Simulator:
        constants = Constants(layer_s={"zero3": layer_s}, collective_s=max(0.0, float(x[0])))
        change = functools.partial(with_micro_batch, size=micro_batch)
        return Simulator(constants=constants, transport=transport, change=change)

    def errors(x: Floats) -> Floats:
        return bench.errors(simulator(x), FITTED_ON, ("zero3",))

    return simulator(gauss_newton(errors, np.array([15e-3])))


def with_micro_batch(plan: Plan, size: int) -> Plan:
    """A zero3 plan with micro-steps of `size` sequences per rank."""
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


def with_head(plan: Plan, flops: float) -> Plan:
    """The plan with a language-model head in its last stage; a device sustains `flops`."""
    head_s = HEAD_FLOPS * plan.workload.micro_batch / plan.layout.tp / flops
    last = plan.stages[-1]
    last = dataclasses.replace(
        last, forward_s=last.forward_s + head_s / 3, backward_s=last.backward_s + head_s * 2 / 3
    )
    return dataclasses.replace(plan, stages=(*plan.stages[:-1], last))


def mean_error(rows: Iterable[Residual]) -> float:
    """Mean absolute relative error."""
    return float(np.mean([abs(row.error) for row in rows]))


def summary_table(rows: Sequence[Residual]) -> str:
    """Mean absolute error, and the mean error, per variant (rows) and case (columns)."""
    cases = list(dict.fromkeys(row.case for row in rows))
    lines = [
        f"| variant | {' | '.join(cases)} | all |",
        "|---|" + "---|" * (len(cases) + 1),
    ]
    for variant in dict.fromkeys(row.variant for row in rows):
        of_variant = [row for row in rows if row.variant == variant]
        cells = []
        for case in cases:
            group = [row for row in of_variant if row.case == case]
            mean = np.mean([row.error for row in group]) if group else 0.0
            cells.append(f"{mean_error(group):.1%} ({mean:+.1%})" if group else "")
        lines.append(f"| {variant} | {' | '.join(cells)} | {mean_error(of_variant):.1%} |")
    return "\n".join(lines)


def slot_table(rows: Sequence[Residual]) -> str:
    """What one more micro-batch adds, and what an iteration takes beside its micro-batches."""
    lines = [
        "| case | variant | layers | per micro-batch, ms | beside, s |",
        "|---|---|---|---|---|",
    ]
    for slot in per_slot(rows):
        key = (slot.case, slot.variant, slot.layers, slot.batch)
        (row,) = [r for r in rows if (r.case, r.variant, r.layers, r.batch) == key]
        count = row.batch / PIPELINES
        beside = [
            total_s - count * each_s
            for total_s, each_s in (
                (row.published_s, slot.published_s),
                (row.simulated_s, slot.simulated_s),
            )
        ]
        lines.append(
            f"| {slot.case} | {slot.variant} | {slot.layers} "
            f"| {slot.published_s * 1e3:.1f} → {slot.simulated_s * 1e3:.1f} ({slot.error:+.1%}) "
            f"| {beside[0]:.2f} → {beside[1]:.2f} |"
        )
    return "\n".join(lines)


def residual_table(rows: Iterable[Residual]) -> str:
    """One line per case, variant and layers; published -> simulated (error) per batch."""
    cells: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for row in rows:
        cell = f"{row.published_s:.2f} → {row.simulated_s:.2f} ({row.error:+.1%})"
        cells[row.case, row.variant, row.layers].append(cell)
    lines = ["| case | variant | layers | B1024 | B2048 | B4096 |", "|---|---|---|---|---|---|"]
    for (case, variant, layers), line in cells.items():
        line += [""] * (3 - len(line))
        lines.append(f"| {case} | {variant} | {layers} | {' | '.join(line)} |")
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """All constants, what else the data of cases 1 and 2 say, and every residual.

    inside_bps: the rate inside a node that Megatron's tensor-parallel layouts ask for. head: mean
    absolute error of those layouts with a language-model head. pipelines_s: Megatron's layer if
    it were fitted on megatron-p8 instead. micro_batches: per assumed micro-batch of zero3, its
    host seconds per collective and its mean absolute error.
    """

    constants: Constants
    transport: TransportProfile
    inside_bps: float
    tensor_error: float
    head_error: float
    pipelines_s: float
    micro_batches: Mapping[int, tuple[float, float]]
    rows: Sequence[Residual]


def calibrate(times: Times, pool: Executor, transport: TransportProfile) -> Calibration:
    """Every fit and every residual."""
    bench = Bench(times, pool)
    dtfm = fit_dtfm(bench, transport)
    megatron, inside_bps = fit_megatron(bench, transport)
    layer_s = megatron.layer_s["megatron"]
    zero3 = {size: fit_zero3(bench, transport, layer_s, size) for size in (2, 4, 8)}
    constants = Constants(
        layer_s={**dtfm.layer_s, **megatron.layer_s, "zero3": layer_s},
        optimizer_s=dtfm.optimizer_s,
        collective_s=zero3[ZERO3_MICRO_BATCH].constants.collective_s,
    )
    found = dataclasses.replace(transport, inside_node_bps=inside_bps)
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
        tensor_error=float(np.abs(plain).mean()),
        head_error=float(np.abs(head).mean()),
        pipelines_s=float(gauss_newton(pipelines, np.array([25e-3]))[0]),
        micro_batches={
            size: (
                fitted.constants.collective_s,
                float(np.abs(bench.errors(fitted, FITTED_ON, ("zero3",))).mean()),
            )
            for size, fitted in zero3.items()
        },
        rows=bench.residuals(everything, cases, variants),
    )


def render_profile(constants: Constants) -> str:
    """The text of the built-in profile."""
    return PROFILE_TEXT.format(speeds=_speeds(constants, ""))


def _speeds(constants: Constants, indent: str, factor: float = 1.0) -> str:
    """The per-system lines of a device profile, `factor` times as fast."""
    flops = profile_of(constants, load_scenario(FITTED_ON[0]).workload).flops
    lines = ["flops: # achieved, from seconds per GPT-XL layer and sequence, forward + backward"]
    for system, seconds in constants.layer_s.items():
        speed = f"{factor * flops[system] / 1e12:.1f}TFLOPS"
        lines.append(f"  {system}: {speed} # {seconds / factor * 1e3:.2f} ms")
    lines += [
        f"  default: {factor * flops['dtfm'] / 1e12:.1f}TFLOPS # as dtfm",
        "optimizer_per_parameter:",
        f"  dtfm: {constants.optimizer_s * 1e9:.2f}ns # SGD on a CPU copy of fp32 weights",
        "  default: 0ns # on the GPU: below the noise of the published times",
        "collective: # what it costs the host beside its bytes",
        f"  zero3: {constants.collective_s * 1e3:.1f}ms # hooks, launches, bookkeeping",
        "  default: 0ms",
    ]
    return "\n".join(indent + line for line in lines)


def rewrite_a40(text: str, constants: Constants) -> str:
    """A scenario's text with its A40 as fast as the V100 times the ratio of their peaks."""
    speeds = _speeds(constants, "    ", A40_SPEED) + "\n"
    found, count = re.subn(r"(?<=\n  A40:\n).*?(?=    memory:)", speeds, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{count} A40 profiles, expected 1: a scenario's `devices` changed shape")
    return found


PROFILE_TEXT = """\
# NVIDIA V100 SXM2 16 GB, as the published experiments used it: what each training system
# sustained. Written by `python -m benchmarks.calibrate_v100 --write`; fitted on the
# published iteration times of cases 1 and 2 only. Residuals: docs/calibration.md.
{speeds}
memory: 16GB # 16 GB variant (published notes, cases 1-5)
source: >-
  least squares on published iteration times, cases 1 and 2; benchmarks/calibrate_v100.py
"""


def render_page(found: Calibration) -> str:
    """docs/calibration.md."""
    constants, transport = found.constants, found.transport

    def of(cases: Collection[str]) -> list[Residual]:
        return [row for row in found.rows if row.case in cases]

    assumed = [
        f"| {size} | {seconds * 1e3:.1f} | {error:.1%} |"
        for size, (seconds, error) in found.micro_batches.items()
    ]
    return PAGE_TEXT.format(
        ms={system: seconds * 1e3 for system, seconds in constants.layer_s.items()},
        update_ns=constants.optimizer_s * 1e9,
        collective_ms=constants.collective_s * 1e3,
        inside_gbps=found.inside_bps / 1e9,
        stored_gbps=transport.inside_node_bps / 1e9,
        host_gbps=transport.host_bps / 1e9,
        fifo_mib=transport.fifo_bytes / 2**20,
        window_mib=transport.window_bytes / 2**20,
        window_factor=transport.window_factor,
        tensor_error=found.tensor_error,
        head_error=found.head_error,
        head_ms=HEAD_FLOPS
        / sequence_flops(load_scenario(FITTED_ON[0]).workload)
        * constants.layer_s["megatron"]
        * 1e3,
        pipelines_ms=found.pipelines_s * 1e3,
        micro_batch=ZERO3_MICRO_BATCH,
        micro_batches="\n".join(assumed),
        fitted=summary_table(of(FITTED_ON)),
        predicted=summary_table(of(PREDICTED)),
        slots=slot_table([row for row in of(FITTED_ON) if row.variant in SLOTTED]),
        fitted_rows=residual_table(of(FITTED_ON)),
        predicted_rows=residual_table(of(PREDICTED)),
    )


PAGE_TEXT = """# How the V100 profile was made

Written by `python -m benchmarks.calibrate_v100 --write`. Constants of compute are fitted on the
published iteration times of cases 1 and 2, simulated (`netbench.simulator`). Those of the transport
are fitted on point-to-point transfers (`python -m benchmarks.calibrate_transport`). No row of cases
3-5 takes part: what is said of them is a prediction.

## Constants

| constant | value | fitted on |
|---|---|---|
| dtfm, per layer and sequence, forward + backward | {ms[dtfm]:.2f} ms | what a larger batch adds, \
dtfm-scheduled of cases 1 and 2 |
| dtfm, optimizer, per parameter | {update_ns:.2f} ns | dtfm-scheduled of cases 1 and 2: SGD on \
the CPU, on the member that reduces and broadcasts |
| megatron, per layer and sequence | {ms[megatron]:.2f} ms | tensor-parallel layouts of cases 1 \
and 2 |
| zero3, per layer and sequence | {ms[zero3]:.2f} ms | none: Megatron's, the kernels are the same |
| zero3, host time per collective | {collective_ms:.1f} ms | zero3 of cases 1 and 2 |

The least squares are of the relative error, by Gauss-Newton. Updates of megatron and zero3 are
taken as 0: on the GPU, or split 64 ways, they are lost in the noise of the published times.

**Megatron.** The tensor-parallel layouts are left {tensor_error:.1%} off on average, with a rate
of {inside_gbps:.0f} Gbit/s between the GPUs of a node. (The transport profile has \
{stored_gbps:.0f} Gbit/s; the published notes say 100, which leaves all-reduces inside a node too
slow.) With a language-model head, {head_ms:.0f} ms more in the last stage, they are \
{head_error:.1%} off. megatron-p8 cannot tell: its last stage has one exchange where others have
two, and is never the slowest. So no head is assumed.

**zero3.** DeepSpeed's defaults are assumed: parameters within 1e9 stay gathered from the forward to
the backward pass of a micro-step. The micro-batch is not documented. Cases 1 and 2 alone:

| sequences per micro-step | host time per collective, ms | mean absolute error |
|---|---|---|
{micro_batches}

{micro_batch} is what netbench assumes. The host time is large for a launch: it stands for
all that DeepSpeed does for a collective (hooks, flattening, waiting for the allocator), and
for what is not explained below.

## Transport

What a transfer takes on NCCL over TCP, in short (`netbench/simulator/pipeline.py`, `kernel.py`):

- Operations of one communicator follow one another. Each copies its message through the host's
  sockets at {host_gbps:.2f} Gbit/s, at either end.
- Either end buffers {fifo_mib:g} MiB (NCCL's FIFO) + {window_mib:g} MiB (sockets) + \
{window_factor:g} x rate x round trip. On a long path that is several messages, and nobody waits for
  anybody. On a short one it is a part of one: the sender waits for its receiver.
- A blocking exchange (Megatron's) is over when its messages have arrived.
- A connection starts slowly, and again after idleness.
- Flows share NICs, links and classes by max-min fairness.

## Cases 1 and 2

Mean absolute error (mean error):

{fitted}

What is not explained, and was not fitted away:
- **Eight GPUs behind one NIC.** megatron-p8 and dtfm-random of case 1 took far longer than the NIC
  asks for, and so did megatron-p8 of case 2, with four. megatron-p4t2 of case 1 sends messages of
  half the size through the same NICs and agrees. It is not compute: from 24 to 40 layers,
  megatron-p8 of case 1 takes 7 ms more per layer and micro-batch of a stage, less than half of a
  layer. Fitted on megatron-p8 instead, a layer would take {pipelines_ms:.1f} ms.
- **What dtfm does once per iteration in case 2**, gradients and update, is shorter than simulated
  (*beside* below), while a further micro-batch costs what it should. The published placement is not
  known. With the identity placement that is assumed here, four data-parallel groups share the NIC
  of a 4-GPU node. The optimizer's rate is a compromise: case 1 alone asks for 9.25 ns;
  there the eight stages' updates run on the CPUs of one node, in case 2 of two.
- **zero3** of 40 layers takes more per layer than that of 24, in both cases. No rule that is
  linear in the layers follows that; the memory of 16 GB may have run short.

Published → simulated:

{slots}

## Cases 3 to 5, predicted

{predicted}

## Every setting

Published → simulated, seconds.

{fitted_rows}

{predicted_rows}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the profiles and the page")
    arguments = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        found = calibrate(read_published(), pool, load_transport("nccl"))
    profile, page = render_profile(found.constants), render_page(found)
    print(profile, page, sep="\n")
    if arguments.write:
        PROFILE.write_text(profile, encoding="utf-8")
        PAGE.write_text(page, encoding="utf-8")
        for path in A40_SCENARIOS:
            text = path.read_text(encoding="utf-8")
            path.write_text(rewrite_a40(text, found.constants), encoding="utf-8")


if __name__ == "__main__":
    main()
