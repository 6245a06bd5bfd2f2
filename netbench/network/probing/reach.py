"""Reach every other node by TCP. Runs alone on a node: one file, Python 3.9, no packages.

Lines of JSON. From the controller, then from the node, in turns:

    {"token": hex, "addresses": by node, "node": of this one, "port": n}
    {"port": that the kernel chose, "busy": why the given port cannot be listened on, or ""}
    {"ports": chosen ones by node; null: do not try it}
    {"failed": [[node, part, reason], ..]}     part: "port" | "any port" | "frames"

The node listens on its own address until its input ends. At the chosen port it answers clients that
know the token. At the given port the kernel answers: that a connection is made there is enough.
"""

from __future__ import annotations

import errno
import hmac
import json
import math
import os
import selectors
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

TOKEN_BYTES = 16
FULL_BYTES = 1 << 14
"""Sent both ways: eleven full frames of 1500 bytes, or one of 9001."""

ANSWER_S = 5.0
"""Deadline to connect, for a byte, and for `FULL_BYTES`, seconds. Lost packets were sent again."""

MIN_THREADS = 16
ROUNDS = 4
"""Peers per thread at most, if there are more than `MIN_THREADS`. Threads take time to start, and
each round of peers that do not answer takes twice `ANSWER_S`."""


def listen(address: str, port: int) -> socket.socket:
    """Return a listening socket; port 0: the kernel chooses one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=1024)


class _Client:
    """A client: its bytes so far, and those that it is still to get."""

    def __init__(self) -> None:
        self.sent, self.due = bytearray(), b""

    def go_on(self, connection: socket.socket, secret: bytes) -> bool:
        """Read and write as much as is possible now. Return False when this client is done with."""
        if self.due:
            self.due = self.due[connection.send(self.due) :]
            return bool(self.due) or len(self.sent) < len(secret) + FULL_BYTES
        before, more = len(self.sent), connection.recv(FULL_BYTES)
        self.sent += more
        if not more or not hmac.compare_digest(self.sent[: len(secret)], secret[: len(self.sent)]):
            return False
        if before < len(secret) <= len(self.sent):
            self.due = b"!"
        if len(self.sent) == len(secret) + FULL_BYTES:
            self.due += bytes(FULL_BYTES)
        return len(self.sent) <= len(secret) + FULL_BYTES


def serve(listener: socket.socket, secret: bytes) -> None:
    """Answer clients until the process ends: a byte for the token, then as many as `FULL_BYTES`.

    In one thread: hundreds of hosts call at the same time.
    """
    ready = selectors.DefaultSelector()
    listener.setblocking(False)  # a client may have gone before it is accepted
    ready.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.data is None:
                with suppress(OSError):
                    accepted, _ = listener.accept()
                    accepted.setblocking(False)
                    ready.register(accepted, selectors.EVENT_READ, _Client())
                continue
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                goes_on = key.data.go_on(connection, secret)
            except BlockingIOError:
                continue
            except OSError:
                goes_on = False
            if goes_on:
                events = selectors.EVENT_WRITE if key.data.due else selectors.EVENT_READ
                ready.modify(connection, events, key.data)
            else:
                ready.unregister(connection)
                connection.close()


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
        socket.create_connection((address, port), timeout=ANSWER_S).close()
        part = "any port"
        with socket.create_connection((address, chosen), timeout=ANSWER_S) as connection:
            connection.sendall(secret)
            _receive(connection, 1)
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
    left, failed = iter(others), list[tuple[int, str, str]]()  # `next` and `append` are atomic

    def work() -> None:
        for i in left:
            part, reason = attempt(addresses[i], port, ports[i] or 0, secret)
            if part:
                failed.append((i, part, reason))

    count = min(len(others), max(MIN_THREADS, math.ceil(len(others) / ROUNDS)))
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(failed)


def main() -> None:
    """Take the lines: the entry point on the node."""
    job = json.loads(sys.stdin.readline())
    secret, address = bytes.fromhex(job["token"]), job["addresses"][job["node"]]
    busy = ""
    kept: list[socket.socket] = []
    chosen = listen(address, 0)
    try:
        kept.append(listen(address, job["port"]))
    except OSError as error:
        busy = "in use" if error.errno == errno.EADDRINUSE else str(error)
    threading.Thread(target=serve, args=(chosen, secret), daemon=True).start()
    print(json.dumps({"port": chosen.getsockname()[1], "busy": busy}), flush=True)
    ports = json.loads(sys.stdin.readline())["ports"]
    failed = reach(job["node"], job["addresses"], job["port"], ports, secret)
    print(json.dumps({"failed": failed}), flush=True)
    sys.stdin.read()
    os._exit(0)  # without waiting for threads


if __name__ == "__main__":
    main()
