"""`netbench schedule repair`: adapt a placement to lost or added nodes, and say what that costs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from netbench import units
from netbench.api.placement import DEFAULT_SYSTEM, make_request
from netbench.commands.options import aliased_option, batch_option, layers_option
from netbench.commands.output import heading, print_line
from netbench.commands.schedule.place import keep, run_hint, system_text
from netbench.commands.schedule.request import Output, output_options
from netbench.commands.schedule.search import count_text
from netbench.errors import UsageError
from netbench.limits import MAX_DEVICES, MAX_EVALUATIONS
from netbench.plan.maps import NUM_SEEDS
from netbench.report.numbers import seconds_text
from netbench.report.tables.grid import Grid, rich_table
from netbench.scenario import load_scenario
from netbench.units import counted

if TYPE_CHECKING:
    from netbench.placement.file import Placed
    from netbench.placement.recovery import Repair

DIGITS = 3
"""Significant digits of sizes in bytes."""


@click.command()
@click.argument("placement", metavar="PLACEMENT|SCENARIO")
@click.option("--scenario", help="Scenario of PLACEMENT.  [default: the one it names]")
@click.option("--lost", multiple=True, metavar="NODE", help="Lost node; may be repeated.")
@click.option("--added", multiple=True, metavar="NODE", help="New idle node; may be repeated.")
@click.option(
    "--moves",
    default=0,
    type=click.IntRange(0, MAX_DEVICES),
    help="Number of devices that may load another stage without having to.",
)
@click.option(
    "--seed", default=0, type=click.IntRange(0, NUM_SEEDS - 1), help="Seed of the search."
)
@click.option(
    "--evaluations",
    type=click.IntRange(1, MAX_EVALUATIONS),
    help="Number of placements tried per number of moves.  [default: 500]",
)
@aliased_option(
    "--system",
    "--systems",
    metavar="NAME",
    help=f"System of SCENARIO to place.  [default: {DEFAULT_SYSTEM}]",
)
@layers_option
@batch_option
@output_options
def command(
    placement: str,
    scenario: str | None,
    lost: tuple[str, ...],
    added: tuple[str, ...],
    moves: int,
    seed: int,
    evaluations: int | None,
    system: str | None,
    layers: int | None,
    batch: int | None,
    output: Output,
) -> None:
    """Adapt a placement to lost or added nodes.

    Give PLACEMENT, a file written by netbench schedule -o, or SCENARIO, whose nodes are then used
    in the order in which it lists them. The result has the shortest simulated iteration without
    the lost nodes, while few devices load the parameters of another stage.

    Idle devices replace lost ones. If there are too few, one pipeline is dropped and the batch
    becomes the largest that the others divide. If added devices suffice, one pipeline is added.
    """
    from netbench.placement.recovery import devices_of, repair
    from netbench.placement.search.repair import EVALUATIONS

    before = _before(placement, scenario, system, layers, batch)
    found = repair(
        before.request,
        before.grid,
        before.stage_layers,
        lost=devices_of(before.request.scenario, lost),
        added=devices_of(before.request.scenario, added),
        moves=moves,
        seed=seed,
        evaluations=evaluations or EVALUATIONS,
    )
    console = output.console()
    if output.as_json:
        click.echo(json.dumps(_json(found), indent=2))
    else:
        _print(console, before, found, lost, added, moves)
    keep(console, _after(before, found, moves, seed), output.file, output.picture)
    if output.file is not None and not output.as_json:
        print_line(console, run_hint(before.request.scenario, output.file))


def _before(
    placement: str, scenario: str | None, system: str | None, layers: int | None, batch: int | None
) -> Placed:
    """Return the placement to repair: from a file, or in the order a scenario lists its nodes."""
    from netbench.placement.file import read_placed, read_scenario
    from netbench.scenario import load_scenario

    if _is_file(placement):
        _refuse(f"{placement} already says it", system=system, layers=layers, batch=batch)
        path = Path(placement)
        return read_placed(path, load_scenario(scenario) if scenario else read_scenario(path))
    _refuse(f"the scenario is {placement}", scenario=scenario)
    return _listed(placement, system or DEFAULT_SYSTEM, layers, batch)


def _is_file(placement: str) -> bool:
    """Tell a file with a placement from a scenario."""
    from netbench.scenario.load import SUFFIXES, list_scenarios

    path = Path(placement)
    if path.suffix in SUFFIXES or placement in list_scenarios():
        return False
    return path.suffix == ".json" or path.is_file()


def _refuse(why: str, **options: object) -> None:
    """Raises UsageError for an option that would have no effect."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name} is given, but {why}; leave it out")


def _listed(scenario: str, system: str, layers: int | None, batch: int | None) -> Placed:
    """Placement of a system with rank r on device r."""
    from netbench.placement.file import Placed
    from netbench.placement.plan_problem import grid_of

    request = make_request(load_scenario(scenario), system, layers=layers, batch=batch)
    plan = request.listed()
    return Placed(
        request=request,
        scheduler="identity",
        seed=0,
        grid=grid_of(plan),
        stage_layers=tuple(stage.num_layers for stage in plan.stages),
        budget="",
        num_evaluated=1,
        search_s=0.0,
        simulated_s=float("nan"),
    )


def _after(before: Placed, found: Repair, moves: int, seed: int) -> Placed:
    return dataclasses.replace(
        before,
        request=found.request,
        scheduler="repair",
        seed=seed,
        grid=found.repaired.grid,
        budget=counted(moves, "move"),
        num_evaluated=found.repaired.num_evaluated,
        search_s=0.0,
        simulated_s=found.after_s,
        bound_s=None,
        num_layouts=None,
    )


def _print(
    console: Console,
    before: Placed,
    found: Repair,
    lost: tuple[str, ...],
    added: tuple[str, ...],
    moves: int,
) -> None:
    console.print(heading(before.request.scenario))
    print_line(console, system_text(before.plan()))
    changes = [f"lost: {', '.join(lost)}"] if lost else []
    changes += [f"added: {', '.join(added)}"] if added else []
    print_line(console, "; ".join(changes))
    console.print()
    console.print(rich_table(repair_grid(before, found)))
    console.print()
    _print_loads(console, found)
    repaired = found.repaired
    how = "exact: all placements were tried" if repaired.exact else "a local search"
    print_line(
        console,
        f"moves: {repaired.num_necessary} necessary, {moves} more allowed; {how}, "
        f"{count_text(repaired.num_evaluated)}",
    )


def repair_grid(before: Placed, found: Repair) -> Grid:
    """Compare pipelines, batch, seconds and sequences per second before and after."""
    old, new = before.plan(), found.plan
    num_lost = len(new.device_nodes) - new.layout.num_ranks - len(found.idle)
    rows = (
        ("pipelines", str(old.layout.dp), str(new.layout.dp)),
        ("batch, sequences", str(old.workload.batch), str(new.workload.batch)),
        ("iteration, simulated s", seconds_text(found.before_s), seconds_text(found.after_s)),
        (
            "sequences per s",
            f"{old.workload.batch / found.before_s:.2f}",
            f"{new.workload.batch / found.after_s:.2f}",
        ),
        ("devices lost", "", str(num_lost)),
        ("devices idle", str(len(old.device_nodes) - old.layout.num_ranks), str(len(found.idle))),
    )
    return Grid(head=("", "before", "after"), rows=rows)


def _print_loads(console: Console, found: Repair) -> None:
    from netbench.placement.file import device_names

    if not found.loads:
        console.print("nothing to load")
        return
    names = device_names(found.request.scenario)
    who = "1 device loads" if len(found.loads) == 1 else f"{len(found.loads)} devices load"
    print_line(
        console,
        f"{who} {units.format_bytes(found.load_bytes, DIGITS)} in {seconds_text(found.load_s)} s, "
        "simulated, all at once while training is paused:",
    )
    for load in found.loads:
        tensor, stage = load.slot
        part = f", tensor index {tensor}" if found.plan.layout.tp > 1 else ""
        print_line(
            console,
            f"  {names[load.device]} from {names[load.source]}: stage {stage}{part}, "
            f"{units.format_bytes(load.size_bytes, DIGITS)}",
        )


def _json(found: Repair) -> dict[str, Any]:
    from netbench.placement.file import device_names

    names = device_names(found.request.scenario)
    return {
        "before_s": found.before_s,
        "after_s": found.after_s,
        "batch": found.plan.workload.batch,
        "pipelines": found.plan.layout.dp,
        "num_necessary": found.repaired.num_necessary,
        "exact": found.repaired.exact,
        "num_evaluated": found.repaired.num_evaluated,
        "load_bytes": found.load_bytes,
        "load_s": found.load_s,
        "loads": [
            {
                "device": names[load.device],
                "source": names[load.source],
                "tensor_index": load.slot[0],
                "stage": load.slot[1],
                "size_bytes": load.size_bytes,
            }
            for load in found.loads
        ],
        "idle": [names[device] for device in found.idle],
        "grid": [[names[device] for device in lane] for lane in found.repaired.grid.tolist()],
    }
