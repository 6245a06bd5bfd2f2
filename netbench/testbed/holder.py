"""The holder's end of a held network: a socket for other processes, and lines into its session.

A line carries one command at a time. Whoever asks for one has a free line until it ends.
"""

from __future__ import annotations

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
from netbench.testbed.frames import (
    ANSWER,
    ASK,
    COUNT,
    END,
    HANG_UP,
    LINE_WINDOW_BYTES,
    REQUEST,
    STOP,
    TAKEN,
    FrameReader,
    frame,
    json_frame,
)

NUM_LINES = 20
"""Commands at once in a held network; each has a line. A line takes two of UML's interrupts, of
which it has 64: the 25th could not be opened."""

LOOK_S = 0.2
"""How often it is looked whether someone whose command takes no input is still there, seconds."""

CHUNK_BYTES = 1 << 16
"""Taken from a socket at once, bytes."""


def address_of(name: str) -> str:
    """The abstract name of a held network's socket."""
    return f"\0netbench-{os.geteuid()}/{name}"


def peer_uid(connection: socket.socket) -> int:
    """The user whose process is at the other end."""
    credentials = struct.Struct("3i")  # process, user, group
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(found)[1])


def listen(name: str) -> socket.socket:
    """A socket with the name of the network; not listening yet, so it is not seen yet."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address_of(name))
    except OSError as error:
        listener.close()
        raise UsageError(
            f'a network named "{name}" is held already ({error.strerror}); '
            "see it with: netbench net shell"
        ) from error
    return listener


class Holder:
    """Serves the sockets of a held network from threads."""

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
        with connection, suppress(OSError, TestbedError):  # it has gone, or talks nonsense
            if peer_uid(connection) != os.geteuid():
                return
            reader = FrameReader()
            frames: list[tuple[bytes, bytes]] = []
            while not frames:
                data = connection.recv(CHUNK_BYTES)
                if not data:
                    return
                frames += reader.feed(data)
            (kind, payload), rest = frames[0], frames[1:]
            if kind == ASK:
                connection.sendall(json_frame(ANSWER, self._about))
            elif kind == STOP:
                self._events.put({"event": "stop"})
                connection.recv(1)  # closed by this process's end
            elif kind == REQUEST:
                self._relay(connection, reader, payload, rest)

    def _relay(
        self,
        connection: socket.socket,
        reader: FrameReader,
        request: bytes,
        rest: Sequence[tuple[bytes, bytes]],
    ) -> None:
        try:
            line = self._free.get(block=json.loads(request)["wait"])
        except queue.Empty:
            words = f"{NUM_LINES} commands are running in this network; end one of them first"
            connection.sendall(json_frame(END, {"error": words}))
            return
        line.begin(connection, request)
        with suppress(OSError, TestbedError):
            for kind, payload in rest:
                line.pass_on(connection, kind, payload)
            while data := connection.recv(CHUNK_BYTES):
                for kind, payload in reader.feed(data):
                    line.pass_on(connection, kind, payload)
        line.pass_on(connection, HANG_UP, b"")


class Line(threading.Thread):
    """One line into the session: passes on what comes out of it, always; and what goes in, no
    faster than it is taken."""

    def __init__(self, stream: socket.socket, free: queue.SimpleQueue[Line]) -> None:
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
        """A frame for the command of `user`, unless that has ended: the line may have another.

        HANG_UP does not wait behind what the command does not read, and no frame is left half sent
        when `user` goes meanwhile: what does not fit the window is several frames. Raises OSError
        when `user` has gone and there is no room.
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
                        raise BrokenPipeError  # what follows must not be passed on either
                    self._taken.wait(LOOK_S)
                self._on_the_way += len(piece)
            self._stream.sendall(piece)

    def run(self) -> None:
        """Until the session ends."""
        reader = FrameReader()
        with suppress(OSError):
            while data := self._stream.recv(CHUNK_BYTES):
                for kind, payload in reader.feed(data):
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
        # Once the connection has gone the rest is thrown away: the next must find nothing of it.
        with suppress(OSError):
            user.sendall(frame(kind, payload))
        if kind == END:
            self._user = None
            hang_up(user)
            self._free.put(self)


def hang_up(connection: socket.socket) -> None:
    """Tell the other end that nothing more comes or is taken."""
    with suppress(OSError):  # the other end was faster
        connection.shutdown(socket.SHUT_RDWR)


def _has_gone(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, 0)  # the end and errors are always told
    return bool(poll.poll(0))
