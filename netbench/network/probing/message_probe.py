"""Time messages over one connection. Runs alone on the nodes: one file, Python 3.9, no packages.

It is sent to `python -I -S -` on standard input, with `main(JOB)` as its last line, as `probe` is.
JOB has the arguments of `serve` or `send` as JSON, and `op`, the name of the function. The answer
is one line of JSON: moments of CLOCK_MONOTONIC, which the two nodes must share.
"""

from __future__ import annotations

import hmac
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable

PORT = 26263
"""TCP port: unregistered, and below the ephemeral ports."""

DEADLINE_S = 600.0
"""Deadline to connect, and of any single receive, seconds."""

TOKEN_BYTES = 16
CHUNK_BYTES = 1 << 20


def serve(address: str, token: str, sizes: list[int]) -> dict[str, object]:
    """Receive messages of these sizes, bytes, and answer each with one byte.

    Returns "ends_s": when the last byte of each was read.
    """
    buffer, ends_s = bytearray(CHUNK_BYTES), []
    with socket.create_server((address, PORT)) as listener:
        listener.settimeout(DEADLINE_S)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(DEADLINE_S)
            said = connection.recv(TOKEN_BYTES, socket.MSG_WAITALL)
            if not hmac.compare_digest(said, bytes.fromhex(token)):
                raise ConnectionError("a connection without the token")
            connection.sendall(b"!")
            for size in sizes:
                left = size
                while left:
                    count = connection.recv_into(buffer, min(left, CHUNK_BYTES))
                    if not count:
                        raise ConnectionError(f"the sender left {left} of {size} bytes early")
                    left -= count
                ends_s.append(time.monotonic())
                connection.sendall(b"!")
    return {"ends_s": ends_s}


def send(address: str, token: str, sizes: list[int], idle_s: list[float]) -> dict[str, object]:
    """Send messages of these sizes, each after an idle time that follows the answer before it.

    Returns "starts_s": when each was handed to the kernel.
    """
    starts_s, block = [], bytes(max(sizes))
    with _connect(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(bytes.fromhex(token))
        connection.recv(1)
        for size, wait_s in zip(sizes, idle_s):  # noqa: B905 (Python 3.9)
            time.sleep(wait_s)
            starts_s.append(time.monotonic())
            connection.sendall(memoryview(block)[:size])
            if not connection.recv(1):
                raise ConnectionError("the receiver has left")
    return {"starts_s": starts_s}


def _connect(address: str) -> socket.socket:
    """Connect to a server that may still be starting."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=DEADLINE_S)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def _leave_with_reader() -> None:
    """End this process, and free its port, when nobody reads its output any more."""
    watch = select.poll()
    watch.register(1, 0)
    watch.poll()
    os._exit(1)


def main(job: str) -> None:
    """Run the job: the entry point on the node."""
    threading.Thread(target=_leave_with_reader, daemon=True).start()
    arguments = json.loads(job)
    operations: dict[str, Callable[..., dict[str, object]]] = {"serve": serve, "send": send}
    try:
        print(json.dumps(operations[arguments.pop("op")](**arguments)))
    except OSError as error:
        sys.exit(f"{type(error).__name__}: {error}")
