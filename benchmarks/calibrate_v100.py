"""Derives the V100 device profile from the published iteration times of cases 1 and 2.

    python -m benchmarks.calibrate_v100            print constants, residuals, held-out figures
    python -m benchmarks.calibrate_v100 --write    and write the profile and docs/calibration.md

Constants, and the published rows that each is fitted on (least squares of the relative error):
- dtfm, seconds per layer and optimiser seconds per parameter: dtfm-scheduled, where the
  hops of no two pipelines share a NIC, so that compute is not confounded with contention;
- megatron, seconds per layer: the tensor-parallel layouts of case 1. They also give the all-reduce
  of tensor parallelism and a constant per layout (head, pipeline hops), in closed form;
- zero3, seconds per layer: all its rows.
Everything else published in cases 1 and 2 is a check. No constant is fitted on case 3, but it was
in view when the transport rule was chosen: docs/calibration.md says what that means. Cases 4 and 5
are replayed as a test of all of it.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.replay import CHOSEN, RULES, num_units, replay_unit, shard_seconds
from netbench.plan.build import VARIANTS, build_plan
from netbench.plan.model import Plan
from netbench.scenario.load import load_scenario
from netbench.scenario.model import DeviceProfile, Scenario, Workload
from netbench.workload.costs import backward_factor, layer_forward_flops

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "results" / "published" / "published_iteration_times.csv"
TRANSFERS = ROOT / "results" / "published" / "p2p_under_tc.csv"
PROFILE = ROOT / "netbench" / "workload" / "profiles" / "V100.yaml"
PAGE = ROOT / "docs" / "calibration.md"

FITTED_ON = ("case1", "case2")
HELD_OUT = "case3"
UNSEEN = ("case4", "case5")
"""Replayed once everything was settled, and nothing changed for it."""
LAYERS = (24, 32, 40)
BATCHES = (1024, 2048, 4096)
SEEDS = (2022, 2023, 2024)
CHECKED = ("dtfm-scheduled", "dtfm-random", "megatron-p8", "zero3")
TENSOR_LAYOUTS = {"megatron-t8": (8, 1), "megatron-p2t4": (4, 2), "megatron-p4t2": (2, 4)}
"""Published name -> (tensor, pipeline) degree; data parallel 8 in all of them. Only in case 1 is
tensor parallelism inside a node."""
PIPELINES = 8

Times = Mapping[tuple[str, str, int, int], float]
"""(case, system, layers, batch) -> published seconds per iteration, mean of the seeds."""

RULE_NOTES = {
    "whole messages": "floor(2e / S) messages of S bytes (chosen)",
    "rendezvous": "none",
    "independent": "all",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """Seconds per layer and sequence, forward + backward, per system; optimiser of dtfm, seconds
    per parameter. Megatron's updates run on the GPU and ZeRO-3's are split 64 ways: both are
    lost in the published noise, and taken as 0."""

    layer_s: Mapping[str, float]
    dtfm_optimizer_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """One published row and its replay."""

    case: str
    variant: str
    layers: int
    batch: int
    published_s: float
    replayed_s: float

    @property
    def error(self) -> float:
        return self.replayed_s / self.published_s - 1


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
    per_sequence = layer_forward_flops(dataclasses.replace(workload, micro_batch=1))
    work = per_sequence * (1 + backward_factor(workload))
    return DeviceProfile(
        name="V100",
        flops={system: work / seconds for system, seconds in constants.layer_s.items()},
        optimizer_s_per_parameter={"dtfm": constants.dtfm_optimizer_s, "default": 0.0},
    )


def with_constants(case: str, constants: Constants) -> Scenario:
    """The scenario `case` on V100s that sustain `constants`."""
    scenario = load_scenario(case)
    device = profile_of(constants, scenario.workload)
    return dataclasses.replace(scenario, devices={"V100": device})


def replay_rows(
    cases: Iterable[str],
    variant: str,
    constants: Constants,
    times: Times,
    rule: str = CHOSEN,
) -> Iterator[Residual]:
    """Every published setting of `variant` in `cases`, the replay averaged over seeds."""
    for case in cases:
        scenario = with_constants(case, constants)
        for layers in LAYERS:
            plans = [_plan(scenario, variant, layers, BATCHES[0], seed) for seed in _seeds(variant)]
            units = np.array([replay_unit(plan, rule) for plan in plans]).mean(axis=0)
            for batch in BATCHES:
                count = num_units(_plan(scenario, variant, layers, batch, SEEDS[0]))
                yield Residual(
                    case=case,
                    variant=variant,
                    layers=layers,
                    batch=batch,
                    published_s=times[case, variant, layers, batch],
                    replayed_s=float(count * units[0] + units[1]),
                )


def _plan(scenario: Scenario, variant: str, layers: int, batch: int, seed: int) -> Plan:
    return build_plan(scenario, variant, layers, batch, seed, 2, 1, scale=1.0)


def _seeds(variant: str) -> tuple[int, ...]:
    return SEEDS if VARIANTS[variant].scheduler == "random" else SEEDS[:1]


def gauss_newton(
    residuals: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    start: NDArray[np.float64],
    steps: int = 2,
) -> NDArray[np.float64]:
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


def fit_dtfm(
    times: Times,
    rule: str = CHOSEN,
    cases: tuple[str, ...] = FITTED_ON,
    optimizer_s: float | None = None,
) -> Constants:
    """Seconds per layer, and optimiser seconds per parameter unless given, from dtfm-scheduled."""

    def constants(x: NDArray[np.float64]) -> Constants:
        update = float(x[1]) if optimizer_s is None else optimizer_s
        return Constants(layer_s={"dtfm": float(x[0])}, dtfm_optimizer_s=update)

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        rows = replay_rows(cases, "dtfm-scheduled", constants(x), times, rule)
        return np.array([row.error for row in rows])

    start = [17e-3, 5e-9] if optimizer_s is None else [17e-3]
    return constants(gauss_newton(residuals, np.array(start)))


def fit_slope(times: Times, rule: str, case: str) -> float:
    """dtfm's seconds per layer from what a further round costs: the optimiser and data-parallel
    synchronisation, once per iteration, cancel between the largest and the smallest batch."""
    low, high = BATCHES[0], BATCHES[-1]

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        scenario = with_constants(case, Constants(layer_s={"dtfm": float(x[0])}))
        errors = []
        for layers in LAYERS:
            few, many = (
                _plan(scenario, "dtfm-scheduled", layers, b, SEEDS[0]) for b in (low, high)
            )
            more_s = (
                times[case, "dtfm-scheduled", layers, high]
                - times[case, "dtfm-scheduled", layers, low]
            )
            round_s = more_s / (num_units(many) - num_units(few))
            errors.append(replay_unit(few, rule)[0] / round_s - 1)
        return np.array(errors)

    return float(gauss_newton(residuals, np.array([17e-3]))[0])


def fit_pipelines_of_megatron(times: Times) -> Constants:
    """What Megatron's layer would take if it were fitted on megatron-p8 instead."""

    def constants(x: NDArray[np.float64]) -> Constants:
        return Constants(layer_s={"megatron": float(x[0])})

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        rows = replay_rows(FITTED_ON, "megatron-p8", constants(x), times)
        return np.array([row.error for row in rows])

    return constants(gauss_newton(residuals, np.array([25e-3])))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TensorFit:
    """Seconds: of a layer, of one all-reduce ring pass of its six 8 MiB tensors, and per
    micro-batch of each layout. max_error: of the rows that it was fitted on."""

    layer_s: float
    layer_standard_error_s: float
    ring_s: float
    layout_s: Mapping[str, float]
    max_error: float
    num_rows: int


def fit_megatron(times: Times) -> TensorFit:
    """n micro-batches on pp stages take (n + pp - 1) L / pp (c / tp + ring 2 (tp - 1) / tp)
    + n layout_s; linear in c, ring and one layout_s per layout."""
    rows, published = [], []
    for index, (system, (tp, pp)) in enumerate(TENSOR_LAYOUTS.items()):
        for (case, name, layers, batch), seconds in times.items():
            if case == FITTED_ON[0] and name == system:
                n = batch // PIPELINES
                passes = (n + pp - 1) * layers / pp
                layout = [n * float(index == other) for other in range(len(TENSOR_LAYOUTS))]
                rows.append([passes / tp, passes * 2 * (tp - 1) / tp, *layout])
                published.append(seconds)
    design = np.array(rows) / np.array(published)[:, None]
    x = np.linalg.lstsq(design, np.ones(len(design)), rcond=None)[0]
    error = design @ x - 1
    variance = error @ error / (len(design) - len(x)) * np.linalg.inv(design.T @ design)
    return TensorFit(
        layer_s=float(x[0]),
        layer_standard_error_s=float(np.sqrt(variance[0, 0])),
        ring_s=float(x[1]),
        layout_s=dict(zip(TENSOR_LAYOUTS, x[2:].tolist(), strict=True)),
        max_error=float(abs(error).max()),
        num_rows=len(design),
    )


def fit_zero3(times: Times) -> float:
    """Seconds per layer and sequence, communication being what the network asks for."""
    compute, rest = [], []
    for case in FITTED_ON:
        scenario = with_constants(case, Constants(layer_s={"zero3": 1.0}))
        for layers in LAYERS:
            for batch in BATCHES:
                plan = _plan(scenario, "zero3", layers, batch, SEEDS[0])
                wire_s, per_layer_s = shard_seconds(plan)
                published_s = times[case, "zero3", layers, batch]
                compute.append(num_units(plan) * per_layer_s / published_s)
                rest.append(1 - num_units(plan) * wire_s / published_s)
    return float(np.dot(compute, rest) / np.dot(compute, compute))


def fit(times: Times) -> tuple[Constants, TensorFit]:
    """All constants."""
    dtfm, megatron = fit_dtfm(times), fit_megatron(times)
    layer_s = {**dtfm.layer_s, "megatron": megatron.layer_s, "zero3": fit_zero3(times)}
    return dataclasses.replace(dtfm, layer_s=layer_s), megatron


def mean_error(rows: Iterable[Residual]) -> float:
    """Mean absolute relative error."""
    return float(np.mean([abs(row.error) for row in rows]))


def rule_table(times: Times, constants: Constants) -> list[str]:
    """Each transport rule with constants fitted anew: the layer time from all of cases 1 and 2,
    from either case alone with the optimiser of both, and from the cost of a further round in
    either; then the error left in cases 1 and 2, and in case 3."""
    lines = [
        "| accepted ahead of their turn | layer, ms | case 1 / 2 alone | a round, case 1 / 2 "
        "| error, cases 1-2 | case 3, scheduled | case 3, random |",
        "|---|---|---|---|---|---|---|",
    ]
    for rule in RULES:
        both = constants if rule == CHOSEN else fit_dtfm(times, rule)
        alone = [fit_dtfm(times, rule, (case,), both.dtfm_optimizer_s) for case in FITTED_ON]
        layers = " / ".join(f"{one.layer_s['dtfm'] * 1e3:.2f}" for one in alone)
        slopes = " / ".join(f"{fit_slope(times, rule, case) * 1e3:.2f}" for case in FITTED_ON)
        errors = [
            mean_error(replay_rows(cases, variant, both, times, rule))
            for cases, variant in (
                (FITTED_ON, "dtfm-scheduled"),
                ((HELD_OUT,), "dtfm-scheduled"),
                ((HELD_OUT,), "dtfm-random"),
            )
        ]
        cells = " | ".join(f"{error:.1%}" for error in errors)
        layer = f"{both.layer_s['dtfm'] * 1e3:.2f}"
        lines.append(f"| {rule}: {RULE_NOTES[rule]} | {layer} | {layers} | {slopes} | {cells} |")
    return lines


def transfer_table(path: Path = TRANSFERS) -> list[str]:
    """NCCL's transfers at a limited rate: goodput over the rate, and what a delay adds."""
    with path.open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["backend"] == "nccl"]
    rows = [row for row in rows if row["bandwidth_gbps"]]
    undelayed = {
        (row["bandwidth_gbps"], row["message_mb"]): float(row["time_ms"])
        for row in rows
        if row["delay_one_way_ms"] == "0"
    }
    table = [
        "| rate, Gbit/s | one-way delay, ms | message, MiB | time, ms | goodput / rate "
        "| more than without delay, ms |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        rate, size, time_ms = row["bandwidth_gbps"], row["message_mb"], float(row["time_ms"])
        goodput = int(size) * 2**20 * 8 / (time_ms / 1e3) / (float(rate) * 1e9)
        more_ms = time_ms - undelayed[rate, size]
        delay = row["delay_one_way_ms"]
        table.append(f"| {rate} | {delay} | {size} | {time_ms:g} | {goodput:.4f} | {more_ms:g} |")
    return table


def residual_table(rows: Iterable[Residual]) -> list[str]:
    """One line per case, variant and layers; published -> replayed (error) per batch."""
    table = [
        "| case | variant | layers | " + " | ".join(f"B{batch}" for batch in BATCHES) + " |",
        "|---|---|---|" + "---|" * len(BATCHES),
    ]
    cells: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for row in rows:
        cell = f"{row.published_s:.2f} → {row.replayed_s:.2f} ({row.error:+.1%})"
        cells[row.case, row.variant, row.layers].append(cell)
    table += [f"| {c} | {v} | {n} | {' | '.join(line)} |" for (c, v, n), line in cells.items()]
    return table


def summary_table(rows: Iterable[Residual]) -> list[str]:
    """Mean absolute error, mean error and the smallest setting's error per case and variant."""
    groups: dict[tuple[str, str], list[Residual]] = defaultdict(list)
    for row in rows:
        groups[row.case, row.variant].append(row)
    table = [
        f"| case | variant | mean absolute error | mean error | L{LAYERS[0]} B{BATCHES[0]} |",
        "|---|---|---|---|---|",
    ]
    for (case, variant), group in groups.items():
        mean = float(np.mean([row.error for row in group]))
        cells = f"{mean_error(group):.1%} | {mean:+.1%} | {group[0].error:+.1%}"
        table.append(f"| {case} | {variant} | {cells} |")
    return table


def render_profile(constants: Constants) -> str:
    """The text of the built-in profile."""
    flops = profile_of(constants, load_scenario(FITTED_ON[0]).workload).flops
    seconds = constants.layer_s
    lines = [
        "# NVIDIA V100 SXM2 16 GB, as the published experiments used it: what each training system",
        "# sustained. Written by `python -m benchmarks.calibrate_v100 --write`; fitted on the",
        "# published iteration times of cases 1 and 2 only. Residuals: docs/calibration.md.",
        "flops: # achieved, from seconds per GPT-XL layer and sequence, forward + backward",
        *(
            f"  {system}: {flops[system] / 1e12:.1f}TFLOPS # {seconds[system] * 1e3:.2f} ms"
            for system in ("dtfm", "megatron", "zero3")
        ),
        f"  default: {flops['dtfm'] / 1e12:.1f}TFLOPS # as dtfm",
        "optimizer_per_parameter:",
        f"  dtfm: {constants.dtfm_optimizer_s * 1e9:.2f}ns # SGD on a CPU copy of fp32 weights",
        "  default: 0ns # on the GPU: below the noise of the published times",
        "memory: 16GB # 16 GB variant (published notes, cases 1-5)",
        "source: >-",
        "  least squares on published iteration times, cases 1 and 2; benchmarks/calibrate_v100.py",
    ]
    return "\n".join(lines) + "\n"


def render_page(times: Times, constants: Constants, tensor: TensorFit) -> str:
    """docs/calibration.md."""
    ms = {system: seconds * 1e3 for system, seconds in constants.layer_s.items()}
    known = _rows(FITTED_ON, CHECKED, constants, times)
    held = _rows((HELD_OUT,), (*CHECKED, "megatron-p8-random"), constants, times)
    unseen = _rows(UNSEEN, (*CHECKED, "megatron-p8-random"), constants, times)
    updates = [fit_dtfm(times, cases=(case,)).dtfm_optimizer_s * 1e9 for case in FITTED_ON]
    pipelines = fit_pipelines_of_megatron(times)
    refitted = _rows(FITTED_ON, ("megatron-p8",), pipelines, times)
    missed = _rows((HELD_OUT,), ("megatron-p8",), pipelines, times)
    layouts = ", ".join(f"{name} {s * 1e3:.0f} ms" for name, s in tensor.layout_s.items())
    parts = [
        PAGE_CONSTANTS.format(
            ms=ms,
            tensor=tensor,
            tensor_error_ms=tensor.layer_standard_error_s * 1e3,
            ring_ms=tensor.ring_s * 1e3,
            layouts=layouts,
            update_ns=constants.dtfm_optimizer_s * 1e9,
            updates=updates,
            pipelines_ms=pipelines.layer_s["megatron"] * 1e3,
            refitted_error=mean_error(refitted),
            first_missed=missed[0].error,
        ),
        *rule_table(times, constants),
        PAGE_RULES,
        *transfer_table(),
        "\n## Residuals, cases 1 and 2\n",
        *summary_table(known),
        PAGE_UNEXPLAINED,
        *residual_table(known),
        PAGE_HELD_OUT,
        *summary_table(held),
        "",
        *residual_table(held),
        PAGE_UNSEEN.format(too_fast=sum(row.error < 0 for row in unseen), num_rows=len(unseen)),
        *summary_table(unseen),
        "",
        *residual_table(unseen),
    ]
    return "\n".join(parts) + "\n"


def _rows(
    cases: tuple[str, ...], variants: tuple[str, ...], constants: Constants, times: Times
) -> list[Residual]:
    return [row for name in variants for row in replay_rows(cases, name, constants, times)]


PAGE_CONSTANTS = """# How the V100 profile was made

Written by `python -m benchmarks.calibrate_v100 --write`. The constants are fitted on the published
iteration times of cases 1 and 2; no row of cases 3-5 takes part. Figures are from a replay of
plans (`benchmarks/replay.py`), not from emulated runs.

## Constants

| system | ms per layer and sequence, forward + backward | fitted on |
|---|---|---|
| dtfm | {ms[dtfm]:.2f} | 18 settings of dtfm-scheduled, cases 1 and 2 |
| megatron | {ms[megatron]:.2f} ± {tensor_error_ms:.2f} | {tensor.num_rows} settings of the \
tensor-parallel layouts, case 1 |
| zero3 | {ms[zero3]:.2f} | 18 settings, cases 1 and 2 |

**dtfm's optimiser**: {update_ns:.2f} ns per parameter, on the member that reduces and broadcasts.
Poorly determined: case 1 alone asks for {updates[0]:.1f} ns, case 2 alone for {updates[1]:.1f} ns.
The published placement of case 2 is not known; the identity placement assumed here makes
data-parallel groups share NICs.

**Megatron's layer** comes from tensor parallelism inside a node, five constants that leave no
setting more than {tensor.max_error:.1%} off: one ring pass of a layer's all-reduces
takes {ring_ms:.2f} ms, and the rest of a micro-batch (head, hops) {layouts}.
It is not fitted on megatron-p8, the variant that netbench runs, because the replay cannot explain
those rows (below). That choice matters: fitted on megatron-p8 of cases 1 and 2 it would be
{pipelines_ms:.1f} ms, leave {refitted_error:.1%} there, and miss case 3 L24 B1024 \
by {first_missed:+.1%}.

## How far messages run ahead

dtfm receives, computes and sends on one NCCL communicator, whose operations run one after the
other: the next receive starts with the send before it. Sends hold nobody up. Let
e = 1 MiB (NCCL's FIFO) + 2 x rate x round-trip time (socket buffers), on each side, and S the size
of a message. A receiver accepts floor(2e / S) whole messages ahead of their turn, and a sender
hears of it a one-way delay later. In cases 1 and 2 that is none, in case 3 one across 11 ms.
"""

PAGE_RULES = """
(Layer time from all of cases 1 and 2, from either alone, and from what a further round costs, where
optimiser and synchronisation cancel; mean absolute error of dtfm.)

Cases 1 and 2 show that not everything runs ahead, but cannot tell the first two rows apart.
**So the rule was chosen with case 3 in view**, among some 25 variants tried by hand, and so was the
2 in e. For case 3 the constants are a prediction; the rule is not. Nor does the rule fit best: the
two cases ask for layer times 19% apart by a further round. With sends that wait until their bytes
are acknowledged they were 8% apart (17.41 ms; case 3 6.6% and 5.0%), but that rule could not be
emulated: announcements of receives queued behind the rank's own data in a shared class, and a
GPipe slot across 11 ms took 103 ms instead of 61. With the present rule it takes 62.6 ms.

**Replay and emulation** at case 3 L24 B1024, both with 17.41 ms and 5.98 ns:

| variant | forward + backward + rest, emulated, s | replayed, s | replay short by |
|---|---|---|---|
| dtfm-scheduled | 4.08 + 7.72 + 8.39 = 20.19 | 4.06 + 7.72 + 7.86 = 19.64 | 2.7% |
| dtfm-random | 8.97 + 8.97 + 10.24 = 28.18 | 8.68 + 9.05 + 7.86 = 25.59 | 9.2% |
| megatron-p8 | 20.76 | 20.58 | 0.9% |

Pipelines agree within 3.3%. Gradients take longer in emulation; why is not established (the replay
has no TCP). The replay's barrier, and the slices of its chains, were added on seeing this.

NCCL between two machines under `tc`, as measured by the authors of the published experiments,
agrees with buffers of at least the bandwidth-delay product: at a limited rate a delay adds less
than one round trip. 0.993 of the rate is the ceiling of jumbo frames (8949 / 9015).
"""

PAGE_UNEXPLAINED = """
What is not explained, and was not fitted away:
- **Shared NICs.** dtfm-random and megatron-p8 in case 1 send activations through NICs shared by
  eight GPUs, and took far longer than the rate of the NIC asks for; megatron-p8 in case 2 likewise
  with four. Counting both directions of a NIC against one rate, tried once under an earlier rule
  and not kept in the script, brought dtfm-random of case 1 (L24) and megatron-p8 of case 2 near,
  left megatron-p8 of case 1 a third short, and made dtfm-random of case 2 half as long again as
  published.
- **megatron-p8 in case 1** hardly depends on the layers: 7 ms per layer and micro-batch of a stage.
  Something other than compute bounds it.
- **zero3** needs more time per layer with more layers. One constant cannot follow that, so it is
  too slow at 24 layers in case 1 and too fast at 40. Its micro-batch (4) and live limit (1e9
  parameters) are assumptions; the published runs do not document them.
"""

PAGE_UNSEEN = """
## Cases 4 and 5

A clean test: nothing was fitted or chosen on these rows, and nothing was changed after seeing them.
(An earlier prototype had been compared with them; this model had not.)

The replay is too fast in {too_fast} of {num_rows} rows. In dtfm-scheduled the error grows with the
batch, so a further round costs too little; in zero3 with the layers, as in cases 1 and 2. Not
explained.
"""

PAGE_HELD_OUT = """
## Case 3

No constant is fitted on these rows (but see above on the transport rule, and on the choice of rows
for Megatron).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {PROFILE.name} and {PAGE}")
    arguments = parser.parse_args()
    times = read_published()
    constants, tensor = fit(times)
    profile, page = render_profile(constants), render_page(times, constants, tensor)
    print(profile, page, sep="\n")
    if arguments.write:
        PROFILE.write_text(profile, encoding="utf-8")
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
