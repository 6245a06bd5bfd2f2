"""Runs a scheduler, and shows what it has found while it searches. Many at once: `contest`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar

from netbench.commands.schedule.interruption import Interrupted, never
from netbench.commands.schedule.request import Limits
from netbench.errors import PlanError, UsageError, nearest
from netbench.plan import check_memory
from netbench.report.tables import seconds_text
from netbench.scenario import load_scenario

if TYPE_CHECKING:
    from netbench.placement.problem import Answer, Scheduler, Step
    from netbench.simulator.placement_file import Placed
    from netbench.simulator.scheduling import Request

LINE_S = 1.0
"""Between two lines about a search where there is no terminal, seconds."""

BY_COST = frozenset({"dtfm", "least-cost"})
"""Schedulers whose steps are of a cost of their own, not of simulated iterations."""

WARM_UP = 50
"""Candidates of a small scenario, over which a scheduler is compiled, or loaded."""

OnStep = Callable[["Step"], None]


def find_scheduler(name: str) -> Scheduler:
    """Raises UsageError with the nearest where there is none called `name`."""
    from netbench.placement.schedulers import SCHEDULERS  # scipy, numba: not for --help

    if name not in SCHEDULERS:
        raise UsageError(f'there is no scheduler "{name}"; {nearest(name, SCHEDULERS)}')
    return SCHEDULERS[name]


def warm_up(name: str) -> None:
    """Have scheduler `name`, and the simulator, compiled or loaded: no search's time goes into it,
    and processes forked from this one have it too."""
    from netbench.placement.problem import Budget
    from netbench.simulator.scheduling import Request

    scenario = load_scenario("example-two-labs")
    small = Request(scenario=scenario, variant="dtfm-scheduled", layers=8, batch=16).problem()
    find_scheduler(name)(small, 0, Budget(evaluations=WARM_UP))


def search(
    request: Request, name: str, seed: int, limits: Limits, on_step: OnStep | None = None
) -> tuple[Placed, Answer]:
    """What scheduler `name` finds. on_step: told of every better candidate while it goes on."""
    from netbench.simulator.placement_file import Placed

    scheduler, problem = find_scheduler(name), request.problem()
    budget = dataclasses.replace(limits.budget(), progress=on_step)
    try:
        answer = scheduler(problem, seed, budget)
    except PlanError:
        check_memory(request.listed(), request.scenario)  # says which stage needs what
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
    """Of an iteration with a placement; without one, rank r is on device r."""
    from netbench.simulator.simulate import simulate

    return simulate(placed.plan() if placed else request.listed()).iteration_s


def with_bounds(
    console: Console,
    placed: Sequence[Placed],
    seconds: float | None = None,
    interrupted: Interrupted = never,
) -> tuple[Placed, ...]:
    """With the lower bounds of their problems, where they are known; of all that have as many
    layers in each stage, one is searched. What is proved is shown, and why.

    seconds: for all searches together; None = as many as `netbench.placement.bound` takes.
    """
    from netbench.placement.bound import SECONDS, lower_bounds
    from netbench.placement.problem import Budget

    kinds = {one.stage_layers: one for one in placed}
    seconds = SECONDS if seconds is None else seconds
    heading = f"looking for a lower bound, {seconds:.0f} s at most"
    with console.status(heading) as status:
        try:
            bounds = lower_bounds(
                [one.request.problem(layers) for layers, one in kinds.items()],
                Budget(seconds=seconds, interrupted=interrupted),
                progress=lambda least_s: status.update(f"{heading}: {seconds_text(least_s)} s"),
            )
        except PlanError:  # a system without stages
            return tuple(placed)
    least = min(bounds, key=lambda bound: bound.seconds)
    cut = "" if least.proved else "; its search was cut short, more may be provable"
    console.print(
        f"lower bound {seconds_text(least.seconds)} s: {least.proof}{cut}",
        style="dim",
        soft_wrap=True,
    )
    bound_s = dict(zip(kinds, (bound.seconds for bound in bounds), strict=True))
    return tuple(dataclasses.replace(one, bound_s=bound_s[one.stage_layers]) for one in placed)


@contextmanager
def watching(console: Console, name: str, limits: Limits, system: str = "") -> Iterator[OnStep]:
    """Shows the best so far: a bar over the budget on a terminal, else a line now and then.

    system: what scheduler `name` places, where that has to be said.
    """
    title = f"{name}, {system}" if system else name
    if not console.is_terminal:
        yield _lines(console, name, title)
        return
    columns = (
        TextColumn("{task.description}"),
        BudgetBar(limits),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None, best="")

        def on_step(step: Step) -> None:
            progress.update(task, completed=step.num_evaluated, best=step_text(name, step))

        yield on_step


def step_text(name: str, step: Step) -> str:
    """The best so far of scheduler `name`, in a few words."""
    what = "best cost" if name in BY_COST else "best"
    return f"{what} {seconds_text(step.value)} s, {count_text(step.num_evaluated)}"


def count_text(num_evaluated: int) -> str:
    """`1,204 candidates`."""
    return f"{num_evaluated:,} candidate{'' if num_evaluated == 1 else 's'}"


class BudgetBar(ProgressColumn):
    """How much of a search's time, or of its candidates, is used up."""

    max_refresh = None

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    def render(self, task: Task) -> ProgressBar:
        total = self._limits.evaluations
        if total is None:
            return ProgressBar(self._limits.seconds, task.elapsed or 0.0, width=24)
        return ProgressBar(total, task.completed, width=24)


def _lines(console: Console, name: str, title: str) -> OnStep:
    last_s = -math.inf

    def on_step(step: Step) -> None:
        nonlocal last_s
        if step.elapsed_s - last_s >= LINE_S:
            last_s = step.elapsed_s
            console.print(f"{step.elapsed_s:6.1f} s  {title}: {step_text(name, step)}")

    return on_step
