"""Lines to and from a command in a network held open."""

from __future__ import annotations

import socket
from contextlib import suppress

from netbench.errors import TestbedError
from netbench.testbed.frames import END, ERRORS, INPUT, OUTPUT, frame
from netbench.testbed.hold import end_status, frames_of
from netbench.testbed.holder import CHUNK_BYTES


class HeldChannel:
    """A command that `Held.start` started on pipes: `netbench.network.replay.Channel`.

    what: of the command, for messages.
    """

    def __init__(self, connection: socket.socket, what: str) -> None:
        self._connection = connection
        self._what = what
        self._frames = frames_of(connection)
        self._received = bytearray()
        self._errors = bytearray()
        self._status: int | None = None

    def send(self, line: str) -> None:
        """Send one line (without its newline)."""
        data = line.encode() + b"\n"
        try:
            for at in range(0, len(data), CHUNK_BYTES):
                self._connection.sendall(frame(INPUT, data[at : at + CHUNK_BYTES]))
        except OSError as error:
            raise TestbedError(f"the held network has gone: {error}") from error

    def receive(self) -> str | None:
        """The next line; None when the command has ended. Raises TestbedError."""
        while b"\n" not in self._received:
            if not self._take():
                return None
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        """The command reads the end of its input."""
        with suppress(OSError):  # it was faster
            self._connection.sendall(frame(INPUT))

    def finish(self, timeout_s: float) -> None:
        """Wait for the end of the command, after `close`. Raises TestbedError where it failed."""
        self._connection.settimeout(timeout_s)
        try:
            while self._take():
                pass
        except TimeoutError:
            raise TestbedError(f"{self._what} did not end within {timeout_s:g} s") from None
        if self._status:
            words = " | ".join(self._errors.decode(errors="replace").strip().splitlines()[-3:])
            raise TestbedError(f"{self._what} ended with {self._status}: {words or 'see above'}")

    def _take(self) -> bool:
        if self._status is not None:
            return False
        kind, payload = next(self._frames)
        if kind == END:
            self._status = end_status(payload)
            return False
        streams = {OUTPUT: self._received, ERRORS: self._errors}
        streams[kind] += payload
        return True
