"""`netbench calibrate`: measure a device, of this machine or of hosts, and write its profile."""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from netbench.commands.options import FILE, NUMBERS, QuantityType, split_names
from netbench.commands.output import check_writable, print_line, wide_console
from netbench.errors import EXIT_NOT_TRUSTWORTHY, TestbedError, UsageError
from netbench.files import write_file
from netbench.limits import MAX_HIDDEN
from netbench.plan.model import Layout, Plan, emulated_transport
from netbench.plan.serial import plan_to_json
from netbench.progress import track
from netbench.report.numbers import percent_text
from netbench.scenario.devices import read_device_profile
from netbench.scenario.model import DeviceProfile, Link, Network, Workload
from netbench.testbed.runs.calibration import DeviceProcess, open_bench
from netbench.units import counted
from netbench.version import __version__
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

LEFT_OUT = ("left out", "yellow")
"""First words of a line on a size that was not measured."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """Sizes measured by default. parameters: number of parameters of the optimizer update."""

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
"""Time for all measurements, without the start of the process, seconds."""

QUICK_VALUES = 2
"""Number of default values per size that --quick measures."""

CHECK_FRACTION, OPTIMIZER_FRACTION = 0.2, 0.1
"""Fractions of the time for the check of the profile and for the optimizer updates."""

CHECK_LAYERS, CHECK_MICRO_BATCHES = 4, 4
"""Size of the GPT that checks the profile."""

OPTIMIZERS = {"dtfm": "sgd", "default": "adam"}
"""Key of the optimizer time in a profile -> the optimizer (`System.optimizer`)."""


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Parse comma-separated data types."""
    dtypes = split_names(text)
    for dtype in dtypes:
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"{dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
    return dtypes


def parse_seconds(text: str) -> float:
    """Parse a number of seconds, from 1 to a day's."""
    seconds = float(text)
    if not 1 <= seconds <= 86_400:
        raise ValueError(f"{text!r} is not a number of seconds from 1 to 86400")
    return seconds


@click.command()
@click.option(
    "--device",
    type=click.Choice(list(DEFAULTS)),
    default="cpu",
    help="Device to measure: CPU cores or a GPU.",
)
@click.option("--hidden", type=NUMBERS, help="Hidden sizes to measure.  [default: by device]")
@click.option("--sequence", type=NUMBERS, help="Sequence lengths to measure.  [default: by device]")
@click.option(
    "--micro-batch", type=NUMBERS, help="Micro-batch sizes to measure.  [default: by device]"
)
@click.option(
    "--dtype",
    "dtypes",
    type=QuantityType("DTYPE,...", parse_dtypes),
    help="Data types to measure; the first is the profile's default.  [default: by device]",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=1,
    help="Number of CPU threads per rank; netbench run uses 1.",
)
@click.option(
    "--time",
    "budget_s",
    type=QuantityType("SECONDS", parse_seconds),
    help="Time limit of the measurement, seconds.  [default: 120]",
)
@click.option("--quick", is_flag=True, help=f"Measure for {QUICK_S:g} s only, less precisely.")
@click.option(
    "--inventory",
    type=FILE,
    metavar="FILE",
    help="Measure the hosts of this inventory (YAML), one after the other, over SSH.",
)
@click.option("--host", metavar="NAME,...", help="Hosts of --inventory to measure.  [default: all]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default="device.yaml",
    help="File to write the profile to. Of several hosts, each name is added: device-gpu-1.yaml.",
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
    inventory: Path | None,
    host: str | None,
    output: Path,
) -> int:
    """Measure a device and write its profile, for `devices` of a scenario.

    The device is of this machine, or of every host of an inventory.

    Exit code 3: the profile was written, but some times were unstable; stop other programs and
    measure again.
    """
    benches = _benches(device, threads, inventory, split_names(host), output)
    check_writable(*benches)
    usual = DEFAULTS[device]
    few = QUICK_VALUES if quick else None
    sizes = (
        hidden or usual.hidden[:few],
        sequence or usual.sequence[:few],
        micro_batch or usual.micro_batch[:few],
    )
    if min(map(min, sizes)) < 1 or max(map(max, sizes)) > MAX_HIDDEN:
        raise UsageError(f"layer sizes are {sizes}; expected whole numbers from 1 to {MAX_HIDDEN}")
    points = grid(*sizes, dtypes or usual.dtypes)
    total_s = budget_s or (QUICK_S if quick else BUDGET_S)
    console = wide_console()

    def measure(path: Path, named: Bench) -> int:
        with named.open() as bench:
            machine = f"{bench.machine}, {counted(threads, 'core')} used"
            where = ": ".join(filter(None, [named.host, bench.name or machine]))
            heading = Text.assemble((where, "bold"), f", torch {bench.versions['torch']}")
            print_line(console, heading)
            measured = tuple(_measure(console, bench, points, total_s))
            if not measured:
                raise TestbedError("nothing was measured; give a longer --time or smaller sizes")
            dtype, optimizer_s = points[0].dtype, total_s * OPTIMIZER_FRACTION
            optimizer = _updates(bench, dtype, usual.parameters, optimizer_s)
            calibration = _calibrate(bench, where, measured, optimizer)
            write_file(path, profile_yaml(calibration))
            profile = read_device_profile(path.stem, path)
            checked = _check(bench, profile, measured, total_s * CHECK_FRACTION)
        calibration = dataclasses.replace(
            calibration, provenance=(*calibration.provenance, checked.text)
        )
        write_file(path, profile_yaml(calibration))
        return _report(console, calibration, optimizer, checked, path)

    return max([measure(path, bench) for path, bench in benches.items()])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """A device to measure. host: "" = this machine."""

    open: Callable[[], AbstractContextManager[DeviceProcess]]
    host: str = ""


def _benches(
    device: str, threads: int, inventory: Path | None, names: Sequence[str], output: Path
) -> dict[Path, Bench]:
    """Return what to measure, by the file of its profile. Raises UsageError for unknown hosts."""
    if inventory is None:
        if names:
            raise UsageError("--host names hosts of an inventory; add --inventory")
        return {output: Bench(open=lambda: open_bench(device, threads))}
    # paramiko takes a quarter of a second, which this machine's devices do without.
    from netbench.testbed.cluster.bench import open_host_bench
    from netbench.testbed.ssh.inventory import load_inventory

    loaded = load_inventory(inventory)
    hosts = {host.name: host for host in loaded.hosts}
    if unknown := [name for name in names if name not in hosts]:
        raise UsageError(
            f"{inventory}: has no host {', '.join(unknown)}; it has {', '.join(hosts)}"
        )
    chosen = names or tuple(hosts)
    paths = [output.with_stem(f"{output.stem}-{name}") for name in chosen]
    return {
        path: Bench(host=name, open=partial(open_host_bench, loaded, hosts[name], device, threads))
        for name, path in zip(chosen, paths if len(chosen) > 1 else [output], strict=True)
    }


def _measure(
    console: Console, bench: DeviceProcess, points: Sequence[Point], total_s: float
) -> Iterator[LayerTimes]:
    """Measure the points, each for its fraction of the time left; skip points when it is over."""
    end_s = time.monotonic() + total_s * (1 - CHECK_FRACTION - OPTIMIZER_FRACTION)
    for done, point in enumerate(track(console, points, len(points), "layers")):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            console.print(Text.assemble(LEFT_OUT, f" {point.text}: no time left"))
            continue
        answer = bench.ask("layer", left_s / (len(points) - done), **dataclasses.asdict(point))
        if answer["event"] == "skipped":
            console.print(Text.assemble(LEFT_OUT, f" {point.text}: {answer['reason']}"))
            continue
        yield LayerTimes(
            point=point,
            passes={name: Time(**answer["times"][name]) for name in PASSES},
            activation_bytes=answer["activation_bytes"],
            peak_bytes=answer["peak_bytes"],
        )


def _updates(bench: DeviceProcess, dtype: str, parameters: int, budget_s: float) -> dict[str, Time]:
    """Measure optimizer updates: seconds per parameter by key of the profile."""
    found = {}
    for key, optimizer in OPTIMIZERS.items():
        answer = bench.ask(
            "optimizer",
            budget_s / len(OPTIMIZERS),
            optimizer=optimizer,
            parameters=parameters,
            dtype=dtype,
        )
        if answer["event"] == "skipped":
            raise TestbedError(
                f"the optimizer cannot be measured: {answer['reason']}; give a longer --time, "
                "or free memory"
            )
        update = Time(**answer["times"]["update"])
        found[key] = dataclasses.replace(update, median_s=update.median_s / parameters)
    return found


def _calibrate(
    bench: DeviceProcess,
    where: str,
    measured: tuple[LayerTimes, ...],
    optimizer: Mapping[str, Time],
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
class ProfileCheck:
    """Measured and predicted iteration of a small GPT that the profile was not fitted on."""

    workload: Workload
    measured: Time
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured.median_s - 1

    @property
    def text(self) -> str:
        """Describe the check in one line."""
        model = self.workload
        return (
            f"an iteration of {model.layers} layers, hidden {model.hidden}, sequence "
            f"{model.sequence}, {CHECK_MICRO_BATCHES} micro-batches of {model.micro_batch}, "
            f"{model.dtype}, Adam: {self.measured.median_s:.4g} s measured "
            f"({self.measured.spread:.0%} interquartile range), {self.predicted_s:.4g} s predicted "
            f"({percent_text(self.error)})"
        )


def _check(
    bench: DeviceProcess, profile: DeviceProfile, measured: Sequence[LayerTimes], budget_s: float
) -> ProfileCheck:
    """Time a whole iteration, with embedding, head and loss, at sizes between the grid's."""
    dtype = measured[0].point.dtype
    sizes = [times.point for times in measured if times.point.dtype == dtype]
    # Large sizes on a GPU: a small iteration is one of its host, which launches the kernels.
    is_gpu = bench.name != ""
    hidden = _between([point.hidden for point in sizes], 64, largest=is_gpu)
    micro_batch = sorted(point.micro_batch for point in sizes)[len(sizes) // 2]
    workload = Workload(
        layers=CHECK_LAYERS,
        hidden=hidden,
        heads=heads_of(hidden),
        sequence=_between([point.sequence for point in sizes], 64, largest=is_gpu),
        batch=CHECK_MICRO_BATCHES * micro_batch,
        micro_batch=micro_batch,
        dtype=dtype,
    )
    plan = _plan(workload, profile)
    # The cost model counts no embeddings by default; those of this head are small.
    (stage,) = plan.stages
    predicted_s = plan.num_micro_batches * (stage.forward_s + stage.backward_s) + stage.optimizer_s
    text = plan_to_json(dataclasses.replace(plan, compute="cuda" if is_gpu else "cpu"))
    answer = bench.ask("iterate", budget_s, plan=text)
    if answer["event"] == "skipped":
        raise TestbedError(
            f"the profile cannot be checked: {answer['reason']}; give a longer --time"
        )
    return ProfileCheck(
        workload=workload, measured=Time(**answer["times"]["iteration"]), predicted_s=predicted_s
    )


def _between(values: Sequence[int], step: int, *, largest: bool) -> int:
    """Multiple of `step` between the two smallest or largest values, or the only value."""
    ordered = sorted(set(values), reverse=largest)
    if len(ordered) == 1:
        return ordered[0]
    return max(step, sum(ordered[:2]) // 2 // step * step)


def _plan(workload: Workload, profile: DeviceProfile) -> Plan:
    """Plan with the whole model on one device."""
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
        transport=emulated_transport(),
        iterations=1,
        warmup_iterations=0,
        scale=1.0,
    )


def _report(
    console: Console,
    calibration: Calibration,
    optimizer: Mapping[str, Time],
    checked: ProfileCheck,
    output: Path,
) -> int:
    """Print the measurements; return the exit code."""
    console.print(_table(calibration))
    print_line(console, f"check: {checked.text}")
    print_line(
        console,
        f"profile: {output}; in a scenario beside it: devices: {{{output.stem}: {output.name}}}",
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
        alarm = Text.assemble(("unstable", "bold red"), f": {'; '.join(unstable)}")
        print_line(console, alarm)
    return EXIT_NOT_TRUSTWORTHY if unstable else 0


def _table(calibration: Calibration) -> Table:
    """Table of medians ± half their interquartile range, the profile's residuals and activations.

    It fits into 80 columns.
    """
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
            spread = f"±{seconds.spread / 2:.0%}"
            time = f"{seconds.median_s * 1e3:.3g}\N{NO-BREAK SPACE}{spread}"
            cells.append(Text(time, "" if seconds.is_stable else "red"))
            cells.append(Text(percent_text(fit.residual(times, name))))
        table.add_row(
            times.point.text, *cells, f"{times.activation_bytes / 1e6:.3g}\N{NO-BREAK SPACE}MB"
        )
    return table
