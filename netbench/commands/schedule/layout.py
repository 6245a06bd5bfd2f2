"""`netbench schedule SCENARIO --layout auto`: the plan itself is searched, and then placed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from netbench.commands.live import heading
from netbench.commands.schedule.request import DEFAULT_SYSTEM, Limits
from netbench.commands.schedule.search import count_text, find_scheduler
from netbench.commands.simulation import warn_of_disturbances
from netbench.errors import UsageError
from netbench.plan import Layout, Plan, plan_memory
from netbench.report.grid import Grid, rich_table
from netbench.report.tables import percent_text, seconds_text
from netbench.units import counted, format_bytes

if TYPE_CHECKING:
    from netbench.simulator.layouts import Found, LayoutSearch
    from netbench.simulator.placement_file import Placed
    from netbench.simulator.scheduling import Request

NUM_SHOWN = 5


def find_layout(
    console: Console,
    request: Request,
    layout: str,
    scheduler: str,
    seed: int,
    limits: Limits,
    *,
    as_json: bool,
) -> Placed:
    """Search the plans of `layout`, and print the best few, beside the best listed system."""
    from netbench.simulator.layouts import (
        best_listed,
        find_candidates,
        parse_layout,
        search_layouts,
    )

    if request.variant != DEFAULT_SYSTEM:
        raise UsageError(f"--layout chooses the system; leave out --system {request.variant}")
    degrees = parse_layout(layout)
    placing = find_scheduler(scheduler)
    scenario = request.scenario
    with _watching(console) as on_best:
        candidates = find_candidates(
            scenario,
            request.layers,
            request.batch,
            micro_batch=request.micro_batch,
            network=request.network,
            degrees=degrees,
        )
        warn_of_disturbances(console, [candidates[0].plan.network])
        if not as_json:
            _print_heading(console, request, candidates[0].plan)
        found = search_layouts(
            candidates,
            scheduler=placing,
            name=scheduler,
            seed=seed,
            budget=limits.budget(),
            progress=on_best,
        )
        listed = best_listed(
            scenario, request.layers, request.batch, request.network, request.micro_batch
        )
    placed = _placed(found, scheduler, seed, limits)
    if as_json:
        click.echo(json.dumps(_json(found, listed), indent=2))
        return placed
    console.print()
    console.print(rich_table(layouts_grid(found.found[:NUM_SHOWN], listed)))
    console.print()
    console.print(
        f"searched {found.elapsed_s:.1f} s: {_simulated_text(found, limits)}; {scheduler} placed "
        f"the best, {count_text(found.num_evaluated)} in all (seed {seed}, budget {limits})",
        soft_wrap=True,
    )
    return placed


@contextmanager
def _watching(console: Console) -> Iterator[Callable[[Found], None]]:
    """Shows the best so far: in place on a terminal, else a line for each."""
    with console.status("simulating layouts") as status:

        def on_best(best: Found) -> None:
            text = f"{best.plan.variant}: best {seconds_text(best.iteration_s)} s"
            status.update(f"simulating and placing layouts, {text}")
            if not console.is_terminal:
                console.print(text, soft_wrap=True)

        yield on_best


def _print_heading(console: Console, request: Request, plan: Plan) -> None:
    scenario, workload = request.scenario, plan.workload
    console.print(heading(scenario))
    console.print(f"{workload.name} B{workload.batch}; {counted(scenario.num_devices, 'device')}")


def _simulated_text(found: LayoutSearch, limits: Limits) -> str:
    """How many plans there are, and why not all were simulated."""
    fitting = f"{counted(found.num_candidates, 'plan')} fit the devices' memory"
    if found.num_simulated == found.num_candidates:
        return f"{fitting}, all were simulated"
    why = "" if limits.interrupted() else ", the others cannot be among the best"
    return f"{fitting}, {found.num_simulated} were simulated{why}"


def layouts_grid(found: tuple[Found, ...], listed: Found | None) -> Grid:
    """A row per plan, and one for the best system that the scenario lists. Memory: of the device
    that needs most. Against: seconds, relative to that system's."""
    rows = [_row(one, listed) for one in found]
    rows += [_row(listed, listed)] if listed else []
    head = ("Plan", "Layout", "Memory", "listed s", "placed s", "against listed system")
    return Grid(head=head, rows=tuple(rows))


def _row(found: Found, listed: Found | None) -> tuple[str, ...]:
    against = percent_text(found.iteration_s / listed.iteration_s - 1, 1) if listed else "-"
    name = f"{found.plan.variant} (listed)" if found is listed else found.plan.variant
    return (
        name,
        layout_text(found.plan.layout),
        format_bytes(_memory_bytes(found), 3),
        seconds_text(found.unplaced_s),
        seconds_text(found.iteration_s),
        "" if found is listed else against,
    )


def layout_text(layout: Layout) -> str:
    """`p4t2d8`, as in the description of a plan."""
    return f"p{layout.pp}{f't{layout.tp}' if layout.tp > 1 else ''}d{layout.dp}"


def _memory_bytes(found: Found) -> float:
    return max(part.total_bytes for part in plan_memory(found.plan))


def _placed(search: LayoutSearch, scheduler: str, seed: int, limits: Limits) -> Placed:
    from netbench.simulator.placement_file import Placed
    from netbench.simulator.scheduling import grid_of

    best = search.found[0]
    return Placed(
        request=best.candidate.request,
        scheduler=scheduler,
        seed=seed,
        grid=grid_of(best.plan),
        stage_layers=tuple(stage.num_layers for stage in best.plan.stages),
        budget=str(limits),
        num_layouts=search.num_simulated,
        num_evaluated=search.num_evaluated,
        search_s=search.elapsed_s,
        simulated_s=best.iteration_s,
    )


def _json(search: LayoutSearch, listed: Found | None) -> dict[str, Any]:
    return {
        "num_candidates": search.num_candidates,
        "num_simulated": search.num_simulated,
        "num_evaluated": search.num_evaluated,
        "listed_system": listed.plan.variant if listed else None,
        "listed_system_s": listed.iteration_s if listed else None,
        "found": [
            {
                "plan": one.plan.variant,
                "layout": layout_text(one.plan.layout),
                "memory_gb": _memory_bytes(one) / 1e9,
                "unplaced_s": one.unplaced_s,
                "simulated_s": one.iteration_s,
            }
            for one in search.found
        ],
    }
