"""Show the best placement while a scheduler searches, and the bound that is searched after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from netbench.api import placement
from netbench.api.placement import Interrupted, Limits, OnStep, never
from netbench.commands.output import print_line
from netbench.progress import Progress, open_progress
from netbench.report.numbers import seconds_text

if TYPE_CHECKING:
    from netbench.placement.file import Placed
    from netbench.placement.problem import Improvement

LINE_INTERVAL_S = 1.0
"""Seconds between two lines about a search where output is not a terminal."""

BY_COST = frozenset({"dtfm"})
"""Schedulers that minimise a cost model instead of the simulated iteration."""


def with_bounds(
    console: Console,
    placed: Sequence[Placed],
    seconds: float | None = None,
    interrupted: Interrupted = never,
) -> tuple[Placed, ...]:
    """Return what `netbench.api.placement.with_bounds` does, show its progress and print the lowest
    bound."""
    from netbench.placement.bounds.bound import SECONDS

    seconds = SECONDS if seconds is None else seconds
    task = "searching a lower bound"
    with open_progress(console) as progress:
        progress.limit(task, seconds)
        found, least = placement.with_bounds(
            placed,
            seconds,
            interrupted,
            lambda bound_s: progress.advance(task, 0, None, f"{seconds_text(bound_s)} s so far"),
        )
    if least is not None:
        cut = "" if least.proved else "; its search was cut short, a higher one may be provable"
        text = f"lower bound {seconds_text(least.seconds)} s: {least.proof}{cut}"
        print_line(console, text, style="dim")
    return found


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
