"""`netbench calibrate`: this machine's device as a profile for scenarios."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from netbench import __version__
from netbench.commands.files import check_writable
from netbench.commands.live import track, wide_console
from netbench.commands.run import NumberList
from netbench.errors import EXIT_NOT_TRUSTWORTHY, TestbedError, UsageError
from netbench.plan import Layout, Plan, Transport, plan_to_json
from netbench.scenario.devices import read_device_profile
from netbench.scenario.model import DeviceProfile, Link, Network, Workload
from netbench.testbed.calibration import Bench, open_bench
from netbench.testbed.local import machine_name
from netbench.workload.calibration import (
    PASSES,
    Calibration,
    LayerTimes,
    Point,
    Time,
    fit_layer,
    grid,
    heads_of,
    profile_yaml,
)
from netbench.workload.costs import DTYPE_BYTES, activation_bytes, stage_costs

Sizes = tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What is measured where nothing else is asked for. parameters: of the optimizer's update."""

    hidden: Sizes
    sequence: Sizes
    micro_batch: Sizes
    dtypes: tuple[str, ...]
    parameters: int


DEFAULTS = {
    "cpu": Defaults(
        hidden=(256, 512, 1024),
        sequence=(128, 256, 512),
        micro_batch=(1, 2, 4),
        dtypes=("fp32",),
        parameters=1 << 22,
    ),
    "cuda": Defaults(
        hidden=(1024, 2048, 4096),
        sequence=(512, 1024, 2048),
        micro_batch=(1, 4, 8),
        dtypes=("fp16", "bf16", "fp32"),
        parameters=1 << 28,
    ),
}

BUDGET_S, QUICK_S = 120.0, 20.0
"""Of all measurements together, seconds; the start of the process comes on top."""

QUICK_VALUES = 2
"""Of each size's defaults, that are measured then."""

CHECK_SHARE, OPTIMIZER_SHARE = 0.2, 0.1
"""Of the budget, for the iteration that checks the profile, and for the updates."""

CHECK_LAYERS, CHECK_MICRO_BATCHES = 4, 4
"""Of the GPT that the profile is checked on."""

SYSTEMS = {"dtfm": "dtfm", "default": "megatron"}
"""Keys of the optimizer's time -> a system that steps so: SGD, Adam."""


class Words(click.ParamType[tuple[str, ...]]):
    """Comma-separated dtypes."""

    name = "DTYPE,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        words = value if isinstance(value, tuple) else tuple(str(value).split(","))
        for word in words:
            if word not in DTYPE_BYTES:
                self.fail(f"{word!r} is none of {', '.join(DTYPE_BYTES)}", param, ctx)
        return words


@click.command()
@click.option(
    "--device",
    type=click.Choice(list(DEFAULTS)),
    default="cpu",
    show_default=True,
    help="A core, or a GPU.",
)
@click.option("--hidden", type=NumberList(), help="Hidden sizes.  [default: by device]")
@click.option("--sequence", type=NumberList(), help="Sequence lengths.  [default: by device]")
@click.option("--micro-batch", type=NumberList(), help="Sequences in a pass.  [default: by device]")
@click.option(
    "--dtype", "dtypes", type=Words(), help="The first is the profile's own.  [default: by device]"
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Of a CPU, for one rank: those of netbench run have one.",
)
@click.option(
    "--time", "budget_s", type=click.FloatRange(min=1), help="Seconds to measure.  [default: 120]"
)
@click.option("--quick", is_flag=True, help=f"Measure for {QUICK_S:g} s, less exactly.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default="device.yaml",
    show_default=True,
    help="Where the profile goes.",
)
def command(
    device: str,
    hidden: Sizes | None,
    sequence: Sizes | None,
    micro_batch: Sizes | None,
    dtypes: tuple[str, ...] | None,
    threads: int,
    budget_s: float | None,
    quick: bool,
    output: Path,
) -> int:
    """Measure a device of this machine and write its profile, for `devices` of a scenario.

    Exit code 3: written, but some times were unstable; end what else runs here, and measure again.
    """
    check_writable(output)
    usual = DEFAULTS[device]
    few = QUICK_VALUES if quick else None
    sizes = (
        hidden or usual.hidden[:few],
        sequence or usual.sequence[:few],
        micro_batch or usual.micro_batch[:few],
    )
    if min(map(min, sizes)) < 1:
        raise UsageError(
            f"a size of a layer is {min(map(min, sizes))}; expected whole numbers above 0"
        )
    points = grid(*sizes, dtypes or usual.dtypes)
    total_s = budget_s or (QUICK_S if quick else BUDGET_S)
    console = wide_console()
    with open_bench(device, threads) as bench:
        where = bench.name or f"{machine_name()}, {threads} of them used"
        console.print(f"[bold]{where}[/bold], torch {bench.versions['torch']}", soft_wrap=True)
        measured = tuple(_measure(console, bench, points, total_s))
        if not measured:
            raise TestbedError("nothing was measured; give a larger --time or smaller sizes")
        optimizer = _updates(bench, points[0].dtype, usual.parameters, total_s * OPTIMIZER_SHARE)
        calibration = _calibrate(bench, where, measured, optimizer)
        output.write_text(profile_yaml(calibration), encoding="utf-8")
        profile = read_device_profile(output.stem, output)
        checked = _check(bench, profile, measured, total_s * CHECK_SHARE)
    calibration = dataclasses.replace(
        calibration, provenance=(*calibration.provenance, checked.text)
    )
    output.write_text(profile_yaml(calibration), encoding="utf-8")
    return _report(console, calibration, optimizer, checked, output)


def _measure(
    console: Console, bench: Bench, points: Sequence[Point], total_s: float
) -> Iterator[LayerTimes]:
    """Every point that there is time for, each with its share of what is left."""
    end_s = time.monotonic() + total_s * (1 - CHECK_SHARE - OPTIMIZER_SHARE)
    for done, point in enumerate(track(console, points, len(points), "layers")):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            console.print(f"[yellow]left out[/yellow] {point.text}: the time is over")
            continue
        answer = bench.ask("layer", left_s / (len(points) - done), **dataclasses.asdict(point))
        if answer["event"] == "skipped":
            console.print(f"[yellow]left out[/yellow] {point.text}: {answer['reason']}")
            continue
        yield LayerTimes(
            point=point,
            passes={name: Time(**answer["times"][name]) for name in PASSES},
            activation_bytes=answer["activation_bytes"],
            peak_bytes=answer["peak_bytes"],
        )


def _updates(bench: Bench, dtype: str, parameters: int, budget_s: float) -> dict[str, Time]:
    """Seconds per parameter, by key of the profile."""
    found = {}
    for key, system in SYSTEMS.items():
        answer = bench.ask(
            "optimizer", budget_s / len(SYSTEMS), system=system, parameters=parameters, dtype=dtype
        )
        if answer["event"] == "skipped":
            raise TestbedError(
                f"the optimizer cannot be measured: {answer['reason']}; give more --time, or memory"
            )
        update = Time(**answer["times"]["update"])
        found[key] = dataclasses.replace(update, median_s=update.median_s / parameters)
    return found


def _calibrate(
    bench: Bench, where: str, measured: tuple[LayerTimes, ...], optimizer: Mapping[str, Time]
) -> Calibration:
    dtypes = dict.fromkeys(times.point.dtype for times in measured)
    found = Calibration(
        device=where,
        measured=measured,
        fits={
            dtype: fit_layer([times for times in measured if times.point.dtype == dtype])
            for dtype in dtypes
        },
        optimizer_s={key: update.median_s for key, update in optimizer.items()},
        memory_bytes=bench.memory_bytes,
        provenance=(),
    )
    versions = ", ".join(f"{name} {version}" for name, version in bench.versions.items())
    errors = ", ".join(f"{dtype} {found.error(dtype):.1%}" for dtype in dtypes)
    updates = ", ".join(f"{key} ({update.spread:.0%})" for key, update in optimizer.items())
    return dataclasses.replace(
        found,
        provenance=(
            f"{where};",
            f"netbench {__version__}, {versions}; {datetime.now():%Y-%m-%d %H:%M};",
            f"{' '.join(['netbench', *sys.argv[1:]])};",
            f"mean absolute residual of the layers: {errors};",
            f"updates (interquartile range): {updates};",
        ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """An iteration of a small GPT that the profile was not fitted on."""

    workload: Workload
    measured: Time
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured.median_s - 1

    @property
    def text(self) -> str:
        """In a line."""
        model = self.workload
        return (
            f"an iteration of {model.layers} layers, hidden {model.hidden}, sequence "
            f"{model.sequence}, {CHECK_MICRO_BATCHES} micro-batches of {model.micro_batch}, "
            f"{model.dtype}, Adam: {self.measured.median_s:.4g} s measured "
            f"({self.measured.spread:.0%} interquartile range), {self.predicted_s:.4g} s predicted "
            f"({self.error:+.1%})"
        )


def _check(
    bench: Bench, profile: DeviceProfile, measured: Sequence[LayerTimes], budget_s: float
) -> Check:
    """Time all of an iteration, its embedding, head and loss included, between the grid's sizes."""
    dtype = measured[0].point.dtype
    sizes = [times.point for times in measured if times.point.dtype == dtype]
    hidden = _between([point.hidden for point in sizes], 64)
    micro_batch = sorted(point.micro_batch for point in sizes)[len(sizes) // 2]
    workload = Workload(
        layers=CHECK_LAYERS,
        hidden=hidden,
        heads=heads_of(hidden),
        sequence=_between([point.sequence for point in sizes], 64),
        batch=CHECK_MICRO_BATCHES * micro_batch,
        micro_batch=micro_batch,
        dtype=dtype,
    )
    plan = _plan(workload, profile)
    # The cost model counts no embeddings unless told of them; the head's are as small here.
    (stage,) = plan.stages
    predicted_s = plan.num_micro_batches * (stage.forward_s + stage.backward_s) + stage.optimizer_s
    compute = "cpu" if bench.name == "" else "cuda"
    text = plan_to_json(dataclasses.replace(plan, compute=compute))
    answer = bench.ask("iterate", budget_s, plan=text)
    if answer["event"] == "skipped":
        raise TestbedError(
            f"the profile cannot be checked: {answer['reason']}; give a larger --time"
        )
    return Check(
        workload=workload, measured=Time(**answer["times"]["iteration"]), predicted_s=predicted_s
    )


def _between(values: Sequence[int], step: int) -> int:
    """A multiple of `step` between the two smallest of several values, else the value itself."""
    low, *rest = sorted(set(values))
    return max(step, (low + rest[0]) // 2 // step * step) if rest else low


def _plan(workload: Workload, profile: DeviceProfile) -> Plan:
    """All of the model on one device."""
    link = Link(one_way_delay_s=0.0, bandwidth_bps=float("inf"))
    return Plan(
        scenario="calibrate",
        variant="megatron-p1",
        system="megatron",
        layout=Layout(),
        scheduler="identity",
        seed=0,
        placement=(0,),
        device_nodes=(0,),
        node_names=("here",),
        network=Network(
            regions=("here",),
            links=((link,),),
            node_regions=(0,),
            sharing="pair",
            nic_bps=(float("inf"),),
        ),
        workload=workload,
        schedule="1f1b",
        data_parallel="ring",
        num_rounds=1,
        num_micro_batches=workload.batch // workload.micro_batch,
        stages=stage_costs(workload, profile, system="megatron", num_stages=1),
        activation_bytes=activation_bytes(workload),
        transport=Transport(),
        iterations=1,
        warmup_iterations=0,
        scale=1.0,
    )


def _report(
    console: Console,
    calibration: Calibration,
    optimizer: Mapping[str, Time],
    checked: Check,
    output: Path,
) -> int:
    """Print what was measured; the exit status."""
    console.print(_table(calibration))
    console.print(f"check: {checked.text}", soft_wrap=True)
    console.print(
        f"profile: {output}; in a scenario beside it: devices: {{{output.stem}: {output.name}}}",
        soft_wrap=True,
    )
    unstable = [
        f"{times.point.text}, {name.replace('_', ' ')}"
        for times in calibration.measured
        for name, seconds in times.passes.items()
        if not seconds.is_stable
    ]
    unstable += [f"update, {key}" for key, update in optimizer.items() if not update.is_stable]
    unstable += [] if checked.measured.is_stable else ["the check"]
    if unstable:
        console.print(f"[bold red]unstable[/bold red]: {'; '.join(unstable)}", soft_wrap=True)
    return EXIT_NOT_TRUSTWORTHY if unstable else 0


def _table(calibration: Calibration) -> Table:
    """Medians with their spread, how far the profile is from them, and the activations that are
    kept. Fits 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("layer", no_wrap=True)
    for name in PASSES:
        head = name.replace("_", "\n")
        table.add_column(f"{head},\nms", justify="right", no_wrap=True)
        table.add_column("fit", justify="right", no_wrap=True)
    table.add_column("kept", justify="right", no_wrap=True)
    for times in calibration.measured:
        fit = calibration.fits[times.point.dtype]
        cells = []
        for name, seconds in times.passes.items():
            style = "" if seconds.is_stable else "[red]"
            cells.append(
                f"{style}{seconds.median_s * 1e3:.3g}\N{NO-BREAK SPACE}±{seconds.spread / 2:.0%}"
            )
            cells.append(f"{fit.residual(times, name):+.0%}")
        table.add_row(
            times.point.text, *cells, f"{times.activation_bytes / 1e6:.3g}\N{NO-BREAK SPACE}MB"
        )
    return table
