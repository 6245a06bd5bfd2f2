"""`netbench sweep SCENARIO --vary ...`: simulated times over a grid of networks and workloads."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from netbench.commands.base import Base, base_options
from netbench.commands.files import check_formats, check_writable
from netbench.commands.live import track, wide_console
from netbench.commands.quantity import Quantity
from netbench.commands.simulation import warn_of_disturbances
from netbench.commands.vary import KINDS, NETWORK_VARIABLES, Variable, parse_vary
from netbench.errors import PlanError, RecordError, UsageError
from netbench.plan import Plan
from netbench.plan.what_if import Amount, with_bandwidth, with_delay
from netbench.report.grid import csv_text, rich_table
from netbench.report.sweep import (
    Axis,
    Point,
    Sweep,
    check_lines,
    plot_sweep,
    sweep_csv_grid,
    sweep_grids,
)
from netbench.units import counted
from netbench.workload.costs import pflop_per_iteration

MAX_POINTS = 100_000
"""Of a grid, times systems: a slip of the keyboard should not take a day."""

PROBLEMS_SHOWN = 5
"""Reasons why points have no time, beneath the table; all are in the CSV."""


@click.command()
@base_options
@click.option(
    "--vary",
    "variables",
    required=True,
    multiple=True,
    type=Quantity("NAME=VALUES", parse_vary),
    help="bandwidth, delay, batch, micro-batch or layers: values (1Gbit,5Gbit), factors "
    "(0.5x,2x) or so many in geometric progression (0.1x..10x:9).",
)
@click.option("--csv", type=click.Path(path_type=Path), help="Write every point, unrounded.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write a picture (PNG, SVG, PDF).")
def command(
    base: Base, variables: tuple[Variable, ...], csv: Path | None, plot: Path | None
) -> None:
    """Simulate SCENARIO over a grid: every combination of the values of every --vary.

    Rows are the first variable, columns the systems, or with one system the last variable.
    Efficiency: what the iteration would take if only compute took time, over what it takes.
    """
    check_writable(csv, plot)
    check_formats(plot)
    _check(base, variables, plot)
    console = wide_console()
    sweep = _simulate(console, base, variables)
    console.print(base.heading)
    console.print(sweep.setting, soft_wrap=True)
    for title, grid in sweep_grids(sweep):
        console.print()
        if title:
            console.print(f"[bold]{title}[/bold]")
        console.print(rich_table(grid))
    console.print()
    num_points = len(sweep.points)
    console.print(
        f"simulated; {num_points} point{'' if num_points == 1 else 's'}. efficiency: what compute "
        "alone would take over what the iteration takes.",
        style="dim",
    )
    for problem in _problems(sweep):
        console.print(f"[yellow]-[/yellow] {problem}", soft_wrap=True)
    if csv is not None:
        _write(csv, csv_text(sweep_csv_grid(sweep)) + "\n")
        console.print(f"points: {csv}", soft_wrap=True)
    if plot is not None:
        plot_sweep(sweep, plot)
        console.print(f"picture: {plot}", soft_wrap=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cell:
    """A point before it is simulated. plan: None where there cannot be one, for `problem`."""

    at: tuple[int, ...]
    system: str
    plan: Plan | None
    problem: str


def _check(base: Base, variables: Sequence[Variable], plot: Path | None) -> None:
    """Raises UsageError for a grid that makes no sense, before anything is simulated."""
    names = [variable.name for variable in variables]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--vary {name} is given twice; put all values into one")
    sizes = [len(variable.values) for variable in variables]
    num_points = math.prod(sizes) * len(base.systems)
    if num_points > MAX_POINTS:
        raise UsageError(
            f"the grid has {num_points} points; expected at most {MAX_POINTS}: give fewer values"
        )
    if plot is not None:
        check_lines(math.prod(sizes[1:]) * len(base.systems))


def _simulate(console: Console, base: Base, variables: Sequence[Variable]) -> Sweep:
    from netbench.simulator.explain import bound_s  # numba: only when asked for
    from netbench.simulator.parallel import time_plans

    cells = list(_cells(base, variables))
    plans = [cell.plan for cell in cells if cell.plan is not None]
    if not plans:
        raise PlanError(f"no point of the grid can be planned: {cells[0].problem}")
    warn_of_disturbances(console, [plan.network for plan in plans])
    timings = track(console, time_plans(plans), len(plans), "simulated points")
    points = []
    for cell in cells:
        if cell.plan is None:
            points.append(Point(at=cell.at, system=cell.system, problem=cell.problem))
            continue
        points.append(
            Point(
                at=cell.at,
                system=cell.system,
                iteration_s=next(timings).iteration_s,
                bound_s=bound_s(cell.plan),
                pflop=pflop_per_iteration(cell.plan.workload),
            )
        )
    return Sweep(
        title=base.scenario.title or base.scenario.name,
        setting=base.describe({variable.name: variable.relative for variable in variables}),
        axes=tuple(map(_axis, variables)),
        systems=base.systems,
        points=tuple(points),
    )


def _cells(base: Base, variables: Sequence[Variable]) -> Iterator[_Cell]:
    """The grid, the last variable fastest but for systems."""
    plans: dict[tuple[str, tuple[tuple[str, int], ...]], Plan | PlanError] = {}
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
            plan = plans[system, sizes]
            if isinstance(plan, PlanError):
                yield _Cell(at=at, system=system, plan=None, problem=str(plan))
            else:
                yield _Cell(at=at, system=system, plan=_on(plan, chosen, base.links), problem="")


def _plan(base: Base, system: str, sizes: Mapping[str, int]) -> Plan | PlanError:
    """Some sizes fit no layout: their points stay empty, with the reason."""
    try:
        return base.plan(system, **sizes)
    except PlanError as error:
        return error


def _on(plan: Plan, chosen: Mapping[str, Amount], links: str) -> Plan:
    """The plan on the network of a point."""
    network = plan.network
    if "bandwidth" in chosen:
        network = with_bandwidth(network, chosen["bandwidth"], links)
    if "delay" in chosen:
        network = with_delay(network, chosen["delay"], links)
    return dataclasses.replace(plan, network=network)


def _axis(variable: Variable) -> Axis:
    kind = KINDS[variable.name]
    return Axis(
        title=kind.title,
        key=f"{variable.name}_factor" if variable.relative else kind.key,
        values=variable.values,
        texts=variable.texts,
        geometric=variable.geometric,
    )


def _problems(sweep: Sweep) -> list[str]:
    """Why points have no time, each reason once."""
    found = dict.fromkeys(
        f"{point.system}: {point.problem}" for point in sweep.points if point.problem
    )
    more = len(found) - PROBLEMS_SHOWN
    return [
        *list(found)[:PROBLEMS_SHOWN],
        *([f"and {counted(more, 'reason')} more"] if more > 0 else []),
    ]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path}: cannot be written: {error.strerror}") from error
