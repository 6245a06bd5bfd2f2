"""Play a trace on a network held open on this machine, from another process."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from netbench.errors import TestbedError
from netbench.network.replay import Played, Playing
from netbench.network.trace import Change, Step
from netbench.testbed.frames import END, ERRORS, INPUT, OUTPUT, frame
from netbench.testbed.hold import CHUNK_BYTES, Held, end_status, frames_of
from netbench.testbed.replay_session import request

LOOK_S = 0.2
"""How often the progress is told, seconds."""

BACK_S = 60.0
"""For the nodes to get back what they had, seconds."""

RESTORE_S = 30.0
"""For the same after this process was killed, seconds: then the session is."""

SESSION = "netbench.testbed.replay_session"


class HeldChannel:
    """Lines to and from a command in a held network: `netbench.network.replay.Channel`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
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
            raise TestbedError(f"the replay did not end within {timeout_s:g} s") from None
        if self._status:
            words = " | ".join(self._errors.decode(errors="replace").strip().splitlines()[-3:])
            raise TestbedError(f"the replay ended with {self._status}: {words or 'see above'}")

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


def replay_held(
    held: Held,
    changes: Sequence[Change],
    progress: Callable[[str], None],
    end: Callable[[Played], None] = lambda played: None,
) -> Played:
    """Play a trace on all nodes and routers of a held network, which then has its own links again.

    end: called before that. late_s is of all nodes together, which have one clock.
    Raises NetworkError, TestbedError.
    """
    argv = (sys.executable, "-m", SESSION)
    times_s = sorted({change.time_s for change in changes})
    with held.start(0, argv, None, wait=True, patience_s=RESTORE_S) as connection:
        channel = HeldChannel(connection)
        channel.send(request(held.network, held.node_names, changes))
        playing = Playing({0: channel}, {0: [Step(time_s=t, text="") for t in times_s]})
        try:
            played = _played(held, playing, progress)
            end(played)
        except BaseException:
            with suppress(TestbedError):  # the first error is what counts
                _finish(channel, playing)
            raise
        _finish(channel, playing)
    return played


def _played(held: Held, playing: Playing, progress: Callable[[str], None]) -> Played:
    while not playing.wait(LOOK_S):
        progress(f"replaying on {len(held.node_names)} nodes: {playing.progress}")
    found = playing.result()[0]
    if isinstance(found, Exception):
        raise found
    return replace(found, clock_error_s=0.0)


def _finish(channel: HeldChannel, playing: Playing) -> None:
    channel.close()
    playing.wait(BACK_S)  # it reads the channel until then
    channel.finish(BACK_S)
