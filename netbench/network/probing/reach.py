"""Reach every other node by TCP. Runs alone on a node: one file, Python 3.9, no packages.

Lines of JSON. From the controller, then from the node, in turns:

    {"token": hex, "addresses": by node, "node": of this one, "port": n}
    {"port": that the kernel chose, "busy": why the given port cannot be listened on, or ""}
    {"ports": chosen ones by node; null: do not try it}
    {"failed": [[node, part, reason], ..]}     part: "port" | "any port" | "frames"

The node listens on its own address until its input ends, and only answers clients that know the
token.
"""

from __future__ import annotations

import errno
import hmac
import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

TOKEN_BYTES = 16
FULL_BYTES = 1 << 16
"""Sent both ways: dozens of full frames."""

ANSWER_S = 5.0
"""Deadline to connect, for a byte, and for `FULL_BYTES`, seconds. Lost packets were sent again."""

MAX_THREADS = 64


def listen(address: str, port: int) -> socket.socket:
    """Return a listening socket; port 0: the kernel chooses one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=1024)


def serve(listener: socket.socket, secret: bytes) -> None:
    """Answer clients until the process ends: a byte for the token, then `FULL_BYTES`, sent back."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection, secret), daemon=True).start()


def _answer(connection: socket.socket, secret: bytes) -> None:
    with suppress(OSError, EOFError), connection:
        connection.settimeout(ANSWER_S)
        if hmac.compare_digest(_receive(connection, len(secret)), secret):
            connection.sendall(b"!")
            connection.sendall(_receive(connection, FULL_BYTES))


def _receive(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        more = connection.recv(num_bytes - len(data))
        if not more:
            raise EOFError("the connection was closed")
        data += more
    return data


def attempt(address: str, port: int, chosen: int, secret: bytes) -> tuple[str, str]:
    """Reach a node at both ports, with full frames. Return what failed and why; "" = nothing."""
    part = "port"
    try:
        for part, number in (("port", port), ("any port", chosen)):
            with socket.create_connection((address, number), timeout=ANSWER_S) as connection:
                connection.sendall(secret)
                _receive(connection, 1)
                if part == "any port":
                    part = "frames"
                    connection.sendall(bytes(FULL_BYTES))
                    _receive(connection, FULL_BYTES)
    except TimeoutError:
        return part, f"no answer within {ANSWER_S:g} s"
    except EOFError as error:
        return part, str(error)
    except OSError as error:
        return part, os.strerror(error.errno) if error.errno else str(error)
    return "", ""


def reach(
    node: int, addresses: Sequence[str], port: int, ports: Sequence[int | None], secret: bytes
) -> list[tuple[int, str, str]]:
    """Reach all other nodes that listen, side by side. Return node, part and reason of failures."""
    others = [i for i, chosen in enumerate(ports) if i != node and chosen is not None]
    if not others:
        return []
    with ThreadPoolExecutor(min(MAX_THREADS, len(others))) as pool:
        found = pool.map(lambda i: (i, *attempt(addresses[i], port, ports[i] or 0, secret)), others)
        return [failure for failure in found if failure[1]]


def main() -> None:
    """Take the lines: the entry point on the node."""
    job = json.loads(sys.stdin.readline())
    secret, address = bytes.fromhex(job["token"]), job["addresses"][job["node"]]
    busy = ""
    listeners = [listen(address, 0)]
    try:
        listeners.append(listen(address, job["port"]))
    except OSError as error:
        busy = "in use" if error.errno == errno.EADDRINUSE else str(error)
    for listener in listeners:
        threading.Thread(target=serve, args=(listener, secret), daemon=True).start()
    print(json.dumps({"port": listeners[0].getsockname()[1], "busy": busy}), flush=True)
    ports = json.loads(sys.stdin.readline())["ports"]
    failed = reach(job["node"], job["addresses"], job["port"], ports, secret)
    print(json.dumps({"failed": failed}), flush=True)
    sys.stdin.read()
    os._exit(0)  # without waiting for threads


if __name__ == "__main__":
    main()
