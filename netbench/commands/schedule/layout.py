"""`netbench schedule SCENARIO --layout auto`: search the plan as well as its placement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from netbench.api.placement import DEFAULT_SYSTEM, Limits, find_scheduler, warm_up
from netbench.commands.output import heading, print_line
from netbench.commands.run.simulation import warn_of_impairments
from netbench.commands.schedule.search import count_text
from netbench.errors import UsageError
from netbench.plan.memory import plan_memory
from netbench.progress import open_progress
from netbench.report.numbers import percent_text, seconds_text
from netbench.report.page.layouts import layout_text
from netbench.report.tables.cost import money
from netbench.report.tables.grid import Column, Grid, rich_table, table_of
from netbench.units import counted, format_bytes

if TYPE_CHECKING:
    from netbench.commands.schedule.request import Costs
    from netbench.placement.file import Placed
    from netbench.placement.layouts import LayoutSearch, PlacedCandidate
    from netbench.placement.plan_problem import Request
    from netbench.plan.model import Plan

NUM_SHOWN = 5


def find_layout(
    console: Console,
    request: Request,
    layout: str,
    scheduler: str,
    seed: int,
    limits: Limits,
    *,
    costs: Costs,
    as_json: bool,
) -> Placed:
    """Search the plans of `layout`, and print the best few beside the best listed system."""
    from netbench.placement.layouts import (
        FASTEST,
        best_listed,
        cheapest,
        find_candidates,
        parse_layout,
        search_layouts,
    )

    if request.variant != DEFAULT_SYSTEM:
        raise UsageError(f"--layout chooses the system; leave out --system {request.variant}")
    degrees = parse_layout(layout)
    placing = find_scheduler(scheduler)
    warm_up(scheduler)
    usd = cheapest(request.scenario, costs.prices, costs.market)
    objective = usd if costs.minimised else FASTEST
    with _watching(console, limits) as on_best:
        candidates = find_candidates(
            request.scenario, request.setting, degrees, every_region=costs.minimised
        )
        warn_of_impairments(console, [candidates[0].plan])
        if not as_json:
            workload = candidates[0].plan.workload
            devices = counted(request.scenario.num_devices, "device")
            console.print(heading(request.scenario))
            console.print(f"{workload.name} B{workload.batch}; {devices}")
        found = search_layouts(
            candidates,
            scheduler=placing,
            name=scheduler,
            seed=seed,
            budget=limits.budget(),
            progress=on_best,
            objective=objective,
        )
        listed = best_listed(request.scenario, request.setting, objective)
    placed = _placed(found, scheduler, seed, limits)
    if as_json:
        click.echo(json.dumps(_json(found, listed), indent=2))
        return placed
    console.print()
    price = usd.value if costs.prices or request.scenario.prices else None
    console.print(rich_table(layouts_grid(found.best[:NUM_SHOWN], listed, price, costs.market)))
    console.print()
    print_line(
        console,
        f"searched for {found.elapsed_s:.1f} s: {_simulated_text(found)}; {scheduler} "
        f"placed the best, {count_text(found.num_evaluated)} in all (seed {seed}, budget {limits})",
    )
    return placed


@contextmanager
def _watching(console: Console, limits: Limits) -> Iterator[Callable[[PlacedCandidate], None]]:
    """Show the best plan so far and the time left."""
    task = "simulating and placing layouts"
    with open_progress(console, interval_s=0) as progress:
        if limits.evaluations is None:
            progress.limit(task, limits.seconds)

        def on_best(best: PlacedCandidate) -> None:
            text = f"{best.plan.variant}: best {seconds_text(best.iteration_s)} s"
            progress.advance(task, 0, None, text)

        yield on_best


def _simulated_text(found: LayoutSearch) -> str:
    """Say how many plans fit, how many were simulated, and why not all."""
    fitting = f"{counted(found.num_candidates, 'plan')} fit the devices' memory"
    if found.num_simulated == found.num_candidates:
        return f"{fitting}, all were simulated"
    late = f"the --budget was over before {found.num_left} others"
    why = late if found.num_left else "the others cannot be among the best"
    return f"{fitting}, {found.num_simulated} were simulated, {why}"


def layouts_grid(
    found: tuple[PlacedCandidate, ...],
    listed: PlacedCandidate | None,
    price: Callable[[Plan, float], float] | None = None,
    market: str = "",
) -> Grid:
    """Table of the plans, followed by the best system that the scenario lists.

    Memory is that of the device that needs most. The column after the seconds compares them with
    those of the listed system. price: $ per million samples in a market, None = not known.
    """

    def against(one: PlacedCandidate) -> str:
        if one is listed:
            return ""
        return percent_text(one.iteration_s / listed.iteration_s - 1) if listed else "-"

    columns: list[Column[PlacedCandidate]] = [
        ("Plan", lambda one: f"{one.plan.variant}{' (listed)' if one is listed else ''}"),
        ("Layout", lambda one: layout_text(one.plan.layout)),
        ("Memory", lambda one: format_bytes(_memory_bytes(one), 3)),
        ("listed s", lambda one: seconds_text(one.unplaced_s)),
        ("placed s", lambda one: seconds_text(one.iteration_s)),
        ("against listed system", against),
    ]
    if price is not None:
        columns.append((f"{market} $/M", lambda one: money(price(one.plan, one.iteration_s))))
    return table_of((*found, listed) if listed else found, columns)


def _memory_bytes(found: PlacedCandidate) -> float:
    return max(part.total_bytes for part in plan_memory(found.plan))


def _placed(search: LayoutSearch, scheduler: str, seed: int, limits: Limits) -> Placed:
    from netbench.placement.file import Placed
    from netbench.placement.plan_problem import grid_of

    best = search.best[0]
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


def _json(search: LayoutSearch, listed: PlacedCandidate | None) -> dict[str, Any]:
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
            for one in search.best
        ],
    }
