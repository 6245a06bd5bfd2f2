"""Lines to and from a command in a persistent network."""

import json
import socket
import time
from contextlib import AbstractContextManager, suppress

from netbench.errors import TestbedError
from netbench.testbed.lines import LineBuffer, last_lines
from netbench.testbed.persistent.frames import (
    CHUNK_BYTES,
    END,
    ERRORS,
    INPUT,
    OUTPUT,
    POLL_S,
    Frames,
    frame,
)

KEPT_ERROR_BYTES = 1 << 16
"""Bytes kept of the end of a command's stderr."""


def end_status(payload: bytes) -> int:
    """Return the exit status of an END frame. Raises TestbedError if the command did not start."""
    end = json.loads(payload)
    if "error" in end:
        raise TestbedError(end["error"])
    return int(end["status"])


class FrameChannel(AbstractContextManager["FrameChannel"]):
    """A command on pipes, over its connection: a `netbench.network.nodes.Channel`.

    The connection is closed at the end of the context. what: names the command in messages.
    """

    def __init__(self, connection: socket.socket, what: str) -> None:
        self._connection = connection
        self._what = what
        self._frames = Frames(connection)
        self._lines = LineBuffer()
        self._errors = b""
        self._status: int | None = None
        self._is_closed = False

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(self, line: str) -> None:
        """Send one line (without its newline)."""
        data = line.encode() + b"\n"
        try:
            for at in range(0, len(data), CHUNK_BYTES):
                self._connection.sendall(frame(INPUT, data[at : at + CHUNK_BYTES]))
        except OSError as error:
            raise TestbedError(f"the persistent network has gone: {error}") from error

    def receive(self) -> str | None:
        """Return the next line, or None after the command's end or `close`. Raises TestbedError."""
        while (line := self._lines.take()) is None:
            if self._is_closed or self._status is not None:
                return None
            with suppress(TimeoutError):
                self._take(time.monotonic() + POLL_S)
        return line

    def close(self) -> None:
        """End the input of the command and `receive`, from any thread."""
        self._is_closed = True
        with suppress(OSError):  # the command was faster
            self._connection.sendall(frame(INPUT))

    def finish(self, timeout_s: float) -> None:
        """Wait for the end of the command, after `close`. Raises TestbedError if it failed."""
        end_s = time.monotonic() + timeout_s
        try:
            while self._status is None:
                self._take(end_s)
        except TimeoutError:
            raise TestbedError(f"{self._what} did not end within {timeout_s:g} s") from None
        if self._status:
            said = last_lines(self._errors)
            raise TestbedError(f"{self._what} ended with {self._status}: {said or 'see above'}")

    def _take(self, end_s: float) -> None:
        self._frames.end_s = end_s
        kind, payload = next(self._frames)
        if kind == END:
            self._status = end_status(payload)
        elif kind == OUTPUT:
            self._lines.feed(payload)
        elif kind == ERRORS:
            self._errors = (self._errors + payload)[-KEPT_ERROR_BYTES:]
