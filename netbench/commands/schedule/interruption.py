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
    """Whether Ctrl-C has been pressed since; pressed again, it interrupts as ever.

    Nothing is raised the first time: in compiled code, KeyboardInterrupt becomes a SystemError.
    """
    pressed = False
    before = signal.getsignal(signal.SIGINT)

    def press(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
