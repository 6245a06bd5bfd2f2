"""Frames: a terminal's bytes and its control messages over one byte stream.

A frame is a letter, the length of its payload (4 bytes, most significant first) and the payload.
The same frames cross the socket of a persistent network and the lines into its session, in both
cases between two processes of one user.
"""

import json
import math
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from netbench.errors import TestbedError

REQUEST = b"R"
"""Run a command: JSON `node`, `argv`, `directory`, `environment`; `size` [rows, columns] of a
terminal, null for pipes; `wait`: wait for a free line; `patience_s`: time from HANG_UP until the
command is killed."""
INPUT = b"I"
"""Bytes for the command; an empty payload ends its input."""
WINDOW = b"W"
"""JSON [rows, columns]: the terminal has changed its size."""
HANG_UP = b"H"
"""The client has gone."""
OUTPUT = b"O"
ERRORS = b"E"
"""Bytes the command wrote to its standard output, and error."""
END = b"X"
"""JSON `status` of the command, or `error`: why there is none. The last frame of an answer."""
TAKEN = b"T"
"""Number of bytes that were read off the line and, if input, written to the command (4 bytes). As
many more may follow (`LINE_WINDOW_BYTES`)."""
ASK = b"Q"
"""To the daemon: describe the network."""
ANSWER = b"A"
"""JSON description of the network."""
STOP = b"S"
"""To the daemon: end."""

KINDS = REQUEST + INPUT + WINDOW + HANG_UP + OUTPUT + ERRORS + END + TAKEN + ASK + ANSWER + STOP

MAX_PAYLOAD_BYTES = 1 << 20
"""Longest payload accepted. The longest sent is a request: arguments and environment."""

LINE_WINDOW_BYTES = 2048
"""Limit of bytes on their way into a session, HANG_UP excepted. User-Mode Linux throttles a serial
line that exceeds a terminal's buffer of 4 KiB, and never reads it again."""

CHUNK_BYTES = 1 << 16
"""Size of a read, bytes."""

POLL_S = 0.2
"""Polling interval for detecting a disconnected client, or a closed channel, seconds."""

COUNT = struct.Struct("!I")

_HEADER = struct.Struct("!cI")


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Return one frame as bytes. Raises TestbedError if it is too long."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise TestbedError(f"{len(payload)} bytes do not fit a frame of {MAX_PAYLOAD_BYTES}")
    return _HEADER.pack(kind, len(payload)) + payload


def json_frame(kind: bytes, data: Any) -> bytes:
    """Return a frame with JSON data."""
    return frame(kind, json.dumps(data).encode())


class FrameReader:
    """Assembles frames from the pieces of a stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield every frame that `data` completes. Raises TestbedError for other data."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, size = _HEADER.unpack_from(self._buffer)
            if kind not in KINDS or size > MAX_PAYLOAD_BYTES:
                raise TestbedError(f"not a frame: {bytes(self._buffer[:16])!r}")
            end = _HEADER.size + size
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield kind, payload


class Frames:
    """Iterator over the frames from a connection. It never stops: END is the last one of an answer.

    end_s: deadline by the monotonic clock. After it `next` raises TimeoutError; a later deadline
    continues. It raises TestbedError when the connection ends.
    """

    def __init__(self, connection: socket.socket, end_s: float = math.inf) -> None:
        self.end_s = end_s
        self._connection = connection
        self._reader = FrameReader()
        self._received: deque[tuple[bytes, bytes]] = deque()

    def __iter__(self) -> "Frames":
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        while not self._received:
            if self.end_s < math.inf:
                left_s = max(0.0, self.end_s - time.monotonic())
                if not select.select([self._connection], [], [], left_s)[0]:
                    raise TimeoutError
            data = b""
            with suppress(ConnectionResetError):
                data = self._connection.recv(CHUNK_BYTES)
            if not data:
                raise TestbedError("the persistent network has gone")
            self._received += self._reader.feed(data)
        return self._received.popleft()
