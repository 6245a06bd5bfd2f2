"""What a person sees while a run is under way: a bar with time left, or plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from netbench.errors import EXIT_NOT_TRUSTWORTHY
from netbench.plan import Plan, placed_name
from netbench.plan.experiment import Experiment
from netbench.records import Record
from netbench.scenario import Scenario
from netbench.units import format_bytes

if TYPE_CHECKING:
    from netbench.testbed.local import Outcome

Item = TypeVar("Item")

STEPS = {
    "nodes": "building nodes",
    "ranks": "starting ranks",
    "connect": "connecting ranks",
    "prepare": "preparing plans",
    "shape": "shaping links",
    "verify": "verifying the network",
}
"""A session's steps before its first iteration, in order, as shown."""


FILE_COLUMNS = 100
"""Width of what goes to a file or a pipe."""


def wide_console(columns: int = FILE_COLUMNS) -> Console:
    """As wide as the terminal; where output goes elsewhere, so many columns."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=columns)


def heading(scenario: Scenario) -> str:
    """Name and title, for a `rich` console."""
    title = f": {scenario.title}" if scenario.title else ""
    return f"[bold]{scenario.name}[/bold]{title}"


class Live:
    """Observer of a run (`netbench.testbed.local.Observer`) on a rich console."""

    def __init__(self, console: Console, progress: Progress | None, total: int) -> None:
        self._console = console
        self._progress = progress
        self._total = total
        self._done = 0
        self._started_s = time.monotonic()
        self._steps: dict[int, TaskID] = {}
        self._said: set[tuple[int, str]] = set()
        if progress is not None:
            self._iterations = progress.add_task("iterations", total=total, step="")

    def phase(self, session: int, name: str, done: int, total: int) -> None:
        label = STEPS.get(name, name)
        if self._progress is None:
            if (session, name) not in self._said:
                self._said.add((session, name))
                self._say(f"session {session + 1}: {label}")
            return
        if session not in self._steps:
            self._steps[session] = self._progress.add_task(f"session {session + 1}", step="")
        self._progress.update(self._steps[session], completed=done, total=total, step=label)

    def iteration(self, plan: Experiment, record: Record) -> None:
        self._done += 1
        kind = "warm-up" if record.warmup else "iteration"
        loss = "" if record.loss is None else f", loss {record.loss:.4f}"
        self._say(
            f"{_row_name(plan):<18} {_setting(plan)} "
            f"{kind} {record.iteration}: [bold]{record.iteration_s:.3f} s[/bold]{loss}"
        )
        if self._progress is not None:
            # Sessions that run iterations have no steps left to show.
            for task in self._steps.values():
                self._progress.update(task, visible=False)
            self._progress.update(self._iterations, completed=self._done)

    def _say(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._started_s
        self._console.print(f"[dim]{elapsed_s:6.1f} s[/dim]  {text}", highlight=False)


def _row_name(plan: Experiment) -> str:
    return placed_name(plan.variant, plan.scheduler) if isinstance(plan, Plan) else plan.variant


def _setting(plan: Experiment) -> str:
    """What tells a plan from others of its variant in a run."""
    if isinstance(plan, Plan):
        workload = plan.workload
        network = f" {plan.network_name}" if plan.network_name else ""
        micro_batch = f" m{workload.micro_batch}" if workload.micro_batch > 1 else ""
        return f"{workload.name} B{workload.batch}{micro_batch}{network} seed {plan.seed}"
    return format_bytes(plan.payload_bytes)


def print_verdict(console: Console, outcome: Outcome) -> int:
    """Why a run is not trustworthy, if it is not; the exit code of its command."""
    for reason in outcome.reasons:
        console.print(f"[bold red]not trustworthy[/bold red]: {reason}", soft_wrap=True)
    return 0 if outcome.trustworthy else EXIT_NOT_TRUSTWORTHY


def track(console: Console, items: Iterable[Item], total: int, description: str) -> Iterator[Item]:
    """Pass `items` on, with a bar on a terminal; it goes when they end."""
    if not console.is_terminal:
        yield from items
        return
    with _progress(console) as progress:
        task = progress.add_task(description, total=total)
        for item in items:
            yield item
            progress.advance(task)


@contextmanager
def live(console: Console, plans: Sequence[Experiment], num_finished: int) -> Iterator[Live]:
    """Show the progress of the iterations of `plans` that are left."""
    total = sum(plan.iterations for plan in plans) - num_finished
    if not console.is_terminal:
        yield Live(console, None, total)
        return
    with _progress(console, TextColumn("{task.fields[step]}")) as progress:
        yield Live(console, progress, total)


def _progress(console: Console, *more: ProgressColumn) -> Progress:
    """A bar that goes when its work ends. more: columns behind the usual ones."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        *more,
        console=console,
        transient=True,
    )
