"""Run one scheduler and show the best placement while it searches; `contest` runs many."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from netbench.commands.schedule.interruption import Interrupted, never
from netbench.commands.schedule.request import Limits
from netbench.errors import PlanError, UsageError, nearest
from netbench.plan.memory import check_memory
from netbench.progress import Progress, open_progress
from netbench.report.numbers import seconds_text
from netbench.scenario import load_scenario

if TYPE_CHECKING:
    from netbench.placement.file import Placed
    from netbench.placement.plan_problem import Request
    from netbench.placement.problem import Answer, Improvement, Scheduler

LINE_INTERVAL_S = 1.0
"""Seconds between two lines about a search where output is not a terminal."""

BY_COST = frozenset({"dtfm"})
"""Schedulers that minimise a cost model instead of the simulated iteration."""

WARM_UP = 50
"""Candidates of a small scenario that a scheduler evaluates while it is compiled or loaded."""

OnStep = Callable[["Improvement"], None]


def find_scheduler(name: str) -> Scheduler:
    """Return the scheduler called `name`. Raises UsageError that suggests the nearest names."""
    from netbench.placement.schedulers import SCHEDULERS  # scipy, numba: not for --help

    if name not in SCHEDULERS:
        raise UsageError(f'unknown scheduler "{name}"; {nearest(name, SCHEDULERS)}')
    return SCHEDULERS[name]


def warm_up(name: str) -> None:
    """Compile or load scheduler `name` and the simulator, so that no search's budget pays for it.

    Processes forked from this one inherit the compiled code.
    """
    from netbench.placement.plan_problem import Request
    from netbench.placement.problem import Budget

    scenario = load_scenario("example-two-labs")
    small = Request(
        scenario=scenario, variant="dtfm-scheduled", setting=scenario.sweep.first_setting()
    ).problem()
    find_scheduler(name)(small, 0, Budget(evaluations=WARM_UP))


def search(
    request: Request, name: str, seed: int, limits: Limits, on_step: OnStep | None = None
) -> tuple[Placed, Answer]:
    """Search with scheduler `name`. on_step: called with every better candidate."""
    from netbench.placement.file import Placed

    scheduler, problem = find_scheduler(name), request.problem()
    budget = dataclasses.replace(limits.budget(), progress=on_step)
    try:
        answer = scheduler(problem, seed, budget)
    except PlanError:
        check_memory(request.listed(), request.scenario)  # its error names the stage
        raise
    placed = Placed(
        request=request,
        scheduler=name,
        seed=seed,
        grid=answer.grid,
        stage_layers=answer.stage_layers,
        budget=str(limits),
        num_evaluated=answer.num_evaluated,
        search_s=answer.elapsed_s,
        simulated_s=math.nan,
    )
    return dataclasses.replace(placed, simulated_s=simulated_s(request, placed)), answer


def simulated_s(request: Request, placed: Placed | None = None) -> float:
    """Simulated seconds per iteration with a placement, or with rank r on device r."""
    from netbench.simulator.iteration import simulate

    return simulate(placed.plan() if placed else request.listed()).iteration_s


def with_bounds(
    console: Console,
    placed: Sequence[Placed],
    seconds: float | None = None,
    interrupted: Interrupted = never,
) -> tuple[Placed, ...]:
    """Return the placements with their lower bounds, where a bound is known, and print the lowest.

    One bound is searched for all placements with the same layers per stage. seconds: for all
    bounds together; None = the default of `netbench.placement.bounds.bound`.
    """
    from netbench.placement.bounds.bound import SECONDS, lower_bounds
    from netbench.placement.problem import Budget

    by_layers = {one.stage_layers: one for one in placed}
    seconds = SECONDS if seconds is None else seconds
    with open_progress(console) as progress:

        def on_bound(bound_s: float) -> None:
            progress.advance(task, 0, None, f"{seconds_text(bound_s)} s so far")

        task = "searching a lower bound"
        progress.limit(task, seconds)
        try:
            bounds = lower_bounds(
                [one.request.problem(layers) for layers, one in by_layers.items()],
                Budget(seconds=seconds, interrupted=interrupted),
                progress=on_bound,
            )
        except PlanError:  # a system without stages
            return tuple(placed)
    least = min(bounds, key=lambda bound: bound.seconds)
    cut = "" if least.proved else "; its search was cut short, a higher one may be provable"
    console.print(
        f"lower bound {seconds_text(least.seconds)} s: {least.proof}{cut}",
        style="dim",
        soft_wrap=True,
    )
    bound_s = dict(zip(by_layers, (bound.seconds for bound in bounds), strict=True))
    return tuple(dataclasses.replace(one, bound_s=bound_s[one.stage_layers]) for one in placed)


@contextmanager
def watching(console: Console, name: str, limits: Limits, system: str = "") -> Iterator[OnStep]:
    """Show the best candidate so far and the time left of a search.

    system: what scheduler `name` places, where several systems are placed one after the other.
    """
    title = f"{name}, {system}" if system else name
    with open_progress(console, LINE_INTERVAL_S) as progress:
        if console.is_terminal:
            show_step(progress, title, limits, 0, "")
        yield lambda step: show_step(
            progress, title, limits, step.num_evaluated, step_text(name, step)
        )


def show_step(progress: Progress, task: str, limits: Limits, num_evaluated: int, text: str) -> None:
    """Show how much of its time, or of its candidates, a search has used up."""
    if limits.evaluations is None:
        progress.limit(task, limits.seconds)
    progress.advance(task, num_evaluated, limits.evaluations, text)


def step_text(name: str, step: Improvement) -> str:
    """Best value so far of scheduler `name`, e.g. `best 18.3 s, 1,204 candidates`."""
    what = "best cost" if name in BY_COST else "best"
    return f"{what} {seconds_text(step.value)} s, {count_text(step.num_evaluated)}"


def count_text(num_evaluated: int) -> str:
    """Number of candidates in words, e.g. `1,204 candidates`."""
    return f"{num_evaluated:,} candidate{'' if num_evaluated == 1 else 's'}"
