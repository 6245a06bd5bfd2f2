"""Progress of one long step: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

LINE_INTERVAL_S = 10.0
"""Seconds between progress lines where output is not a terminal, e.g. in a CI log."""


class Progress(Protocol):
    """Where a long step tells how far it is."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def advance(self, label: str, done: int, total: int) -> None:
        """`done` of about `total` units of `label` are finished."""


class LineProgress:
    """Writes a line at once for what is said, and every `interval_s` for what advances."""

    def __init__(
        self,
        stream: TextIO,
        *,
        interval_s: float = LINE_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._clock = clock
        self._next_s = clock()

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def advance(self, label: str, done: int, total: int) -> None:
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            self.say(f"{label}: {done} of about {total}")


@contextmanager
def open_progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """Progress on `stream` (stderr by default): a rich bar on a terminal, else lines."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield LineProgress(stream)
        return
    # rich takes 50 ms to import, and only a terminal needs it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(file=stream)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        yield _BarProgress(bar)


class _BarProgress:
    """One rich bar; a new label starts it again."""

    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._label = ""

    def say(self, text: str) -> None:
        self._bar.print(text)

    def advance(self, label: str, done: int, total: int) -> None:
        if self._task is None or label != self._label:
            self._task = self._bar.add_task(label, total=total)
            self._label = label
        self._bar.update(self._task, completed=done, total=max(done, total))
