"""The daemon of a persistent network: a socket for other processes, and lines into its session.

A line carries one command at a time. A client that asks for a command gets a free line until the
command ends.
"""

import json
import os
import queue
import select
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from netbench.errors import TestbedError, UsageError
from netbench.testbed.persistent.frames import (
    ANSWER,
    ASK,
    COUNT,
    END,
    HANG_UP,
    LINE_WINDOW_BYTES,
    POLL_S,
    REQUEST,
    STOP,
    TAKEN,
    Frames,
    frame,
    json_frame,
)

NUM_LINES = 20
"""Commands that can run at once; each has a line. A line takes two of the 64 interrupts of UML: the
25th line could not be opened."""


def address_of(name: str) -> str:
    """Return the abstract name of a network's socket."""
    return f"\0netbench-{os.geteuid()}/{name}"


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    credentials = struct.Struct("3i")  # process, user, group
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(found)[1])


def listen(name: str) -> socket.socket:
    """Bind a socket to the name of the network. Clients do not see it before it listens."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address_of(name))
    except OSError as error:
        listener.close()
        raise UsageError(
            f'a network named "{name}" is open already ({error.strerror}); '
            "see it with: netbench net shell"
        ) from error
    return listener


class Daemon:
    """Serves the clients of a persistent network from threads."""

    def __init__(
        self,
        listener: socket.socket,
        lines: Sequence[socket.socket],
        about: Mapping[str, Any],
        events: queue.SimpleQueue[dict[str, Any] | None],
    ) -> None:
        self._listener = listener
        self._about = about
        self._events = events
        self._free: queue.SimpleQueue[Line] = queue.SimpleQueue()
        for stream in lines:
            line = Line(stream, self._free)
            line.start()
            self._free.put(line)

    def start(self) -> None:
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed: the end
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, TestbedError):  # it has gone, or sends no frames
            if peer_uid(connection) != os.geteuid():
                return
            frames = Frames(connection)
            kind, payload = next(frames)
            if kind == ASK:
                connection.sendall(json_frame(ANSWER, self._about))
            elif kind == STOP:
                self._events.put({"event": "stop"})
                connection.recv(1)  # the end of this process closes it
            elif kind == REQUEST:
                self._relay(connection, frames, payload)

    def _relay(self, connection: socket.socket, frames: Frames, request: bytes) -> None:
        try:
            line = self._free.get(block=json.loads(request)["wait"])
        except queue.Empty:
            error = f"{NUM_LINES} commands are running in this network; end one of them first"
            connection.sendall(json_frame(END, {"error": error}))
            return
        line.begin(connection, request)
        with suppress(OSError, TestbedError):
            for kind, payload in frames:
                line.pass_on(connection, kind, payload)
        line.pass_on(connection, HANG_UP, b"")


class Line(threading.Thread):
    """One line into the session. Output is passed on at once, input no faster than it is read."""

    def __init__(self, stream: socket.socket, free: "queue.SimpleQueue[Line]") -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._free = free
        self._user: socket.socket | None = None
        self._sending = threading.Lock()
        self._taken = threading.Condition()
        self._on_the_way = 0

    def begin(self, user: socket.socket, request: bytes) -> None:
        """Start a command for the connection `user`."""
        with self._sending:
            self._user = user
            self._send(frame(REQUEST, request))

    def pass_on(self, user: socket.socket, kind: bytes, payload: bytes) -> None:
        """Pass on a frame for the command of `user`, unless that command has ended.

        HANG_UP does not wait behind input that the command does not read. A payload that does not
        fit the window is sent as several frames, so none is left half sent when `user` goes. Raises
        OSError when `user` has gone and there is no room.
        """
        size = LINE_WINDOW_BYTES - len(frame(kind))
        for at in range(0, max(1, len(payload)), size):
            with self._sending:
                if self._user is user:
                    self._send(frame(kind, payload[at : at + size]), user, at_once=kind == HANG_UP)

    def _send(
        self, data: bytes, user: socket.socket | None = None, *, at_once: bool = False
    ) -> None:
        for at in range(0, len(data), LINE_WINDOW_BYTES):
            piece = data[at : at + LINE_WINDOW_BYTES]
            with self._taken:
                while not at_once and self._on_the_way + len(piece) > LINE_WINDOW_BYTES:
                    if user is not None and _has_gone(user):
                        raise BrokenPipeError  # the rest must not be passed on either
                    self._taken.wait(POLL_S)
                self._on_the_way += len(piece)
            self._stream.sendall(piece)

    def run(self) -> None:
        """Pass on output until the session ends."""
        with suppress(OSError, TestbedError):
            for kind, payload in Frames(self._stream):
                self._receive(kind, payload)
        if self._user is not None:
            hang_up(self._user)

    def _receive(self, kind: bytes, payload: bytes) -> None:
        if kind == TAKEN:
            with self._taken:
                self._on_the_way -= COUNT.unpack(payload)[0]
                self._taken.notify()
            return
        user = self._user
        assert user is not None
        # Once the connection has gone the rest is dropped: the next client must find nothing of it.
        with suppress(OSError):
            user.sendall(frame(kind, payload))
        if kind == END:
            self._user = None
            hang_up(user)
            self._free.put(self)


def hang_up(connection: socket.socket) -> None:
    """End the connection in both directions."""
    with suppress(OSError):  # the other end was faster
        connection.shutdown(socket.SHUT_RDWR)


def _has_gone(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, 0)  # hang-ups and errors are always reported
    return bool(poll.poll(0))
