"""`netbench net measure`: what network some machines have, as they are."""

from __future__ import annotations

import itertools
from pathlib import Path

import click

from netbench.commands.files import write_text
from netbench.commands.live import wide_console
from netbench.commands.net.target import data_addresses
from netbench.commands.net.verify import observing
from netbench.commands.quantity import TIME
from netbench.errors import UsageError
from netbench.network.measure import Setting, measure_as_is, readings_of
from netbench.report.grid import rich_table
from netbench.report.matrix import measured_csv, measured_grid
from netbench.scenario.matrices import Frame, completed, scenario_yaml
from netbench.testbed.inventory import load_inventory
from netbench.testbed.ssh import Hosts


@click.command("measure")
@click.option(
    "--inventory",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The hosts (YAML).",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a scenario.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write the matrix.")
@click.option(
    "--streams", type=click.IntRange(1, 128), default=8, help="Connections at once.  [default: 8]"
)
@click.option("--each", "each_s", type=TIME, default=2.0, help="Per transfer.  [default: 2s]")
@click.option(
    "--at-once",
    "together",
    is_flag=True,
    help="Pairs without a common host at the same time: not if they share a line.",
)
@click.option("--jitter", is_flag=True, help="Jitter goes into the scenario too.")
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

    Throughput is measured by one connection and by several at once. TCP and UDP port 26262 have to
    be open between the hosts while it lasts.
    """
    machines = load_inventory(inventory)
    names = [host.name for host in machines.hosts]
    if len(names) < 2:
        raise UsageError(f"{inventory}: has one host; there is nothing to measure between")
    console = wide_console()
    pairs = list(itertools.permutations(range(len(names)), 2))
    with Hosts(machines.hosts, machines.known_hosts) as hosts, observing(console) as progress:
        setting = Setting(
            addresses=data_addresses(machines.hosts, hosts),
            run=hosts.run,
            python=[host.python for host in machines.hosts],
            shared_clock=False,
            at_the_same_time=together,
            progress=progress,
        )
        found = measure_as_is(pairs, setting, streams, each_s)
    matrix = readings_of(names, found)
    console.print(rich_table(measured_grid(names, found)), soft_wrap=True)
    for measurement in found:
        if measurement.error:
            src, dst = measurement.sample.flows[0]
            console.print(f"[red]{names[src]} to {names[dst]}[/red]: {measurement.error}")
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
