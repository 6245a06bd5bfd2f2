"""Ctrl-C ends a search, not the command: what was found by then is the answer."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Interrupted = Callable[[], bool]


def never() -> bool:
    """Of a search that nobody interrupts."""
    return False


@contextmanager
def interruptible() -> Iterator[Interrupted]:
    """Whether Ctrl-C has been pressed since this was first asked; pressed before that, while there
    is nothing to keep, or again, it interrupts as ever. A process that ignores it still does.

    Nothing is raised the first time: in compiled code, KeyboardInterrupt becomes a SystemError.
    """
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        yield never
        return
    asked = pressed = False

    def press(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        signal.signal(signal.SIGINT, before)
        pressed = asked
        if not asked:
            signal.raise_signal(signum)

    def interrupted() -> bool:
        nonlocal asked
        asked = True
        return pressed

    signal.signal(signal.SIGINT, press)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
