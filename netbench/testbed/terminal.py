"""The near end of a command in a held network: this process's terminal, or its pipes."""

from __future__ import annotations

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

from netbench.testbed.frames import END, ERRORS, INPUT, WINDOW, frame, json_frame
from netbench.testbed.hold import end_status, frames_of

CHUNK_BYTES = 1 << 15

STDIN, STDOUT, STDERR = 0, 1, 2


def terminal_size() -> tuple[int, int] | None:
    """Rows and columns, if all three streams are a terminal; a command on it can be one there."""
    if not all(os.isatty(fd) for fd in (STDIN, STDOUT, STDERR)):
        return None
    size = os.get_terminal_size(STDOUT)
    return size.lines, size.columns


def attach(connection: socket.socket, size: tuple[int, int] | None) -> int:
    """Join this process's streams with a command until it ends: its exit status.

    size: as the command was started with. Raises TestbedError when the network goes.
    """
    lock = threading.Lock()

    def send(data: bytes) -> None:
        with lock, suppress(OSError):  # it has ended
            connection.sendall(data)

    def pass_in() -> None:
        with suppress(OSError):
            while data := os.read(STDIN, CHUNK_BYTES):
                send(frame(INPUT, data))
        send(frame(INPUT))

    sys.stdout.flush()
    # In a thread, so that what comes out is never kept waiting by what goes in.
    threading.Thread(target=pass_in, daemon=True).start()
    if size is None:
        return _pass_out(connection)
    with _raw_terminal(), _on_resize(lambda: send(json_frame(WINDOW, terminal_size() or size))):
        return _pass_out(connection)


def _pass_out(connection: socket.socket) -> int:
    for kind, payload in frames_of(connection):
        if kind == END:
            return end_status(payload)
        view = memoryview(payload)
        while view:
            view = view[os.write(STDERR if kind == ERRORS else STDOUT, view) :]
    raise AssertionError("frames end with END, or raise")


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Every key goes to the command, Ctrl-C as well."""
    before = termios.tcgetattr(STDIN)
    tty.setraw(STDIN)
    try:
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


@contextmanager
def _on_resize(act: Callable[[], None]) -> Iterator[None]:
    """`act` whenever the terminal changes its size; in a thread, which may wait for a lock."""

    def changed(signum: int, found: FrameType | None) -> None:
        threading.Thread(target=act, daemon=True).start()

    before = signal.signal(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
