"""Frames: how a terminal's bytes, and what goes on beside them, travel over one byte stream.

A frame is a letter, the length of its payload (4 bytes, most significant first) and the payload.
The same frames cross the socket of a held network and the lines into its session, in both cases
between two processes of one user.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from netbench.errors import TestbedError

REQUEST = b"R"
"""To run a command: JSON `node`, `argv`, `directory`, `environment`; `size` [rows, columns] for a
terminal, null for pipes; `wait`: until a line is free; `patience_s`: from HANG_UP until it
is killed."""
INPUT = b"I"
"""Bytes for the command; none: its input ends."""
WINDOW = b"W"
"""JSON [rows, columns]: the terminal has changed its size."""
HANG_UP = b"H"
"""Whoever asked has gone."""
OUTPUT = b"O"
ERRORS = b"E"
"""Bytes the command wrote to its standard output, and error."""
END = b"X"
"""JSON `status` of the command, or `error`: why there is none. The last frame of an answer."""
TAKEN = b"T"
"""How many bytes have been read off the line, and input among them written to the command, 4 bytes:
so many more may follow (`LINE_WINDOW_BYTES`)."""
ASK = b"Q"
"""To the holder: what is held?"""
ANSWER = b"A"
"""JSON: what is held."""
STOP = b"S"
"""To the holder: end."""

KINDS = REQUEST + INPUT + WINDOW + HANG_UP + OUTPUT + ERRORS + END + TAKEN + ASK + ANSWER + STOP

MAX_PAYLOAD_BYTES = 1 << 20
"""Longest payload read. Those written are a request at most: arguments and environment."""

LINE_WINDOW_BYTES = 2048
"""On their way into a session at most, but for a HANG_UP. User-Mode Linux never reads a serial line
again that had more than a terminal's buffer holds, 4 KiB: it throttles the line and forgets to
listen again."""

COUNT = struct.Struct("!I")

_HEADER = struct.Struct("!cI")


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame as bytes. Raises TestbedError for one too long to be read again."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise TestbedError(f"{len(payload)} bytes do not fit a frame of {MAX_PAYLOAD_BYTES}")
    return _HEADER.pack(kind, len(payload)) + payload


def json_frame(kind: bytes, data: Any) -> bytes:
    """A frame with JSON data."""
    return frame(kind, json.dumps(data).encode())


class FrameReader:
    """Puts frames together from the pieces of a stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every frame that is complete with `data`. Raises TestbedError where there is none."""
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
