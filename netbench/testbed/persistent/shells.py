"""Commands inside a persistent network: on a terminal or on pipes, one at a time per line.

A line is a byte stream into the session (a socket, or a serial line of the guest) that carries
`frames`: a request, then input in one direction and output in the other, then the end.
"""

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

from netbench.testbed.interface import NodeAddress
from netbench.testbed.namespaces import named_command, namespace_path
from netbench.testbed.persistent.frames import (
    CHUNK_BYTES,
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

LINGER_S = 0.1
"""Time to wait for the rest of an ended command's output, seconds. Output may still be on its way
through a terminal; but a process left in the background keeps it open for ever."""

KEPT_VARIABLES = ("UV_USE_IO_URING",)
"""Variables of the session that its kernel needs: they win over those of a request."""


def serve_line(line: int, nodes: Sequence[NodeAddress]) -> None:
    """Carry out requests one by one until the line ends."""
    reader = FrameReader()
    with suppress(BrokenPipeError):  # the line ended before its command did
        while data := _read(line):
            pending = list(reader.feed(data))
            while pending:
                kind, payload = pending.pop(0)
                if kind == REQUEST:  # other frames are for a command that has ended
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
    """Return the command that runs `argv` in a node; each of its parts executes the next."""
    return ["nsenter", f"--net={namespace_path(node.index)}", "--", *named_command(node, argv)]


class Command:
    """A running command, with our ends of its terminal or pipes."""

    def __init__(self, request: Mapping[str, Any], node: NodeAddress) -> None:
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._size: Sequence[int] | None = request["size"]
        self._unwritten = bytearray()
        self._input_ends = False
        self._patience_s: float = request["patience_s"]
        self._owed_bytes = 0
        self._kill_at_s: float | None = None
        command = node_command(node, request["argv"])
        if self._size is None:
            (there, self._input), (out, out_there), (err, err_there) = (os.pipe() for _ in range(3))
            inner, self._outputs = (there, out_there, err_there), {out: OUTPUT, err: ERRORS}
        else:
            self._input, end = pty.openpty()
            _set_size(self._input, self._size)
            inner, self._outputs = (end, end, end), {self._input: OUTPUT}
            command = ["setsid", "--ctty", *command]
        # A missing or unreadable directory does not keep a command from running.
        directory = request["directory"] if os.path.isdir(request["directory"]) else "/"  # noqa: PTH112
        self._process = subprocess.Popen(
            command,
            stdin=inner[0],
            stdout=inner[1],
            stderr=inner[2],
            cwd=directory,
            env={**request["environment"], **kept},
            start_new_session=self._size is None,
        )
        for fd in {*inner}:
            os.close(fd)
        self._ended = os.pidfd_open(self._process.pid)
        for fd in {self._input, *self._outputs}:
            os.set_blocking(fd, False)

    @property
    def status(self) -> int:
        """Exit status as a shell gives it: 128 + the signal that killed the command."""
        status = self._process.wait()
        return 128 - status if status < 0 else status

    def follow(
        self, line: int, reader: FrameReader, pending: list[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes]]:
        """Pass on input and output until the command ends. Return the frames that came after it."""
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
                    # Not acknowledged until written: input waits for the command, HANG_UP does not.
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
        """Acknowledge everything that was read, so that more may come."""
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
        except OSError:  # the command does not read its input
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
        except OSError:  # no process has the terminal open any more
            data = b""
        kind = self._outputs[fd]
        if data:
            _write(line, frame(kind, data))
            return
        del self._outputs[fd]
        if fd != self._input:
            os.close(fd)

    def close(self) -> None:
        """Close all descriptors. A closed terminal sends SIGHUP to background processes."""
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
