"""Commands for people, inside a held network: on a terminal or on pipes, one at a time per line.

A line is a byte stream into the session (a socket, or a serial line of the guest) that carries
`frames`: a request, then input one way and output the other, then the end.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from netbench.testbed.frames import (
    COUNT,
    END,
    ERRORS,
    HANG_UP,
    INPUT,
    OUTPUT,
    REQUEST,
    TAKEN,
    WINDOW,
    FrameReader,
    frame,
    json_frame,
)
from netbench.testbed.namespaces import namespace_path
from netbench.testbed.transport import NodeAddress

CHUNK_BYTES = 1 << 15

LINGER_S = 0.1
"""After its end, what a command wrote may still be on its way through a terminal; and what it left
in the background holds its output open, for ever."""

KEPT_VARIABLES = ("UV_USE_IO_URING",)
"""Of the session, whatever the environment of a request says: what its kernel needs."""

IN_NODE = 'echo "$0" > /proc/sys/kernel/hostname; exec "$@"'
"""In a host name space of its own: a prompt then says where it is."""


def serve_line(line: int, nodes: Sequence[NodeAddress]) -> None:
    """Carry out one request after the other, until the line ends."""
    reader = FrameReader()
    with suppress(BrokenPipeError):  # it ended before its command did
        while data := _read(line):
            pending = list(reader.feed(data))
            while pending:
                kind, payload = pending.pop(0)
                if kind == REQUEST:  # others are for a command that has ended
                    pending = _carry_out(line, reader, json.loads(payload), nodes, pending)


def _carry_out(
    line: int,
    reader: FrameReader,
    request: Mapping[str, Any],
    nodes: Sequence[NodeAddress],
    pending: list[tuple[bytes, bytes]],
) -> list[tuple[bytes, bytes]]:
    try:
        command = Command(request, nodes[request["node"]])
    except OSError as error:
        _write(line, json_frame(END, {"error": f"cannot start a command: {error}"}))
        return []
    try:
        left = command.follow(line, reader, pending)
        command.acknowledge(line)
    finally:
        command.close()
    _write(line, json_frame(END, {"status": command.status}))
    return left


def node_command(node: NodeAddress, argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` in a node; all of it one process in the end."""
    inside = ["nsenter", f"--net={namespace_path(node.index)}", "--", "unshare", "--uts", "--"]
    return [*inside, "sh", "-c", IN_NODE, node.name, *argv]


class Command:
    """A running command of a request, and its ends of a terminal or of pipes."""

    def __init__(self, request: Mapping[str, Any], node: NodeAddress) -> None:
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._size: Sequence[int] | None = request["size"]
        self._unwritten = bytearray()
        self._input_ends = False
        self._patience_s: float = request["patience_s"]
        self._owed_bytes = 0
        self._kill_at_s: float | None = None
        start = self._start_on_pipes if self._size is None else self._start_on_terminal
        # What is not there any more, or not for this user, is no reason not to run.
        directory = request["directory"] if os.path.isdir(request["directory"]) else "/"  # noqa: PTH112
        start(node_command(node, request["argv"]), {**request["environment"], **kept}, directory)
        self._ended = os.pidfd_open(self._process.pid)
        for fd in {self._input, *self._outputs} - {-1}:
            os.set_blocking(fd, False)

    def _start_on_terminal(
        self, command: list[str], environment: Mapping[str, str], directory: str
    ) -> None:
        terminal, inner = pty.openpty()
        assert self._size is not None
        _set_size(terminal, self._size)
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *command],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=directory,
            env=environment,
        )
        os.close(inner)
        self._input, self._outputs = terminal, {terminal: OUTPUT}

    def _start_on_pipes(
        self, command: list[str], environment: Mapping[str, str], directory: str
    ) -> None:
        (there, self._input), (out, out_there), (err, err_there) = os.pipe(), os.pipe(), os.pipe()
        self._process = subprocess.Popen(
            command,
            stdin=there,
            stdout=out_there,
            stderr=err_there,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
        for fd in (there, out_there, err_there):
            os.close(fd)
        self._outputs = {out: OUTPUT, err: ERRORS}

    @property
    def status(self) -> int:
        """Of the command that ended, as a shell gives it: 128 + the signal that killed it."""
        status = self._process.wait()
        return 128 - status if status < 0 else status

    def follow(
        self, line: int, reader: FrameReader, pending: list[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes]]:
        """Pass on input and output until the command ends; frames that came after the last."""
        ended_s: float | None = None
        line_ended = False
        while True:
            while pending:
                self._take(*pending.pop(0))
            if self._input_ends and not self._unwritten:
                self._close_input()
            if not self._unwritten:
                self.acknowledge(line)
            readable = [*self._outputs]
            if ended_s is None:
                readable.append(self._ended)
                if not line_ended:
                    readable.append(line)
            writable = [self._input] if self._unwritten else []
            ready, can_write, _ = select.select(readable, writable, [], self._wait_s(ended_s))
            if ended_s is not None and not ready:
                return pending
            if can_write:
                self._write_input()
            for fd in ready:
                if fd == self._ended:
                    ended_s = time.monotonic()
                    self._unwritten.clear()
                elif fd != line:
                    self._pass_on(fd, line)
                elif data := os.read(line, CHUNK_BYTES):
                    # Not acknowledged until written: the one who types waits, a HANG_UP does not.
                    self._owed_bytes += len(data)
                    pending += reader.feed(data)
                else:
                    line_ended = True
                    self._take(HANG_UP, b"")
            if self._kill_at_s is not None and time.monotonic() > self._kill_at_s:
                self._signal(signal.SIGKILL)
            if ended_s is not None and not self._outputs:
                return pending

    def acknowledge(self, line: int) -> None:
        """Let as much more come as was read."""
        if self._owed_bytes:
            _acknowledge(line, self._owed_bytes)
        self._owed_bytes = 0

    def _wait_s(self, ended_s: float | None) -> float | None:
        if ended_s is not None:
            return LINGER_S
        return None if self._kill_at_s is None else max(0.0, self._kill_at_s - time.monotonic())

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == INPUT and payload and not self._input_ends:
            self._unwritten += payload
        elif kind == INPUT and self._size is None:
            self._input_ends = True
        elif kind == WINDOW and self._size is not None:
            _set_size(self._input, json.loads(payload))
        elif kind == HANG_UP and self._kill_at_s is None:
            self._kill_at_s = time.monotonic() + self._patience_s
            self._signal(signal.SIGHUP)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _write_input(self) -> None:
        try:
            count = os.write(self._input, self._unwritten)
        except BlockingIOError:
            return
        except OSError:  # nobody reads it
            self._unwritten.clear()
            return
        del self._unwritten[:count]

    def _close_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
        self._input = -1

    def _pass_on(self, fd: int, line: int) -> None:
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal that nobody has open any more
            data = b""
        kind = self._outputs[fd]
        if data:
            _write(line, frame(kind, data))
            return
        del self._outputs[fd]
        if fd != self._input:
            os.close(fd)

    def close(self) -> None:
        """Give back what is open; a terminal hangs up on what is left in the background."""
        for fd in {self._input, self._ended, *self._outputs} - {-1}:
            os.close(fd)


def _set_size(terminal: int, size: Sequence[int]) -> None:
    rows, columns = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _read(line: int) -> bytes:
    data = os.read(line, CHUNK_BYTES)
    if data:
        _acknowledge(line, len(data))
    return data


def _acknowledge(line: int, num_bytes: int) -> None:
    _write(line, frame(TAKEN, COUNT.pack(num_bytes)))


def _write(line: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(line, view) :]
