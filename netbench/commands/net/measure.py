"""`netbench net measure`: measure the network that machines have."""

import itertools
from pathlib import Path

import click
from rich.text import Text

from netbench.commands.net.verify import observing
from netbench.commands.options import FILE, TIME
from netbench.commands.output import check_writable, wide_console, write_text
from netbench.errors import UsageError
from netbench.network.probing.measure import Endpoints, Pace, measure_as_is, readings_of
from netbench.report.tables.grid import rich_table
from netbench.report.tables.matrix import measured_csv, measured_grid
from netbench.scenario.measured.export import Frame, scenario_yaml
from netbench.scenario.measured.matrices import completed
from netbench.testbed.ssh.inventory import load_inventory
from netbench.testbed.ssh.machines import Hosts
from netbench.testbed.ssh.scenario_hosts import data_addresses


@click.command("measure")
@click.option("--inventory", required=True, type=FILE, metavar="FILE", help="The hosts (YAML).")
@click.option("-o", "--output", type=FILE, help="File for a scenario.")
@click.option("--csv", type=FILE, help="File for the matrix.")
@click.option(
    "--streams", type=click.IntRange(1, 128), default=8, help="Number of parallel connections."
)
@click.option("--each", "each_s", type=TIME, default="2s", help="Time per transfer.")
@click.option(
    "--at-once",
    "together",
    is_flag=True,
    help="Measure pairs without a common host at once. Not if they share a line.",
)
@click.option("--jitter", is_flag=True, help="Write jitter into the scenario too.")
def command(
    *,
    inventory: Path,
    output: Path | None,
    csv: Path | None,
    streams: int,
    each_s: float,
    together: bool,
    jitter: bool,
) -> int:
    """Measure delay, jitter, loss and throughput between all hosts, both ways.

    Throughput is measured with one connection and with several at once. TCP and UDP port 26262 must
    be open between the hosts meanwhile.
    """
    check_writable(csv, output)
    machines = load_inventory(inventory)
    machines.one_node_each()
    names = [host.name for host in machines.hosts]
    if len(names) < 2:
        raise UsageError(f"{inventory}: has one host; measuring needs at least two")
    console = wide_console()
    pairs = list(itertools.permutations(range(len(names)), 2))
    with Hosts(machines.hosts, machines.known_hosts) as hosts, observing(console) as progress:
        endpoints = Endpoints(
            addresses=data_addresses(machines.hosts, hosts),
            nodes=hosts.nodes,
            python=[host.python for host in machines.hosts],
            shared_clock=False,
        )
        pace = Pace(concurrent=together)
        found = measure_as_is(pairs, endpoints, streams, each_s, pace=pace, progress=progress)
    matrix = readings_of(names, found)
    console.print(rich_table(measured_grid(names, found)), soft_wrap=True)
    for measurement in found:
        if measurement.error:
            src, dst = measurement.sample.flows[0]
            pair = (f"{names[src]} to {names[dst]}", "red")
            console.print(Text.assemble(pair, f": {measurement.error}"))
    if csv is not None:
        write_text(csv, measured_csv(names, found, matrix), "the matrix")
    if output is not None:
        frame = Frame(
            name=output.stem,
            title=f"{len(names)} machines, as measured",
            jitter=jitter,
            comments=("Made with: netbench net measure",),
        )
        write_text(output, scenario_yaml(completed(matrix), frame), f"{len(names)} regions")
    return 1 if any(measurement.error for measurement in found) else 0
