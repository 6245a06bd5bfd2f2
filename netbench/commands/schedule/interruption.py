"""Make Ctrl-C end a search instead of the command, which then reports the best so far."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from netbench.api.placement import Interrupted, never


@contextmanager
def interruptible() -> Iterator[Interrupted]:
    """Yield a function that tells whether Ctrl-C was pressed since the function was first called.

    Before the first call there is no result to keep, so Ctrl-C raises KeyboardInterrupt as usual.
    So does a second Ctrl-C. The one in between raises nothing, because compiled code turns
    KeyboardInterrupt into SystemError. A process that ignores SIGINT continues to ignore it.
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
