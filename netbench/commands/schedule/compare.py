"""`netbench schedule compare SCENARIO`: all schedulers side by side, at equal time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeElapsedColumn

from netbench.commands.files import check_formats, check_writable, results_option
from netbench.commands.live import print_verdict, wide_console
from netbench.commands.schedule.contest import Ended, Entry, OnSaid, run_entries
from netbench.commands.schedule.place import keep, print_heading, system_text
from netbench.commands.schedule.request import (
    SCHEDULER_NAMES,
    Limits,
    limit_options,
    request_options,
)
from netbench.commands.schedule.search import find_scheduler, with_bounds
from netbench.commands.simulation import warn_of_disturbances
from netbench.errors import PlanError, RecordError, UsageError
from netbench.placement import NUM_SEEDS, UNSEEDED
from netbench.report.grid import csv_text, rich_table
from netbench.report.schedule import (
    Contest,
    Found,
    Refused,
    contest_csv_grid,
    contest_grid,
    winners,
)
from netbench.report.tables import seconds_text

if TYPE_CHECKING:
    from netbench.simulator.placement_file import Placed
    from netbench.simulator.scheduling import Request

SCHEDULERS = ("identity", "region-aligned", "random-1000", "dtfm", "netbench")


@click.command()
@request_options
@click.option(
    "--schedulers",
    default=",".join(SCHEDULERS),
    show_default=True,
    help=f"Comma-separated, of {SCHEDULER_NAMES}.",
)
@click.option(
    "--seeds",
    "num_seeds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Searches of each, from the scenario's first seed on.",
)
@limit_options
@click.option("--emulate", is_flag=True, help="Run the best two too, as netbench run does.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write every search, unrounded.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the best so far over time.")
@click.option("--map", "map_path", type=click.Path(path_type=Path), help="Draw the best placement.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Keep the best placement.")
@results_option
def command(
    request: Request,
    schedulers: str,
    num_seeds: int,
    limits: Limits,
    emulate: bool,
    csv: Path | None,
    plot: Path | None,
    map_path: Path | None,
    output: Path | None,
    results: Path,
) -> int:
    """Put schedulers side by side on SCENARIO: each search has the same time, on a core of its own.

    Simulated times are means over the seeds. DT-FM's cost is what scheduler dtfm minimises. The
    lower bound is searched last, with the time of one search.
    """
    check_writable(csv, plot, map_path, output)
    check_formats(plot, map_path)
    console = wide_console()
    entries = _entries(request, schedulers, num_seeds)
    warn_of_disturbances(console, [request.listed().network])
    print_heading(console, request)
    contest, placed = _search(console, request, entries, limits)
    code = 0
    if emulate:
        contest, code = _emulate(console, request, contest, placed, results)
    _print(console, contest, limits, num_seeds)
    _write(console, request, contest, csv, plot)
    _, best = winners(contest)[0]
    keep(console, placed[_key(best)], output, map_path)
    return code


def _entries(request: Request, schedulers: str, num_seeds: int) -> tuple[Entry, ...]:
    """Every search. Raises UsageError for an unknown scheduler, or one given twice."""
    names = schedulers.split(",")
    for name in names:
        find_scheduler(name)
        if names.count(name) > 1:
            raise UsageError(f"--schedulers has {name} twice; give every scheduler once")
    first = request.scenario.sweep.default_seeds[0]
    if first + num_seeds > NUM_SEEDS:
        raise UsageError(
            f"--seeds {num_seeds} from {first} on: seeds end at {NUM_SEEDS - 1}; give fewer"
        )
    seeds = range(first, first + num_seeds)
    return tuple(
        Entry(scheduler=name, seed=seed)
        for name in names
        for seed in (seeds[:1] if name in UNSEEDED else seeds)
    )


Key = tuple[str, int]
"""Scheduler and seed of a search."""

OnEnded = Callable[[int, Ended], None]


def _key(one: Found) -> Key:
    return one.scheduler, one.seed


def _search(
    console: Console, request: Request, entries: Sequence[Entry], limits: Limits
) -> tuple[Contest, dict[Key, Placed]]:
    """All searches, in the order of the schedulers and seeds, and then a bound, with as much time
    as one of them; what each has found is shown. Raises PlanError where none finds anything."""
    ended: dict[int, Ended] = {}
    with _watching(console, entries) as (on_said, on_ended):
        for index, one in run_entries(request, entries, limits, on_said):
            ended[index] = one
            on_ended(index, one)
    in_order = [one for _, one in sorted(ended.items(), key=lambda item: item[0])]
    refused = tuple(one for one in in_order if isinstance(one, Refused))
    pairs = [one for one in in_order if not isinstance(one, Refused)]
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
def _watching(console: Console, entries: Sequence[Entry]) -> Iterator[tuple[OnSaid, OnEnded]]:
    """A line for every search that is going on, on a terminal; and one for every one that ended."""
    columns = (
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[said]}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        tasks: dict[int, TaskID] = {}
        ended = 0

        def on_said(index: int, text: str) -> None:
            if index not in tasks:
                entry = entries[index]
                tasks[index] = bar.add_task(f"{entry.scheduler} seed {entry.seed}", said="")
            bar.update(tasks[index], said=text)

        def on_ended(index: int, one: Ended) -> None:
            nonlocal ended
            ended += 1
            if index in tasks:
                bar.update(tasks[index], visible=False)
            entry = entries[index]
            console.print(
                f"[dim]{ended:3} of {len(entries)}[/dim]  {entry.scheduler:<15} seed {entry.seed}: "
                + _ended_text(one),
                soft_wrap=True,
            )

        yield on_said, on_ended


def _ended_text(one: Ended) -> str:
    if isinstance(one, Refused):
        return "[bold]nothing[/bold], see below"
    found, _ = one
    return (
        f"[bold]{seconds_text(found.simulated_s)} s[/bold] simulated, searched "
        f"{found.search_s:.1f} s"
    )


def _emulate(
    console: Console,
    request: Request,
    contest: Contest,
    placed: dict[Key, Placed],
    results: Path,
) -> tuple[Contest, int]:
    """With emulated times of the best two, run as `netbench run` does; and its exit code."""
    from netbench.commands.run import ITERATIONS, WARMUP, carry_out
    from netbench.plan import plan_hash
    from netbench.records import read_run
    from netbench.report.comparison import measured

    best = dict(winners(contest))
    plans = {name: placed[_key(one)].plan() for name, one in best.items()}
    scale = max(plan.scale for plan in plans.values())
    plans = {
        name: dataclasses.replace(
            plan, iterations=ITERATIONS + WARMUP, warmup_iterations=WARMUP, scale=scale
        )
        for name, plan in plans.items()
    }
    outcome = carry_out(
        console, request.scenario, tuple(plans.values()), "local", ssh=False, results=results,
        resumed=None, trace=False,
    )  # fmt: skip
    run = read_run(outcome.path)
    times = [(name, measured(run, plan_hash(plan))) for name, plan in plans.items()]
    console.print(f"records: {outcome.path}", soft_wrap=True)
    emulated = tuple((name, sample) for name, sample in times if sample)
    return dataclasses.replace(contest, emulated=emulated), print_verdict(console, outcome)


def _print(console: Console, contest: Contest, limits: Limits, num_seeds: int) -> None:
    console.print()
    console.print(rich_table(contest_grid(contest)))
    console.print()
    for line in _remarks(contest, limits, num_seeds):
        console.print(line, style="dim", soft_wrap=True)


def _remarks(contest: Contest, limits: Limits, num_seeds: int) -> list[str]:
    """What a reader must know of the figures."""
    seeds = f"{num_seeds} seed{'' if num_seeds == 1 else 's'}"
    lines = [
        f"simulated: seconds of an iteration, mean, min and max of {seeds}. cost: "
        f"DT-FM's, of communication alone. Each search had {limits} on a core of its own; it may "
        "end sooner by itself."
    ]
    if contest.bound_s is None:
        lines.append("no lower bound is known for this system.")
    else:
        lines.append(
            f"lower bound: {seconds_text(contest.bound_s)} s; no placement with as many layers in "
            "each stage as any of these is faster."
        )
    if contest.emulated:
        lines.append(
            f"emulated: the best search of the best two, mean of {contest.emulated[0][1].num} "
            "iterations ± half their range."
        )
    reasons: dict[tuple[str, str], list[int]] = {}
    for one in contest.refused:
        reasons.setdefault((one.scheduler, one.reason), []).append(one.seed)
    for (scheduler, reason), seeds_of in reasons.items():
        numbers = ", ".join(map(str, seeds_of))
        lines.append(f"{scheduler} found nothing (seed {numbers}): {reason}")
    return lines


def _write(
    console: Console, request: Request, contest: Contest, csv: Path | None, plot: Path | None
) -> None:
    """The searches as a table, and their convergence as a picture, where they were asked for."""
    if csv is not None:
        try:
            csv.write_text(csv_text(contest_csv_grid(contest)) + "\n", encoding="utf-8")
        except OSError as error:
            raise RecordError(f"{csv}: cannot be written: {error.strerror}") from error
        console.print(f"searches: {csv}", soft_wrap=True)
    if plot is not None:
        from netbench.report.convergence import plot_convergence

        title = f"{request.scenario.name}, {system_text(request.listed())}"
        plot_convergence(title, contest, plot)
        console.print(f"picture: {plot}", soft_wrap=True)
