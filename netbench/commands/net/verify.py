"""`netbench net verify SCENARIO`: measure link classes or pairs and compare with the scenario."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from netbench.commands.net.hosts import nodes_options, open_endpoints
from netbench.commands.options import FILE, PERCENT
from netbench.commands.output import check_writable, print_line, wide_console
from netbench.errors import EXIT_NOT_TRUSTWORTHY
from netbench.files import write_file
from netbench.network.probing.measure import Pace, measure
from netbench.network.probing.measure import Progress as Observer
from netbench.network.probing.samples import all_pairs, sample_links
from netbench.network.probing.verify import REAL_TIME_TOLERANCE, NetworkVerdict, evaluate
from netbench.progress import open_progress
from netbench.report.pictures.style import save_picture
from netbench.report.tables.grid import rich_table
from netbench.report.tables.matrix import Verification, matrix_figure, matrix_frame, matrix_grid

REASONS_SHOWN = 20

MEASURED_S = 0.5
"""Shortest timed part of a transfer, seconds: machines of a cluster have other work."""


@click.command("verify")
@nodes_options
@click.option("--all", "everything", is_flag=True, help="Measure every ordered pair of nodes.")
@click.option(
    "--streams",
    type=click.IntRange(1, 128),
    default=1,
    help="Number of parallel connections to measure with, besides one.",
)
@click.option(
    "--tolerance",
    type=PERCENT,
    default=f"{REAL_TIME_TOLERANCE:.0%}",
    help="Relative tolerance of every figure.",
)
@click.option("--csv", type=FILE, help="File for every figure, unrounded.")
@click.option("--plot", type=FILE, help="File for heat maps (PNG, SVG, PDF).")
def command(
    *,
    scenario: str,
    inventory: Path | None,
    everything: bool,
    streams: int,
    tolerance: float,
    csv: Path | None,
    plot: Path | None,
) -> int:
    """Measure whether the hosts have the network of SCENARIO.

    Measures delay and throughput of one link per class (between two regions, and inside each), or
    with --all of every ordered pair. Jitter and loss are measured where the scenario has them, or
    with --all. Figures are printed as measured / expected. TCP and UDP port 26262 must be open
    between the hosts meanwhile. Exit code 3: a figure is outside its tolerance.
    """
    check_writable(csv, pictures=[plot])
    console = wide_console()
    with (
        open_endpoints(scenario, inventory) as (wanted, names, endpoints),
        observing(console) as progress,
    ):
        network, shared = wanted.network, endpoints.shared_clock
        samples = (
            all_pairs(network, streams) if everything else sample_links(network, streams=streams)
        )
        # Samples on one machine would compete for it.
        pace = Pace(concurrent=not shared, measured_s=MEASURED_S)
        measured = measure(network, samples, endpoints, pace=pace, progress=progress)
    probe = evaluate(measured, network, tolerance=tolerance, shared_clock=shared)
    found = Verification(
        title=wanted.name,
        checks=probe.checks,
        nodes=names,
        regions=network.regions,
        node_regions=network.node_regions,
    )
    show(console, found, probe)
    if csv is not None:
        write_file(csv, matrix_frame(found).to_csv(index=False))
        print_line(console, f"figures: {csv}")
    if plot is not None:
        save_picture(matrix_figure(found), plot)
        print_line(console, f"picture: {plot}")
    return 0 if probe.trustworthy else EXIT_NOT_TRUSTWORTHY


@contextmanager
def observing(console: Console) -> Iterator[Observer]:
    """Show how many rounds are done; lines go to standard error."""
    with open_progress(console if console.is_terminal else None) as progress:
        yield lambda done, total: progress.advance("measured rounds", done, total)


def show(console: Console, found: Verification, probe: NetworkVerdict) -> None:
    """Print the table, the figures outside their tolerance, and the verdict."""
    if found.checks:
        console.print(rich_table(matrix_grid(found)), soft_wrap=True)
        console.print()
    for reason in probe.reasons[:REASONS_SHOWN]:
        print_line(console, Text.assemble(("outside", "red"), f" {reason}"))
    if len(probe.reasons) > REASONS_SHOWN:
        console.print(f"and {len(probe.reasons) - REASONS_SHOWN} more")
    num_bad = sum(not check.passed for check in found.checks)
    verdict = ("as asked for", "green") if probe.trustworthy else ("not as asked for", "red")
    figures = (
        f": {len(found.checks) - num_bad} of {len(found.checks)} figures within "
        f"{probe.tolerance:.3g} plus random error; delay by {' and '.join(probe.methods) or '-'}"
    )
    console.print(Text.assemble(verdict, figures))
