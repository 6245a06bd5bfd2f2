"""`netbench schedule SCENARIO`: search a placement and save it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from netbench.api.placement import (
    DEFAULT_SCHEDULER,
    Limits,
    find_scheduler,
    search,
    simulated_s,
    warm_up,
)
from netbench.commands.options import FIRST, aliased_option
from netbench.commands.output import heading, print_line
from netbench.commands.run.simulation import warn_of_impairments
from netbench.commands.schedule.interruption import interruptible
from netbench.commands.schedule.layout import find_layout
from netbench.commands.schedule.request import (
    SCHEDULER_NAMES,
    Costs,
    Output,
    cost_options,
    limit_options,
    output_options,
    request_options,
)
from netbench.commands.schedule.search import count_text, watching, with_bounds
from netbench.errors import EXIT_INTERRUPTED, RecordError, UsageError
from netbench.files import write_file
from netbench.plan.maps import NUM_SEEDS
from netbench.plan.memory import memory_warnings
from netbench.plan.model import Plan
from netbench.report.numbers import seconds_text
from netbench.report.pictures.style import save_picture
from netbench.report.tables.grid import rich_table
from netbench.report.tables.schedule import LISTED, placed_grid
from netbench.units import counted

if TYPE_CHECKING:
    from netbench.placement.file import Placed
    from netbench.placement.plan_problem import Request
    from netbench.placement.problem import Improvement
    from netbench.scenario import Scenario

DEFAULT_OUTPUT = "placement.json"


@click.command()
@request_options
@click.option(
    "--layout", help="Layout to search as well: auto, or fixed degrees, e.g. p8 or p4t2d8."
)
@aliased_option(
    "--scheduler",
    "--schedulers",
    default=DEFAULT_SCHEDULER,
    help=f"Search algorithm: {SCHEDULER_NAMES}.",
)
@aliased_option(
    "--seed", "--seeds", type=click.IntRange(0, NUM_SEEDS - 1), help=f"Seed of the search.  {FIRST}"
)
@cost_options
@limit_options
@output_options
def command(
    request: Request,
    layout: str | None,
    scheduler: str,
    seed: int | None,
    costs: Costs,
    limits: Limits,
    output: Output,
) -> int:
    """Search the placement of SCENARIO's ranks with the shortest simulated iteration.

    The result includes a lower bound: no placement with the same layers per stage is faster.
    Ctrl-C ends the search and reports the best placement so far.
    """
    find_scheduler(scheduler)  # before anything is printed
    if costs.minimised and layout is None:
        raise UsageError(
            "all ranks of a layout use the same machines, so the fastest placement is the cheapest "
            "but for egress; add --layout auto, which also searches how many machines to use"
        )
    console, as_json = output.console(), output.as_json
    if seed is None:
        seed = request.scenario.sweep.default_seeds[0]
    with interruptible() as interrupted:
        limits = dataclasses.replace(limits, interrupted=interrupted)
        if layout is not None:
            placed = find_layout(
                console, request, layout, scheduler, seed, limits, costs=costs, as_json=as_json
            )
        else:
            placed = _find(console, request, scheduler, seed, limits, as_json)
    keep(console, placed, output.file, output.picture)
    if not as_json:
        before = "" if output.file else f"save it with -o {DEFAULT_OUTPUT}; "
        file = output.file or Path(DEFAULT_OUTPUT)
        print_line(console, before + run_hint(request.scenario, file))
        if layout is None:
            print_line(console, "search other systems and layouts too with --layout auto")
    return EXIT_INTERRUPTED if interrupted() else 0


def run_hint(scenario: Scenario, file: Path) -> str:
    """Say how to run the placement in `file`."""
    from netbench.scenario.load import scenario_argument

    return f"run it with: netbench run {scenario_argument(scenario)} --placement {file}"


def _find(
    console: Console, request: Request, scheduler: str, seed: int, limits: Limits, as_json: bool
) -> Placed:
    """Search a placement of the request's plan, and print it."""
    warn_of_impairments(console, [request.listed()])
    if not as_json:
        print_heading(console, request)
    with console.status("compiling the scheduler (once per installation)"):
        warm_up(scheduler)
    with watching(console, scheduler, limits) as on_step:
        placed, answer = search(request, scheduler, seed, limits, on_step)
    if not limits.interrupted():
        (placed,) = with_bounds(console, [placed], interrupted=limits.interrupted)
    if as_json:
        click.echo(json.dumps(_json(placed, answer.improvements), indent=2))
    else:
        _print(console, placed, answer.improvements)
    return placed


def print_heading(console: Console, request: Request) -> None:
    """Print the scenario and the plan to place."""
    scenario, plan = request.scenario, request.listed()
    console.print(heading(scenario))
    print_line(console, f"{system_text(plan)}; {counted(scenario.num_devices, 'device')}")


def system_text(plan: Plan) -> str:
    """Describe a plan, e.g. `dtfm gpipe L24 B1024, 8 pipelines of 8 stages`."""
    layout, workload = plan.layout, plan.workload
    tensor = f" of {layout.tp} ranks each" if layout.tp > 1 else ""
    words = [f"{counted(layout.dp, 'pipeline')} of {counted(layout.pp, 'stage')}{tensor}"]
    if layout.pp == 1:
        words = [
            counted(layout.dp, "data-parallel rank")
            if layout.tp == 1
            else f"{counted(layout.dp, 'replica')}{tensor}"
        ]
    words += [f"network {plan.network_name}"] if plan.network_name else []
    schedule = f" {plan.schedule}" if plan.has_pipelines else ""
    return f"{plan.system}{schedule} {workload.name} B{workload.batch}, {', '.join(words)}"


def keep(console: Console, placed: Placed, output: Path | None, plot: Path | None) -> None:
    """Write the placement to `output` and its map to `plot`, where given."""
    if output is not None:
        from netbench.placement.file import placed_text

        write_file(output, placed_text(placed), RecordError)
        print_line(console, f"placement: {output}")
    if plot is not None:
        from netbench.report.pictures.placement_map import placement_figure

        note = f"{placed.scheduler}, {seconds_text(placed.simulated_s)} s per iteration, simulated"
        save_picture(placement_figure(placed.plan(), placed.grid, note=note), plot)
        print_line(console, f"picture: {plot}")


def _print(console: Console, placed: Placed, steps: tuple[Improvement, ...]) -> None:
    request, layers = placed.request, placed.stage_layers
    console.print()
    listed = tuple(stage.num_layers for stage in request.listed().stages)
    grid = placed_grid(
        placed.scheduler,
        placed.simulated_s,
        simulated_s(request),
        placed.bound_s,
        same_layers=layers == listed,
    )
    console.print(rich_table(grid))
    console.print()
    for warning in memory_warnings(request.listed(), request.scenario):
        print_line(console, f"{LISTED} does not fit: {warning}")
    if len(set(layers)) > 1:
        print_line(console, f"layers per stage: {' '.join(map(str, layers))}")
    last = f"; best found after {steps[-1].elapsed_s:.1f} s" if steps else ""
    print_line(
        console,
        f"searched for {placed.search_s:.1f} s, {count_text(placed.num_evaluated)}{last} "
        f"({placed.scheduler}, seed {placed.seed}, budget {placed.budget})",
    )


def _json(placed: Placed, steps: tuple[Improvement, ...]) -> dict[str, Any]:
    """The file's content, the listed placement's time, and the steps of the search."""
    from netbench.placement.file import placed_text

    found: dict[str, Any] = json.loads(placed_text(placed))
    return {
        **found,
        "identity_s": simulated_s(placed.request),
        "gap": placed.gap,
        "steps": [
            {"elapsed_s": step.elapsed_s, "num_evaluated": step.num_evaluated, "value": step.value}
            for step in steps
        ],
    }
