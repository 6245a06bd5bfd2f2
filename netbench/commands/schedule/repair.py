"""`netbench schedule repair`: how to go on after nodes were lost, or came, and what that costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from netbench import units
from netbench.commands.live import heading
from netbench.commands.schedule.place import keep, run_hint, system_text
from netbench.commands.schedule.request import (
    DEFAULT_SYSTEM,
    Output,
    make_request,
    output_options,
)
from netbench.commands.schedule.search import count_text
from netbench.errors import UsageError
from netbench.placement import NUM_SEEDS
from netbench.report.grid import Grid, rich_table
from netbench.report.tables import seconds_text
from netbench.units import counted

if TYPE_CHECKING:
    from netbench.simulator.mending import Repair
    from netbench.simulator.placement_file import Placed

DIGITS = 3
"""Significant, of sizes in bytes."""


@click.command()
@click.argument("placement", metavar="PLACEMENT|SCENARIO")
@click.option("--scenario", help="Of PLACEMENT.  [default: the one it names]")
@click.option("--lost", multiple=True, metavar="NODE", help="Gone; once for each node.")
@click.option("--added", multiple=True, metavar="NODE", help="New, idle so far; once for each.")
@click.option(
    "--moves",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Devices that may load another stage, beyond those that must.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0, NUM_SEEDS - 1),
    help="Of the search.",
)
@click.option(
    "--evaluations",
    type=click.IntRange(min=1),
    help="Placements tried for each number of moves.  [default: 500]",
)
@click.option("--system", help=f"Of SCENARIO.  [default: {DEFAULT_SYSTEM}]")
@click.option("--layers", type=int, help="Of SCENARIO.  [default: the scenario's first]")
@click.option("--batch", type=int, help="Of SCENARIO.  [default: the scenario's first]")
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
    """Mend PLACEMENT, a file of netbench schedule -o, or the placement of a system as SCENARIO
    lists its nodes: the shortest simulated iteration without the nodes that are lost, while few
    devices load the parameters of another stage.

    Idle devices fill gaps. Where they do not suffice there is a pipeline less, and the batch is the
    largest that the others divide; where added ones suffice, a pipeline more.
    """
    from netbench.placement.repair import EVALUATIONS
    from netbench.simulator.mending import devices_of, repair

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
        console.print(run_hint(before.request.scenario, output.file), soft_wrap=True)


def _before(
    placement: str, scenario: str | None, system: str | None, layers: int | None, batch: int | None
) -> Placed:
    """What is to be mended: a file, or a system as a scenario lists its nodes."""
    if _is_file(placement):
        _refuse(f"{placement} says it", system=system, layers=layers, batch=batch)
        return _read(Path(placement), scenario)
    _refuse(f"the scenario is {placement}", scenario=scenario)
    return _listed(placement, system or DEFAULT_SYSTEM, layers, batch)


def _is_file(placement: str) -> bool:
    """Whether it is a placement's file, and no scenario."""
    from netbench.scenario.load import SUFFIXES, list_scenarios

    path = Path(placement)
    if path.suffix in SUFFIXES or placement in list_scenarios():
        return False
    return path.suffix == ".json" or path.is_file()


def _refuse(why: str, **options: object) -> None:
    """Raises UsageError for an option that would change nothing."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name} is given, but {why}; leave it out")


def _read(path: Path, scenario: str | None) -> Placed:
    """A placement of the scenario that it names, where no other is given."""
    from netbench.scenario import load_scenario
    from netbench.simulator.placement_file import read_placed, read_scenario

    return read_placed(path, load_scenario(scenario) if scenario else read_scenario(path))


def _listed(scenario: str, system: str, layers: int | None, batch: int | None) -> Placed:
    """Of a system, rank r on device r."""
    from netbench.simulator.placement_file import Placed
    from netbench.simulator.scheduling import grid_of

    request = make_request(scenario, system, layers, batch)
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
    from netbench.simulator.placement_file import Placed

    return Placed(
        request=found.request,
        scheduler="repair",
        seed=seed,
        grid=found.mended.grid,
        stage_layers=before.stage_layers,
        budget=counted(moves, "move"),
        num_evaluated=found.mended.num_evaluated,
        search_s=0.0,
        simulated_s=found.after_s,
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
    console.print(system_text(before.plan()), soft_wrap=True)
    changes = [f"lost: {', '.join(lost)}"] if lost else []
    changes += [f"added: {', '.join(added)}"] if added else []
    console.print("; ".join(changes), soft_wrap=True)
    console.print()
    console.print(rich_table(repair_grid(before, found)))
    console.print()
    _print_loads(console, found)
    mended = found.mended
    how = "the best within reach: all were tried" if mended.exact else "a local search"
    console.print(
        f"moves: {mended.num_necessary} necessary, {moves} more allowed; {how}, "
        f"{count_text(mended.num_evaluated)}",
        soft_wrap=True,
    )


def repair_grid(before: Placed, found: Repair) -> Grid:
    """What there was, and what there is: pipelines, batch, seconds, sequences per second."""
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
    from netbench.simulator.placement_file import device_names

    if not found.loads:
        console.print("nothing to load")
        return
    names = device_names(found.request.scenario)
    who = "1 device loads" if len(found.loads) == 1 else f"{len(found.loads)} devices load"
    console.print(
        f"{who} {units.format_bytes(found.load_bytes, DIGITS)} in {seconds_text(found.load_s)} s, "
        "simulated, all at once while nobody trains:",
        soft_wrap=True,
    )
    for load in found.loads:
        tensor, stage = load.slot
        part = f", tensor index {tensor}" if found.plan.layout.tp > 1 else ""
        console.print(
            f"  {names[load.device]} from {names[load.source]}: stage {stage}{part}, "
            f"{units.format_bytes(load.size_bytes, DIGITS)}",
            soft_wrap=True,
        )


def _json(found: Repair) -> dict[str, Any]:
    from netbench.simulator.placement_file import device_names

    names = device_names(found.request.scenario)
    return {
        "before_s": found.before_s,
        "after_s": found.after_s,
        "batch": found.plan.workload.batch,
        "pipelines": found.plan.layout.dp,
        "num_necessary": found.mended.num_necessary,
        "exact": found.mended.exact,
        "num_evaluated": found.mended.num_evaluated,
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
        "grid": [[names[device] for device in lane] for lane in found.mended.grid.tolist()],
    }
