"""The near end of a command in a persistent network: this process's terminal or pipes."""

import os
import signal
import socket
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from netbench.testbed.persistent.channel import end_status
from netbench.testbed.persistent.frames import (
    CHUNK_BYTES,
    END,
    ERRORS,
    INPUT,
    WINDOW,
    Frames,
    frame,
    json_frame,
)

STDIN, STDOUT, STDERR = 0, 1, 2


def terminal_size() -> tuple[int, int] | None:
    """Return rows and columns if all three streams are a terminal, else None."""
    if not all(os.isatty(fd) for fd in (STDIN, STDOUT, STDERR)):
        return None
    size = os.get_terminal_size(STDOUT)
    return size.lines, size.columns


def attach(connection: socket.socket, size: tuple[int, int] | None) -> int:
    """Connect this process's streams to a command until it ends, and return its exit status.

    size: the one that the command was started with. Raises TestbedError when the network ends.
    """
    lock = threading.Lock()

    def send(data: bytes) -> None:
        with lock, suppress(OSError):  # the command has ended
            connection.sendall(data)

    def pass_in() -> None:
        with suppress(OSError):
            while data := os.read(STDIN, CHUNK_BYTES):
                send(frame(INPUT, data))
        send(frame(INPUT))

    sys.stdout.flush()
    # In a thread, so that input never delays output.
    threading.Thread(target=pass_in, daemon=True).start()
    if size is None:
        return _pass_out(connection)
    with _raw_terminal(), _on_resize(lambda: send(json_frame(WINDOW, terminal_size() or size))):
        return _pass_out(connection)


def _pass_out(connection: socket.socket) -> int:
    for kind, payload in Frames(connection):
        if kind == END:
            return end_status(payload)
        view = memoryview(payload)
        while view:
            view = view[os.write(STDERR if kind == ERRORS else STDOUT, view) :]
    raise AssertionError("frames end with END, or raise")


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Send every key to the command, including Ctrl-C."""
    before = termios.tcgetattr(STDIN)
    tty.setraw(STDIN)
    try:
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


@contextmanager
def _on_resize(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` whenever the terminal is resized, in a thread because it may wait for a lock."""

    def changed(signum: int, found: FrameType | None) -> None:
        threading.Thread(target=act, daemon=True).start()

    before = signal.signal(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
