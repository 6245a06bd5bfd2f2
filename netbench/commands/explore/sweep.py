"""`netbench sweep SCENARIO --vary ...`: simulate a grid of networks and workloads."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from netbench.commands.explore.base import Base, base_options
from netbench.commands.explore.vary import NETWORK_VARIABLES, Variable, parse_vary
from netbench.commands.options import FILE, QuantityType, picture_option
from netbench.commands.output import (
    check_writable,
    heading,
    print_warning,
    wide_console,
    write_file,
)
from netbench.commands.pool import dask_option, open_pool
from netbench.commands.run.simulation import warn_of_impairments
from netbench.errors import PlanError, UsageError
from netbench.limits import LINK_BYTES, MAX_POINTS, check_memory
from netbench.plan.memory import memory_warnings
from netbench.plan.model import Plan
from netbench.plan.what_if import Amount, with_bandwidth, with_delay
from netbench.pool import Pool
from netbench.progress import track
from netbench.report.pictures.style import save_picture
from netbench.report.tables.grid import csv_text, rich_table
from netbench.report.tables.sweep import (
    TOO_BIG,
    SweepPoint,
    SweepResult,
    check_lines,
    sweep_csv_grid,
    sweep_figure,
    sweep_grids,
)
from netbench.units import counted
from netbench.workload.costs import pflop_per_iteration

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
@picture_option
@dask_option
def command(
    base: Base,
    variables: tuple[Variable, ...],
    csv: Path | None,
    plot: Path | None,
    dask: str | None,
) -> None:
    """Simulate SCENARIO on a grid: every combination of the values of every --vary.

    Rows are the values of the first variable, columns the systems, or with one system the values
    of the last variable. Efficiency is the time of compute alone, divided by the iteration's time.
    """
    check_writable(csv, pictures=[plot])
    _check(base, variables, plot)
    console = wide_console()
    with open_pool(dask) as pool:
        sweep = _simulate(console, base, variables, pool)
    console.print(heading(base.scenario))
    console.print(sweep.setting, soft_wrap=True)
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
    for warning in dict.fromkeys(point.memory for point in sweep.points if point.memory):
        print_warning(console, f"{TOO_BIG} memory", warning)
    for problem in _problems(sweep):
        console.print(f"- {problem}", style="yellow", soft_wrap=True)
    if csv is not None:
        write_file(csv, csv_text(sweep_csv_grid(sweep)) + "\n")
        console.print(f"points: {csv}", soft_wrap=True)
    if plot is not None:
        save_picture(sweep_figure(sweep), plot)
        console.print(f"picture: {plot}", soft_wrap=True)


def _check(base: Base, variables: Sequence[Variable], plot: Path | None) -> None:
    """Raises UsageError for an impossible grid, before anything is simulated."""
    names = [variable.name for variable in variables]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--vary {name} is given twice; put all values into one")
    sizes = [len(variable.values) for variable in variables]
    num_points = math.prod(sizes) * len(base.systems)
    if num_points > MAX_POINTS:
        raise UsageError(
            f"the grid has {num_points} points; expected at most {MAX_POINTS}; give fewer values"
        )
    num_links = len(base.scenario.network.regions) ** 2
    check_memory(LINK_BYTES * num_points * num_links, f"{num_points} networks")
    if plot is not None:
        check_lines(math.prod(sizes[1:]) * len(base.systems))


def _simulate(
    console: Console, base: Base, variables: Sequence[Variable], pool: Pool | None
) -> SweepResult:
    from netbench.explain.breakdown import bound_s  # numba: only when asked for
    from netbench.simulator.parallel import time_plans

    cells = list(_cells(base, variables))
    plans = [plan for _, plan in cells if plan is not None]
    if not plans:
        raise PlanError(f"no point of the grid can be planned: {cells[0][0].problem}")
    warn_of_impairments(console, [plan.network for plan in plans])
    describe = pool.describe if pool is not None else None
    times = time_plans(plans, pool)
    timings = track(console, times, len(plans), "simulated points", describe)
    points = [
        dataclasses.replace(
            point,
            iteration_s=next(timings).iteration_s,
            bound_s=bound_s(plan),
            pflop=pflop_per_iteration(plan.workload),
        )
        if plan is not None
        else point
        for point, plan in cells
    ]
    return SweepResult(
        title=base.scenario.title or base.scenario.name,
        setting=base.describe({variable.name: variable.relative for variable in variables}),
        axes=tuple(variables),
        systems=base.systems,
        points=tuple(points),
    )


def _cells(base: Base, variables: Sequence[Variable]) -> Iterator[tuple[SweepPoint, Plan | None]]:
    """Yield the points of the grid without times, each with its plan, None where there is none.

    Systems vary fastest, then the last variable.
    """
    plans: dict[tuple[str, tuple[tuple[str, int], ...]], tuple[Plan | PlanError, str]] = {}
    for at in itertools.product(*(range(len(variable.values)) for variable in variables)):
        chosen = {
            v.name: Amount(value=v.values[i], relative=v.relative)
            for v, i in zip(variables, at, strict=True)
        }
        sizes = tuple(
            (name.replace("-", "_"), round(amount.value))
            for name, amount in chosen.items()
            if name not in NETWORK_VARIABLES
        )
        for system in base.systems:
            if (system, sizes) not in plans:
                plans[system, sizes] = _plan(base, system, dict(sizes))
            plan, memory = plans[system, sizes]
            if isinstance(plan, PlanError):
                yield SweepPoint(at=at, system=system, problem=str(plan)), None
            else:
                point = SweepPoint(at=at, system=system, memory=memory)
                yield point, _on(plan, chosen, base.links)


def _plan(base: Base, system: str, sizes: Mapping[str, int]) -> tuple[Plan | PlanError, str]:
    """Plan of a point, or the error for sizes that fit no layout, and the warning on memory."""
    try:
        plan = base.plan(system, **sizes)
    except PlanError as error:
        return error, ""
    return plan, "".join(memory_warnings(plan, base.scenario))


def _on(plan: Plan, chosen: Mapping[str, Amount], links: str) -> Plan:
    """Replace the plan's network by that of a point."""
    network = plan.network
    if "bandwidth" in chosen:
        network = with_bandwidth(network, chosen["bandwidth"], links)
    if "delay" in chosen:
        network = with_delay(network, chosen["delay"], links)
    return dataclasses.replace(plan, network=network)


def _problems(sweep: SweepResult) -> list[str]:
    """Reasons why points have no time, each once."""
    found = dict.fromkeys(
        f"{point.system}: {point.problem}" for point in sweep.points if point.problem
    )
    more = len(found) - PROBLEMS_SHOWN
    return [*list(found)[:PROBLEMS_SHOWN], *([f"and {more} more"] if more > 0 else [])]
