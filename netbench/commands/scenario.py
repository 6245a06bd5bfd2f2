"""`netbench scenario`: list, show, validate, make up, and describe the form of scenario files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from netbench.commands.files import write_text
from netbench.plan import build_plans
from netbench.scenario import Scenario, list_scenarios, load_scenario
from netbench.scenario.describe import jitter_text, loss_text, rest_lines
from netbench.scenario.model import DeviceProfile, Link, Sweep
from netbench.scenario.schema import MAX_NODES
from netbench.units import (
    counted,
    format_bandwidth,
    format_bytes,
    format_count,
    format_flops,
    format_time,
)
from netbench.workload.models import MODELS

NAME_OR_FILE = click.argument("name_or_file", metavar="NAME|FILE")


@click.group()
def scenario() -> None:
    """List, show and check scenarios."""


@scenario.command("list")
def list_command() -> None:
    """Name every scenario that comes with netbench."""
    table = Table(box=None, pad_edge=False)
    for column in ("name", "title", "nodes", "devices", "regions"):
        table.add_column(column, justify="left" if column in ("name", "title") else "right")
    for name in list_scenarios():
        found = load_scenario(name)
        counts = (len(found.nodes), found.num_devices, len(found.network.regions))
        table.add_row(name, found.title, *map(str, counts))
    _console().print(table)


@scenario.command()
@NAME_OR_FILE
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Write a picture too (PNG, SVG, PDF)."
)
def show(name_or_file: str, plot: Path | None) -> None:
    """Print regions, links, workload and sweep of a scenario."""
    found = load_scenario(name_or_file)
    console = _console()
    console.print(f"[bold]{found.name}[/bold]  {found.title}", highlight=False)
    if found.notes:
        console.print(f"[dim]{found.notes}[/dim]", highlight=False)
    console.print()
    console.print(_region_table(found))
    console.print()
    console.print(_link_table(found))
    console.print(f"[dim]{_link_caption(found)}[/dim]", highlight=False)
    console.print()
    console.print(_settings_table(found))
    if found.sweep.networks:
        console.print()
        console.print(_network_table(found.sweep))
    if plot is not None:
        from netbench.report.region_map import plot_regions  # matplotlib: only when asked for

        plot_regions(found, plot)
        console.print(f"\nwrote {plot}", highlight=False)


@scenario.command()
@click.argument("files", metavar="NAME|FILE...", nargs=-1, required=True)
def validate(files: tuple[str, ...]) -> None:
    """Check scenario files, and that all their plans can be built.

    The first problem is printed with its line.
    """
    for file in files:
        found = load_scenario(file)
        sweep = found.sweep
        plans = build_plans(
            found,
            sweep.variants,
            sweep.layers,
            sweep.batch,
            sweep.seeds,
            1,
            0,
            networks=[network.name for network in sweep.networks],
            micro_batch=sweep.micro_batch,
            models=[model.model for model in sweep.models],
            replicas=sweep.replicas,
        )
        click.echo(
            f"{file}: good (nodes: {len(found.nodes)}, devices: {found.num_devices}, "
            f"regions: {len(found.network.regions)}, plans: {len(plans)})"
        )


@scenario.command()
@click.option("--regions", default=16, show_default=True, type=click.IntRange(1), help="Cities.")
@click.option(
    "--devices", default=1024, show_default=True, type=click.IntRange(1, MAX_NODES), help="In all."
)
@click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(0), help="Decides it all."
)
@click.option("--mixed", is_flag=True, help="V100s, A40s and T4s.  [default: V100s]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here, not to stdout.")
def generate(regions: int, devices: int, seed: int, mixed: bool, output: Path | None) -> None:
    """Make up a scenario: cities of the world, devices in them.

    Delays are by distance, bandwidths by delay, as measured between AWS regions.
    """
    from netbench.scenario.geography import generate_scenario

    words = f"--regions {regions} --devices {devices} --seed {seed}{' --mixed' if mixed else ''}"
    text = generate_scenario(
        num_regions=regions,
        num_devices=devices,
        seed=seed,
        mixed=mixed,
        name=output.stem if output else "random",
        command=f"netbench scenario generate {words}",
    )
    write_text(
        output, text, f"{counted(devices, 'device')} in {counted(regions, 'city', 'cities')}"
    )


@scenario.command()
def schema() -> None:
    """Print the JSON schema of a scenario file, for editors."""
    from netbench.scenario.schema import scenario_json_schema

    click.echo(json.dumps(scenario_json_schema(), indent=2))


def _console() -> Console:
    """As wide as the terminal, or 100 columns when output goes to a file."""
    console = Console()
    return console if console.is_terminal else Console(width=100)


def _region_table(found: Scenario) -> Table:
    """Nodes and devices per region, a row per kind of node."""
    table = Table(box=None, pad_edge=False)
    for column in ("region", "nodes", "devices", "NIC"):
        table.add_column(column, justify="right" if column == "nodes" else "left")
    groups: dict[tuple[str, int, str, float], int] = {}
    for node in found.nodes:
        key = (node.region, node.num_devices, node.device, node.nic_bps)
        groups[key] = groups.get(key, 0) + 1
    for (region, num_devices, device, nic_bps), count in groups.items():
        each = f"{num_devices} x {device}" if num_devices > 1 else device
        table.add_row(region, str(count), each, format_bandwidth(nic_bps))
    return table


def _link_table(found: Scenario) -> Table:
    """Region x region: delay over bandwidth, a row per source."""
    network = found.network
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("from \\ to")
    for region in network.regions:
        table.add_column(region, justify="right", no_wrap=True)
    used = set(network.node_regions)
    for src, region in enumerate(network.regions):
        alone = network.node_regions.count(src) < 2
        cells = [
            "-" if src == dst and alone else _written(network.links[src][dst])
            for dst in range(len(network.regions))
        ]
        table.add_row(region, *cells, style=None if src in used else "dim")
    return table


def _written(link: Link) -> str:
    """Two lines: delay and bandwidth, with jitter and loss where there are any; and one more
    for each thing that it does beside."""
    delay = f"{format_time(link.one_way_delay_s, 4)} {jitter_text(link)}"
    rate = f"{format_bandwidth(link.bandwidth_bps, 4)} {loss_text(link)}"
    return "\n".join((delay.strip(), rate.strip(), *rest_lines(link)))


def _link_caption(found: Scenario) -> str:
    meaning = {
        "pair": "each pair of nodes has its own rate",
        "class": "a node's destinations with equal delay and rate share the rate",
        "nic": "a node's egress shares its NIC",
        "trunk": "all between two regions shares one rate",
    }[found.network.sharing]
    return (
        f"one-way delay, bandwidth; sharing: {found.network.sharing} ({meaning}); "
        f"mtu {found.network.mtu_bytes}"
    )


def _settings_table(found: Scenario) -> Table:
    """Devices, workload and sweep, a line each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for profile in found.devices.values():
        memory = format_bytes(profile.memory_bytes)
        table.add_row("device", f"{profile.name}: {_speeds(profile)}; {memory}")
    sweep = found.sweep
    sizes: tuple[tuple[str, Sequence[object], Sequence[object]], ...] = (
        ("layers", sweep.default_layers, sweep.layers),
        ("batch", sweep.default_batch, sweep.batch),
        ("micro-batch", sweep.default_micro_batch, sweep.micro_batch),
    )
    if found.workload.model:
        models = [model.model for model in sweep.models]
        sizes = (
            ("models", sweep.default_models, models),
            ("replicas", sweep.default_replicas, sweep.replicas),
        )
    table.add_row("workload", _workload_text(found))
    for name, default, whole in (
        *sizes,
        ("systems", sweep.default_variants, sweep.variants),
        ("seeds", sweep.default_seeds, sweep.seeds),
    ):
        if not whole:
            continue
        others = [value for value in whole if value not in default]
        more = f" [dim](--all: also {_joined(others)})[/dim]" if others else ""
        table.add_row(name, f"{_joined(default)}{more}")
    return table


def _speeds(profile: DeviceProfile) -> str:
    """FLOP/s by system, and throughput by model."""
    speeds = [f"{name} {format_flops(flops, 4)}" for name, flops in profile.flops.items()]
    speeds += [f"{name} {MODELS[name].rate(rate)}" for name, rate in profile.throughput.items()]
    return ", ".join(speeds)


def _workload_text(found: Scenario) -> str:
    """What is trained."""
    model = found.workload
    if model.model:
        each = model.batch // found.num_devices
        return f"{model.model}, {model.dtype}, batch {each} per replica"
    return (
        f"hidden {model.hidden}, heads {model.heads}, sequence {model.sequence}, {model.dtype}, "
        f"micro-batch {model.micro_batch}, "
        f"{format_count(model.embedding_parameters)} embedding parameters, "
        f"{'with' if model.recomputation else 'without'} recomputation"
    )


def _network_table(sweep: Sweep) -> Table:
    """Networks that take the place of every link, a row each."""
    table = Table(box=None, pad_edge=False)
    table.add_column("network")
    table.add_column("every link", justify="right")
    table.add_column("")
    for network in sweep.networks:
        used = "" if network.name in sweep.default_networks else "[dim]--all, --networks[/dim]"
        table.add_row(network.name, _written(network.link).replace("\n", ", "), used)
    return table


def _joined(values: object) -> str:
    assert isinstance(values, list | tuple)
    return ", ".join(map(str, values))
