"""`netbench schedule compare SCENARIO`: compare schedulers at equal search time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from netbench.api.emulation import Target, emulate
from netbench.api.placement import Limits, find_scheduler
from netbench.commands.options import FILE, aliased_option, split_names
from netbench.commands.output import (
    check_results,
    check_writable,
    heading,
    print_line,
    print_verdict,
    results_option,
    wide_console,
)
from netbench.commands.pool import dask_option, open_pool
from netbench.commands.run.observer import TerminalDisplay
from netbench.commands.run.simulation import warn_of_impairments
from netbench.commands.run.target import inventory_options
from netbench.commands.schedule.contest import OnStep, Search, SearchResult, run_searches
from netbench.commands.schedule.place import keep, print_heading, system_text
from netbench.commands.schedule.request import SCHEDULER_NAMES, limit_options, request_options
from netbench.commands.schedule.search import show_step, with_bounds
from netbench.errors import PlanError, UsageError
from netbench.files import write_file
from netbench.limits import MAX_SEARCHES
from netbench.plan.maps import NUM_SEEDS, UNSEEDED
from netbench.pool import Pool
from netbench.progress import open_progress
from netbench.report.numbers import seconds_text
from netbench.report.pictures.style import save_picture
from netbench.report.tables.grid import csv_text, rich_table
from netbench.report.tables.schedule import (
    Contest,
    FoundPlacement,
    SearchFailure,
    contest_csv_grid,
    contest_grid,
    winners,
)

if TYPE_CHECKING:
    from netbench.placement.file import Placed
    from netbench.placement.plan_problem import Request

SCHEDULERS = ("identity", "region-aligned", "random-1000", "dtfm", "netbench")


@click.command()
@request_options
@aliased_option(
    "--schedulers",
    "--scheduler",
    metavar="NAME,...",
    default=",".join(SCHEDULERS),
    help=f"Schedulers to compare, comma-separated: {SCHEDULER_NAMES}.",
)
@click.option(
    "--seeds",
    "num_seeds",
    type=click.IntRange(1, MAX_SEARCHES),
    default=5,
    help="Number of searches per scheduler, with seeds from the scenario's first on.",
)
@limit_options
@click.option("--emulate", is_flag=True, help="Emulate the best two as well, as netbench run does.")
@inventory_options
@dask_option
@click.option("--csv", type=FILE, help="Write every search to a CSV file, unrounded.")
@click.option("--plot", type=FILE, help="Draw the best value so far over time.")
@click.option("--map", "map_path", type=FILE, help="Draw the best placement on a map.")
@click.option("-o", "--output", type=FILE, help="Write the best placement to a file.")
@results_option
def command(
    request: Request,
    schedulers: str,
    num_seeds: int,
    limits: Limits,
    emulate: bool,
    inventory: Path | None,
    replace: bool,
    dask: str | None,
    csv: Path | None,
    plot: Path | None,
    map_path: Path | None,
    output: Path | None,
    results: Path,
) -> int:
    """Compare schedulers on SCENARIO. Every search gets the same time, on one core.

    Simulated times are means over the seeds. DT-FM's cost is the quantity that scheduler dtfm
    minimises. The lower bound is searched last, for as long as one search.
    """
    target = Target(inventory=inventory, replace=replace, dask=dask)
    if inventory is not None and not emulate:
        raise UsageError("--inventory is where the best two are emulated; add --emulate")
    check_writable(csv, output, pictures=[plot, map_path])
    console = wide_console()
    searches = _searches(request, schedulers, num_seeds)
    warn_of_impairments(console, [request.listed()])
    print_heading(console, request)
    with open_pool(dask) as pool:
        ended = _run_searches(console, request, searches, limits, pool)
    contest, placed = _conclude(console, ended, limits)
    code = 0
    if emulate:
        contest, code = _emulate(console, request, contest, placed, target, results)
    _print(console, contest, limits, num_seeds)
    _write(console, request, contest, csv, plot)
    _, best = winners(contest)[0]
    keep(console, placed[_key(best)], output, map_path)
    return code


def _searches(request: Request, schedulers: str, num_seeds: int) -> tuple[Search, ...]:
    """List every search. Raises UsageError for an unknown scheduler or too many seeds."""
    names = split_names(schedulers)
    for name in names:
        find_scheduler(name)
    first = request.scenario.sweep.default_seeds[0]
    if first + num_seeds > NUM_SEEDS:
        raise UsageError(
            f"--seeds {num_seeds}, from {first} on: the largest seed is {NUM_SEEDS - 1}; give fewer"
        )
    seeds = range(first, first + num_seeds)
    return tuple(
        Search(scheduler=name, seed=seed)
        for name in names
        for seed in (seeds[:1] if name in UNSEEDED else seeds)
    )


Key = tuple[str, int]
"""Scheduler and seed of a search."""

OnEnd = Callable[[int, SearchResult], None]


def _key(one: FoundPlacement) -> Key:
    return one.scheduler, one.seed


def _run_searches(
    console: Console,
    request: Request,
    searches: Sequence[Search],
    limits: Limits,
    pool: Pool | None,
) -> list[SearchResult]:
    """Return the results of all searches, in the order of the schedulers and seeds."""
    ended: dict[int, SearchResult] = {}
    with _watching(console, searches, limits) as (on_step, on_end):
        for index, one in run_searches(request, searches, limits, on_step, pool):
            ended[index] = one
            on_end(index, one)
    return [ended[index] for index in sorted(ended)]


def _conclude(
    console: Console, ended: Sequence[SearchResult], limits: Limits
) -> tuple[Contest, dict[Key, Placed]]:
    """Search a bound for as long as one search. Raises PlanError if no search found a placement."""
    refused = tuple(one for one in ended if isinstance(one, SearchFailure))
    pairs = [one for one in ended if not isinstance(one, SearchFailure)]
    if not pairs:
        raise PlanError(refused[0].reason)
    seconds = limits.seconds if limits.evaluations is None else None
    placed = with_bounds(console, [answer for _, answer in pairs], seconds)
    contest = Contest(
        found=tuple(found for found, _ in pairs),
        bound_s=min((one.bound_s for one in placed if one.bound_s is not None), default=None),
        refused=refused,
    )
    return contest, {_key(one): answer for one, answer in zip(contest.found, placed, strict=True)}


@contextmanager
def _watching(
    console: Console, searches: Sequence[Search], limits: Limits
) -> Iterator[tuple[OnStep, OnEnd]]:
    """Show every running search on a terminal, and print a line for every one that has ended."""
    names = [f"{search.scheduler} seed {search.seed}" for search in searches]
    with open_progress(console) as progress:
        num_ended = 0

        def on_step(index: int, num_evaluated: int, text: str) -> None:
            if console.is_terminal:
                show_step(progress, names[index], limits, num_evaluated, text)

        def on_end(index: int, one: SearchResult) -> None:
            nonlocal num_ended
            num_ended += 1
            progress.finish(names[index])
            search = searches[index]
            progress.say(
                Text.assemble(
                    (f"{num_ended:3} of {len(searches)}", "dim"),
                    f"  {search.scheduler:<15} seed {search.seed}: ",
                    *_ended(one),
                )
            )

        yield on_step, on_end


def _ended(one: SearchResult) -> tuple[tuple[str, str], str]:
    """Return how a search ended as parts of a text, of which the first is bold."""
    if isinstance(one, SearchFailure):
        return ("no placement", "bold"), ", see below"
    found, _ = one
    time = f"{seconds_text(found.simulated_s)} s"
    return (time, "bold"), f" simulated, searched for {found.search_s:.1f} s"


def _emulate(
    console: Console,
    request: Request,
    contest: Contest,
    placed: dict[Key, Placed],
    target: Target,
    results: Path,
) -> tuple[Contest, int]:
    """Emulate the best two, as `netbench run` does; return their times and the exit code."""
    from netbench.report.tables.comparison import measured

    best = dict(winners(contest))
    plans = {name: placed[_key(one)].plan() for name, one in best.items()}
    check_results(results)
    console.print(heading(request.scenario))
    run = emulate(
        request.scenario,
        plans.values(),
        target=target,
        results=results,
        display=TerminalDisplay(console),
    ).run
    times = [(name, measured(run, key)) for name, key in zip(plans, run.plans, strict=True)]
    print_line(console, f"records: {run.path}")
    emulated = tuple((name, sample) for name, sample in times if sample)
    return dataclasses.replace(contest, emulated=emulated), print_verdict(console, run)


def _print(console: Console, contest: Contest, limits: Limits, num_seeds: int) -> None:
    console.print()
    console.print(rich_table(contest_grid(contest)))
    console.print()
    for line in _remarks(contest, limits, num_seeds):
        print_line(console, line, style="dim")


def _remarks(contest: Contest, limits: Limits, num_seeds: int) -> list[str]:
    """Notes on the figures of the table."""
    seeds = f"{num_seeds} seed{'' if num_seeds == 1 else 's'}"
    lines = [
        f"simulated: seconds per iteration, mean, min and max of {seeds}. cost: DT-FM's, of "
        f"communication alone. Each search had {limits} on one core; some end earlier by "
        "themselves."
    ]
    if contest.bound_s is None:
        lines.append("No lower bound is known for this system.")
    else:
        lines.append(
            f"lower bound: {seconds_text(contest.bound_s)} s; no placement with the layers per "
            "stage of any of these is faster."
        )
    if contest.emulated:
        lines.append(
            f"emulated: the best placement of the best two schedulers, mean of "
            f"{contest.emulated[0][1].num} iterations ± half their range."
        )
    reasons: dict[tuple[str, str], list[int]] = {}
    for one in contest.refused:
        reasons.setdefault((one.scheduler, one.reason), []).append(one.seed)
    for (scheduler, reason), seeds_of in reasons.items():
        numbers = ", ".join(map(str, seeds_of))
        lines.append(f"{scheduler} found no placement (seed {numbers}): {reason}")
    return lines


def _write(
    console: Console, request: Request, contest: Contest, csv: Path | None, plot: Path | None
) -> None:
    """Write the searches as CSV and draw their convergence, where asked for."""
    if csv is not None:
        write_file(csv, csv_text(contest_csv_grid(contest)) + "\n")
        print_line(console, f"searches: {csv}")
    if plot is not None:
        from netbench.report.pictures.convergence import convergence_figure

        title = f"{request.scenario.name}, {system_text(request.listed())}"
        save_picture(convergence_figure(title, contest), plot)
        print_line(console, f"picture: {plot}")
