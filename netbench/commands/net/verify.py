"""`netbench net verify SCENARIO`: measure every link class, or every pair, against the scenario."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from netbench.commands.files import check_formats, check_writable
from netbench.commands.live import wide_console
from netbench.commands.net.nodes import Nodes, nodes_options, open_nodes
from netbench.commands.quantity import SHARE
from netbench.errors import EXIT_NOT_TRUSTWORTHY
from netbench.network.measure import Progress as Observer
from netbench.network.measure import measure
from netbench.network.verify import REAL_TIME_TOLERANCE, Probe, all_pairs, evaluate, sample_links
from netbench.report.grid import rich_table
from netbench.report.matrix import Verification, matrix_grid, plot_matrix, write_csv
from netbench.scenario.model import Network

REASONS_SHOWN = 20

MEASURED_S = 0.5
"""Shortest time over which a transfer is timed, seconds: machines of a cluster have other work."""


@click.command("verify")
@nodes_options
@click.option("--all", "everything", is_flag=True, help="Every ordered pair of nodes.")
@click.option(
    "--streams", type=click.IntRange(1, 128), default=1, help="Also by so many connections at once."
)
@click.option(
    "--tolerance", type=SHARE, default=REAL_TIME_TOLERANCE, help="Of every figure.  [default: 5%]"
)
@click.option("--csv", type=click.Path(path_type=Path), help="Write every figure, unrounded.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write heat maps (PNG, SVG, PDF).")
def command(
    *,
    scenario: str,
    inventory: Path | None,
    testbed: str | None,
    everything: bool,
    streams: int,
    tolerance: float,
    csv: Path | None,
    plot: Path | None,
) -> int:
    """Measure whether the hosts have the network of SCENARIO.

    Delay and throughput of a link of every class (from one region to another, and inside each), or
    with --all of every ordered pair; jitter and loss where the scenario has them, or with --all.
    Every figure is measured / expected. TCP and UDP port 26262 have to be open between the hosts
    while it lasts. Exit code 3: something is outside.
    """
    check_writable(csv, plot)
    check_formats(plot)
    console = wide_console()
    with open_nodes(scenario, inventory, testbed) as nodes, observing(console) as progress:
        network = nodes.scenario.network
        probe = _measured(nodes, network, everything, streams, tolerance, progress)
    found = Verification(
        title=nodes.scenario.name,
        checks=probe.checks,
        nodes=nodes.names,
        regions=network.regions,
        node_regions=network.node_regions,
    )
    show(console, found, probe)
    if csv is not None:
        write_csv(found, csv)
        console.print(f"figures: {csv}", soft_wrap=True)
    if plot is not None:
        plot_matrix(found, plot)
        console.print(f"picture: {plot}", soft_wrap=True)
    return 0 if probe.trustworthy else EXIT_NOT_TRUSTWORTHY


def _measured(
    nodes: Nodes,
    network: Network,
    everything: bool,
    streams: int,
    tolerance: float,
    progress: Observer,
) -> Probe:
    """Where every host's clock is its own, what is one way cannot be told, only the round trip."""
    samples = all_pairs(network, streams) if everything else sample_links(network, streams=streams)
    measurements = measure(
        network,
        samples,
        nodes.addresses,
        nodes.run,
        python=nodes.pythons,
        shared_clock=nodes.shared_clock,
        at_the_same_time=not nodes.shared_clock,  # they would compete for the one machine
        measured_s=MEASURED_S,
        progress=progress,
    )
    shared = nodes.shared_clock
    return evaluate(measurements, network, tolerance=tolerance, shared_clock=shared)


@contextmanager
def observing(console: Console) -> Iterator[Observer]:
    """Shows rounds that are done: a bar on a terminal, else a line for each tenth of them."""
    if not console.is_terminal:
        yield _tell
        return
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _tell(done: int, total: int) -> None:
    if done and 10 * done // total > 10 * (done - 1) // total:
        click.echo(f"measured {done} of {total} rounds", err=True)


def show(console: Console, found: Verification, probe: Probe) -> None:
    """The table, what is outside, and the verdict."""
    if found.checks:
        console.print(rich_table(matrix_grid(found)), soft_wrap=True)
        console.print()
    for reason in probe.reasons[:REASONS_SHOWN]:
        console.print(f"[red]outside[/red] {reason}", soft_wrap=True)
    if len(probe.reasons) > REASONS_SHOWN:
        console.print(f"and {len(probe.reasons) - REASONS_SHOWN} more")
    num_bad = sum(not check.passed for check in found.checks)
    verdict = "[green]as asked for[/green]" if probe.trustworthy else "[red]not as asked for[/red]"
    console.print(
        f"{verdict}: {len(found.checks) - num_bad} of {len(found.checks)} figures within "
        f"{probe.tolerance:.3g} and what chance adds; delay by {' and '.join(probe.methods) or '-'}"
    )
