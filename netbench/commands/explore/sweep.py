"""`netbench sweep SCENARIO --vary ...`: simulate a grid of networks and workloads."""

import math
from collections.abc import Sequence
from pathlib import Path

import click

from netbench.api.sweeps import Base, check_grid, simulate_grid
from netbench.api.vary import Variable, parse_vary
from netbench.commands.explore.options import base_options
from netbench.commands.options import FILE, QuantityType, picture_option, prices_option
from netbench.commands.output import (
    check_writable,
    heading,
    print_line,
    print_warning,
    wide_console,
)
from netbench.commands.pool import dask_option, open_pool
from netbench.commands.run.simulation import warn_of_impairments
from netbench.files import write_file
from netbench.progress import track
from netbench.report.pictures.style import save_picture
from netbench.report.tables.cost import MILLION_CAPTION
from netbench.report.tables.grid import csv_text, rich_table
from netbench.report.tables.sweep import (
    TOO_BIG,
    SweepResult,
    check_lines,
    sweep_csv_grid,
    sweep_figure,
    sweep_grids,
)
from netbench.scenario.prices import read_prices
from netbench.units import counted

PROBLEMS_SHOWN = 5
"""Maximum number of reasons for missing points beneath the table; the CSV has all of them."""


@click.command()
@base_options
@click.option(
    "--vary",
    "variables",
    required=True,
    multiple=True,
    type=QuantityType("NAME=VALUES", parse_vary),
    help="Values of bandwidth, delay, batch, micro-batch or layers: a list (1Gbit,5Gbit), "
    "factors (0.5x,2x), or a geometric range with a number of points (0.1x..10x:9).",
)
@click.option("--csv", type=FILE, help="Write every point to a CSV file, unrounded.")
@prices_option
@picture_option
@dask_option
def command(
    base: Base,
    variables: tuple[Variable, ...],
    prices: Path | None,
    csv: Path | None,
    plot: Path | None,
    dask: str | None,
) -> None:
    """Simulate SCENARIO on a grid: every combination of the values of every --vary.

    Rows are the values of the first variable, columns the systems, or with one system the values
    of the last variable. Efficiency is the time of compute alone, divided by the iteration's time.
    """
    check_writable(csv, pictures=[plot])
    check_grid(base, variables)
    if plot is not None:
        _check_picture(base, variables)
    console = wide_console()
    with open_pool(dask) as pool:
        describe = pool.describe if pool is not None else None
        sweep = simulate_grid(
            base,
            variables,
            progress=lambda timings, total: track(
                console, timings, total, "simulated points", describe
            ),
            on_plans=lambda plans: warn_of_impairments(console, plans),
            pool=pool,
            prices=None if prices is None else read_prices(prices),
        )
    console.print(heading(base.scenario))
    print_line(console, sweep.setting)
    for title, grid in sweep_grids(sweep):
        console.print()
        if title:
            console.print(title, style="bold")
        console.print(rich_table(grid))
    console.print()
    num_points = len(sweep.points)
    console.print(
        f"simulated; {counted(num_points, 'point')}. efficiency: time of compute alone / time of "
        "the iteration.",
        style="dim",
    )
    if any(math.isfinite(point.million_usd) for point in sweep.points):
        console.print(MILLION_CAPTION, style="dim")
    for warning in dict.fromkeys(point.memory for point in sweep.points if point.memory):
        print_warning(console, f"{TOO_BIG} memory", warning)
    for problem in _problems(sweep):
        print_line(console, f"- {problem}", style="yellow")
    if csv is not None:
        write_file(csv, csv_text(sweep_csv_grid(sweep)) + "\n")
        print_line(console, f"points: {csv}")
    if plot is not None:
        save_picture(sweep_figure(sweep), plot)
        print_line(console, f"picture: {plot}")


def _check_picture(base: Base, variables: Sequence[Variable]) -> None:
    """Raises UsageError if a picture of the grid would have too many lines."""
    sizes = [len(variable.values) for variable in variables]
    check_lines(math.prod(sizes[1:]) * len(base.systems))


def _problems(sweep: SweepResult) -> list[str]:
    """Reasons why points have no time, each once."""
    found = dict.fromkeys(
        f"{point.system}: {point.problem}" for point in sweep.points if point.problem
    )
    more = len(found) - PROBLEMS_SHOWN
    return [*list(found)[:PROBLEMS_SHOWN], *([f"and {more} more"] if more > 0 else [])]
