"""`netbench scenario`: list, show, validate and generate scenario files; print their schema."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from netbench.commands.options import FILE, picture_option
from netbench.commands.output import plain_table, wide_console, write_text
from netbench.limits import MAX_DEVICES
from netbench.plan.build import Choices, build_plans
from netbench.plan.model import Execution
from netbench.report.pictures.style import save_picture
from netbench.scenario import Scenario, list_scenarios, load_scenario
from netbench.scenario.describe import jitter_text, loss_text, rest_lines
from netbench.scenario.model import DeviceProfile, Link, Sweep
from netbench.scenario.sharing import SHARING
from netbench.units import (
    counted,
    format_bandwidth,
    format_bytes,
    format_count,
    format_flops,
    format_memory_speed,
    format_time,
)
from netbench.workload.models import MODELS

NAME_OR_FILE = click.argument("name_or_file", metavar="NAME|FILE")


@click.group()
def scenario() -> None:
    """List, show and check scenarios."""


@scenario.command("list")
def list_command() -> None:
    """List the scenarios that come with netbench."""
    counts = ("nodes", "devices", "regions")
    table = plain_table("name", "title", *counts, right=counts)
    for name in list_scenarios():
        found = load_scenario(name)
        numbers = (len(found.nodes), found.num_devices, len(found.network.regions))
        table.add_row(name, found.title, *map(str, numbers))
    wide_console().print(table)


@scenario.command()
@NAME_OR_FILE
@picture_option
def show(name_or_file: str, plot: Path | None) -> None:
    """Print regions, links, workload and sweep of a scenario."""
    found = load_scenario(name_or_file)
    console = wide_console()
    console.print(Text.assemble((found.name, "bold"), f"  {found.title}"))
    if found.notes:
        console.print(found.notes, style="dim")
    console.print()
    console.print(_region_table(found))
    console.print()
    console.print(_link_table(found))
    console.print(_link_caption(found), style="dim")
    console.print()
    console.print(_settings_table(found))
    if found.sweep.networks:
        console.print()
        console.print(_network_table(found.sweep))
    if plot is not None:
        from netbench.report.pictures.region_map import (
            region_figure,  # matplotlib: only when asked for
        )

        save_picture(region_figure(found), plot)
        console.print(f"\nwrote {plot}", highlight=False)


@scenario.command()
@click.argument("files", metavar="NAME|FILE...", nargs=-1, required=True)
def validate(files: tuple[str, ...]) -> None:
    """Check scenario files, and that all their plans can be built.

    Prints the first problem with its line.
    """
    for file in files:
        found = load_scenario(file)
        plans = build_plans(found, Choices.of(found.sweep, whole=True), Execution())
        click.echo(
            f"{file}: good (nodes: {len(found.nodes)}, devices: {found.num_devices}, "
            f"regions: {len(found.network.regions)}, plans: {len(plans)})"
        )


@scenario.command()
@click.option("--regions", default=16, type=click.IntRange(1), help="Number of cities.")
@click.option(
    "--devices", default=1024, type=click.IntRange(1, MAX_DEVICES), help="Total number of devices."
)
@click.option("--seed", default=1, type=click.IntRange(0), help="Seed of all random choices.")
@click.option("--mixed", is_flag=True, help="Mix V100s, A40s and T4s.  [default: V100s only]")
@click.option("-o", "--output", type=FILE, help="Write to a file instead of standard output.")
def generate(regions: int, devices: int, seed: int, mixed: bool, output: Path | None) -> None:
    """Generate a scenario with devices in random cities of the world.

    Delays follow from distances, and bandwidths from delays, as measured between AWS regions.
    """
    from netbench.scenario.geography import generate_scenario

    options = f"--regions {regions} --devices {devices} --seed {seed}{' --mixed' if mixed else ''}"
    text = generate_scenario(
        num_regions=regions,
        num_devices=devices,
        seed=seed,
        mixed=mixed,
        name=output.stem if output else "random",
        command=f"netbench scenario generate {options}",
    )
    write_text(
        output, text, f"{counted(devices, 'device')} in {counted(regions, 'city', 'cities')}"
    )


@scenario.command()
def schema() -> None:
    """Print the JSON schema of a scenario file, for editors."""
    from netbench.scenario.schema import scenario_json_schema

    click.echo(json.dumps(scenario_json_schema(), indent=2))


@scenario.command()
@click.option("-o", "--output", type=FILE, help="Write to a file instead of standard output.")
def reference(output: Path | None) -> None:
    """Print the reference page of scenario files, as markdown."""
    from netbench.scenario.reference import reference_page

    write_text(output, reference_page(), "every key of a scenario file")


def _region_table(found: Scenario) -> Table:
    """Nodes and devices per region, with one row per kind of node."""
    table = plain_table("region", "nodes", "devices", "NIC", right=("nodes",))
    groups: dict[tuple[str, int, str, float], int] = {}
    for node in found.nodes:
        key = (node.region, node.num_devices, node.device, node.nic_bps)
        groups[key] = groups.get(key, 0) + 1
    for (region, num_devices, device, nic_bps), count in groups.items():
        each = f"{num_devices} x {device}" if num_devices > 1 else device
        table.add_row(region, str(count), each, format_bandwidth(nic_bps))
    return table


def _link_table(found: Scenario) -> Table:
    """Delay above bandwidth between regions, with one row per source."""
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
    """Describe a link: delay and jitter, bandwidth and loss, other impairments, on a line each."""
    delay = f"{format_time(link.one_way_delay_s, 4)} {jitter_text(link)}"
    rate = f"{format_bandwidth(link.bandwidth_bps, 4)} {loss_text(link)}"
    return "\n".join((delay.strip(), rate.strip(), *rest_lines(link)))


def _link_caption(found: Scenario) -> str:
    sharing, mtu = found.network.sharing, found.network.mtu_bytes
    return f"one-way delay, bandwidth; sharing: {sharing} ({SHARING[sharing].meaning}); mtu {mtu}"


def _settings_table(found: Scenario) -> Table:
    """Devices, workload and sweep, with one row each."""
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
            ("peers", sweep.default_peers, [each.name for each in sweep.peers]),
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
        more = f" (--all: also {_joined(others)})" if others else ""
        table.add_row(name, Text.assemble(_joined(default), (more, "dim")))
    return table


def _speeds(profile: DeviceProfile) -> str:
    """List FLOP/s by system, the speed of memory, and throughput by model."""
    speeds = [f"{name} {format_flops(flops, 4)}" for name, flops in profile.flops.items()]
    for name, rate in profile.memory_speed.items():
        kind = "memory" if name == "default" else f"memory in {name}"
        speeds.append(f"{kind} {format_memory_speed(rate, 4)}")
    for name, rate in profile.throughput.items():
        speeds.append(
            f"{name} {MODELS[name].rate(rate) if name in MODELS else f'{rate:g} samples/s'}"
        )
    return ", ".join(speeds)


def _workload_text(found: Scenario) -> str:
    """Describe the trained model."""
    model = found.workload
    if model.parameters:
        return (
            f"{model.model}, {format_count(model.parameters)} parameters in "
            f"{counted(model.tensors, 'tensor')}, {model.dtype}, batch {model.batch}"
        )
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
    """Networks that replace every link, with one row each."""
    table = plain_table("network", "every link", "", right=("every link",))
    for network in sweep.networks:
        used = "" if network.name in sweep.default_networks else "--all, --networks"
        written = _written(network.link).replace("\n", ", ")
        table.add_row(network.name, written, Text(used, "dim"))
    return table


def _joined(values: object) -> str:
    assert isinstance(values, list | tuple)
    return ", ".join(map(str, values))
