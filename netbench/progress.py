"""Progress of long work: bars with the time left on a terminal, plain lines elsewhere.

`open_progress` is for work that reports what it has done, `track` for a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:  # rich takes 50 ms to import, and sessions in a guest never show progress
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress
    from rich.progress import Task, TaskID
    from rich.text import Text

LINE_INTERVAL_S = 10.0
"""Seconds between two lines about a task where output is not a terminal, e.g. in a CI log."""

Item = TypeVar("Item")


class Progress(Protocol):
    """Shows what one or more concurrent tasks have done."""

    def say(self, text: str | Text) -> None:
        """Print a line that stays."""

    def advance(self, task: str, done: float, total: float | None, note: str = "") -> None:
        """Report that `done` of `total` units of `task` are finished.

        total: None if unknown. note: shown with the bar, and in lines instead of the counts.
        """

    def limit(self, task: str, limit_s: float) -> None:
        """Start a task that ends after `limit_s` at the latest; its bar follows the clock."""

    def finish(self, task: str) -> None:
        """Remove the bar of `task`."""


class LineProgress:
    """Progress as lines: at most one every `interval_s` for each task, and one at its end.

    delay_s: time before the first line.
    """

    def __init__(
        self,
        console: Console,
        interval_s: float = LINE_INTERVAL_S,
        delay_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._interval_s, self._delay_s = console, interval_s, delay_s
        self._clock, self._started_s = clock, clock()
        self._last: dict[str, tuple[float, str]] = {}

    def say(self, text: str | Text) -> None:
        self._console.print(
            text, markup=False, highlight=False, soft_wrap=not self._console.is_terminal
        )

    def advance(self, task: str, done: float, total: float | None, note: str = "") -> None:
        now_s = self._clock()
        text = f"{task}: {note}" if note or total is None else f"{task}: {done:g} of {total:g}"
        first_s = self._started_s + self._delay_s - self._interval_s
        shown_s, shown = self._last.get(task, (first_s, ""))
        if text != shown and (now_s - shown_s >= self._interval_s or done == total):
            self._last[task] = now_s, text
            self.say(f"{now_s - self._started_s:6.1f} s  {text}")

    def limit(self, task: str, limit_s: float) -> None:
        """Lines show no time left."""

    def finish(self, task: str) -> None:
        self._last.pop(task, None)


class BarProgress:
    """Progress as one bar of rich for each task."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._limited: set[str] = set()

    def say(self, text: str | Text) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def advance(self, task: str, done: float, total: float | None, note: str = "") -> None:
        if task not in self._tasks:
            self._tasks[task] = self._bars.add_task(task, note="", limit_s=None)
        if task in self._limited:
            self._bars.update(self._tasks[task], note=note)
        else:
            total = None if total is None else max(done, total)
            self._bars.update(self._tasks[task], completed=done, total=total, note=note)

    def limit(self, task: str, limit_s: float) -> None:
        if task not in self._tasks:
            self._limited.add(task)
            self._tasks[task] = self._bars.add_task(task, total=limit_s, note="", limit_s=limit_s)

    def finish(self, task: str) -> None:
        if task in self._tasks:
            self._bars.remove_task(self._tasks.pop(task))
            self._limited.discard(task)


@contextmanager
def open_progress(
    console: Console | None = None, interval_s: float = LINE_INTERVAL_S, delay_s: float = 0.0
) -> Iterator[Progress]:
    """Show progress on `console` (standard error by default); bars vanish at the end.

    interval_s, delay_s: between lines, and before the first one, where there is no terminal.
    """
    if console is None:
        from rich.console import Console

        console = Console(stderr=True)
    if not console.is_terminal:
        yield LineProgress(console, interval_s, delay_s)
        return
    with _bars(console) as bars:
        yield BarProgress(bars)


def track(
    console: Console,
    items: Iterable[Item],
    total: int,
    task: str,
    describe: Callable[[], str] | None = None,
) -> Iterator[Item]:
    """Pass `items` on while showing how many of `total` have come.

    describe: returns a note, e.g. what each worker has done. Lines go to standard error, so that a
    table written to a file stays free of them.
    """
    shown_on = console if console.is_terminal else None
    with open_progress(shown_on, delay_s=LINE_INTERVAL_S) as progress:
        for done, item in enumerate(items):
            note = describe() if describe is not None else ""
            counts = f"{done:g} of {total:g}, " if note and shown_on is None else ""
            progress.advance(task, done, total, counts + note)
            yield item


def _bars(console: Console) -> RichProgress:
    from rich import progress as rich_progress
    from rich.text import Text

    class Bars(rich_progress.Progress):
        """Bars of tasks with a time limit follow the clock."""

        def get_renderables(self) -> Iterable[RenderableType]:
            for task in self.tasks:
                if task.fields["limit_s"] is not None:
                    self.update(task.id, completed=min(task.elapsed or 0.0, task.fields["limit_s"]))
            return super().get_renderables()

    class Count(rich_progress.MofNCompleteColumn):
        """Units done, except where the total is a time."""

        def render(self, task: Task) -> Text:
            return Text() if task.fields["limit_s"] is not None else super().render(task)

    return Bars(
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(bar_width=24),
        Count(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=True,
    )
