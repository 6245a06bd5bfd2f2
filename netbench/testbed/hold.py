"""Hold a local network open, and reach into it from other processes of the same user.

The holder starts a session (`hold_session`) that dies with it, and listens on a UNIX socket with an
abstract name: the kernel forgets it when the holder ends, however it ends, so nothing is ever left
behind. Both ends look at the other's user id, since such a name has no permissions.

    netbench net shell <-socket-> holder <-lines-> session -> command in a node
"""

from __future__ import annotations

import json
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netbench.errors import TestbedError, UsageError, nearest
from netbench.plan.serial import network_from_json, network_to_json
from netbench.scenario.model import Network
from netbench.testbed.frames import (
    ANSWER,
    ASK,
    END,
    ERRORS,
    INPUT,
    OUTPUT,
    REQUEST,
    STOP,
    FrameReader,
    frame,
    json_frame,
)
from netbench.testbed.holder import (
    CHUNK_BYTES,
    NUM_LINES,
    Holder,
    address_of,
    hang_up,
    listen,
    peer_uid,
)
from netbench.testbed.host import Host
from netbench.testbed.launch import SessionProcess, start_session
from netbench.testbed.namespaces import node_addresses
from netbench.testbed.transport import COMMAND_TIMEOUT_S

START_S = 120.0
"""Without any event, after which a session is taken for hung, seconds. Most of a start is Python's
own, and 64 nodes take a guest some seconds."""

ANSWER_S = 10.0
"""For a holder to say what it holds, seconds."""

HANG_UP_S = 2.0
"""From being told that its terminal has gone until a command is killed, seconds."""

HOLD_SESSION = "netbench.testbed.hold_session"

SOCKETS = Path("/proc/net/unix")
LISTENS = 0x10000  # __SO_ACCEPTCON of a socket's flags there


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A network that some process holds open. started_at: seconds since the epoch."""

    name: str
    pid: int
    mode: str
    started_at: float
    network: Network
    node_names: tuple[str, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the nodes."""
        return tuple(node.address for node in node_addresses(self.node_names))

    def node(self, name: str) -> int:
        """The index of a node by its name, `node3` or `3`. Raises UsageError naming the nearest."""
        if name in self.node_names:
            return self.node_names.index(name)
        number = name.removeprefix("node")
        if number.isdecimal() and int(number) < len(self.node_names):
            return int(number)
        raise UsageError(f'{self.name} has no node "{name}"; {nearest(name, self.node_names)}')

    def start(
        self,
        node: int,
        argv: Sequence[str],
        size: tuple[int, int] | None,
        *,
        wait: bool = False,
        patience_s: float = HANG_UP_S,
    ) -> socket.socket:
        """Start a command in a node: a connection that frames of it come from, and go to.

        size: rows and columns of a terminal; None: pipes. wait: until a line is free. patience_s:
        from when the connection is closed, which the command is told with SIGHUP, until it is
        killed.
        """
        connection = _connect(self.name)
        request = {
            "node": node,
            "argv": [*argv],
            "size": size,
            "wait": wait,
            "patience_s": patience_s,
            "directory": str(Path.cwd()),
            "environment": {**os.environ, "PATH": _path()},
        }
        connection.sendall(json_frame(REQUEST, request))
        return connection

    def run(
        self, node: int, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> tuple[int, str, str]:
        """Run a command to its end: `network.command.Run`. Raises TestbedError."""
        streams = {OUTPUT: bytearray(), ERRORS: bytearray()}
        with self.start(node, argv, None, wait=True) as connection:
            end_s = time.monotonic() + timeout_s
            # In a thread: what the command prints before it has read all must not be in the way.
            feed = threading.Thread(target=_feed, args=(connection, stdin.encode()), daemon=True)
            feed.start()
            try:
                for kind, payload in frames_of(connection, end_s):
                    if kind == END:
                        out, err = (bytes(streams[k]).decode(errors="replace") for k in streams)
                        return end_status(payload), out, err
                    streams[kind] += payload
            except TimeoutError:
                pass
            finally:
                hang_up(connection)  # what feeds may wait for room in it
                feed.join()
        words = f"{self.node_names[node]}: no answer within {timeout_s:g} s from: {' '.join(argv)}"
        raise TestbedError(words)

    def stop(self) -> None:
        """End the network and wait until it is gone. Raises TestbedError."""
        with _connect(self.name) as connection:
            connection.settimeout(ANSWER_S)
            connection.sendall(frame(STOP))
            try:
                while connection.recv(CHUNK_BYTES):
                    pass
            except TimeoutError:
                raise TestbedError(
                    f'"{self.name}" was told to end and is still there after {ANSWER_S:g} s; look '
                    f"at its holder, process {self.pid}; it is all gone when that is killed"
                ) from None


def _path() -> str:
    """Where commands are looked for: with `ip` and `tc`, which users need not have in theirs."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def frames_of(connection: socket.socket, end_s: float = math.inf) -> Iterator[tuple[bytes, bytes]]:
    """Frames until the last of an answer. end_s: by the monotonic clock; TimeoutError after it.

    Raises TestbedError if the holder goes before.
    """
    reader = FrameReader()
    with suppress(ConnectionResetError):
        while data := _receive(connection, end_s):
            for kind, payload in reader.feed(data):
                yield kind, payload
                if kind == END:
                    return
    raise TestbedError("the held network has gone")


def _receive(connection: socket.socket, end_s: float) -> bytes:
    if end_s < math.inf:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
    return connection.recv(CHUNK_BYTES)


def end_status(payload: bytes) -> int:
    """Exit status of an END frame. Raises TestbedError when the command did not start."""
    end = json.loads(payload)
    if "error" in end:
        raise TestbedError(end["error"])
    return int(end["status"])


def _feed(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the command ended before it had read all
        for at in range(0, len(data), CHUNK_BYTES):
            connection.sendall(frame(INPUT, data[at : at + CHUNK_BYTES]))
        connection.sendall(frame(INPUT))


def held_networks() -> tuple[Held, ...]:
    """Every network this user holds on this machine, by name."""
    found = []
    for name in held_names(SOCKETS.read_text(), os.geteuid()):
        with suppress(TestbedError):  # it has just gone
            found.append(_ask(name))
    return tuple(found)


def held_names(sockets: str, uid: int) -> tuple[str, ...]:
    """Names of what `uid` holds, from the text of /proc/net/unix."""
    prefix = f"@netbench-{uid}/"
    rows = [line.split(maxsplit=7) for line in sockets.splitlines()[1:]]
    return tuple(
        sorted(
            row[7].removeprefix(prefix)
            for row in rows
            if len(row) == 8 and row[7].startswith(prefix) and int(row[3], 16) & LISTENS
        )
    )


def find_held(name: str | None) -> Held:
    """The held network of that name; without one, the only one. Raises UsageError."""
    found = {held.name: held for held in held_networks()}
    if not found:
        raise UsageError(
            "no local network is held open; open one with: "
            "netbench net apply SCENARIO --testbed local"
        )
    if name is None and len(found) > 1:
        raise UsageError(
            f"{len(found)} networks are held open; say which with --network {' or '.join(found)}"
        )
    if name is None:
        return next(iter(found.values()))
    if name not in found:
        raise UsageError(f'no network "{name}" is held open; {nearest(name, found)}')
    return found[name]


def _connect(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address_of(name))
    except OSError as error:
        connection.close()
        raise TestbedError(f'the held network "{name}" has gone: {error.strerror}') from error
    if peer_uid(connection) != os.geteuid():
        connection.close()
        raise TestbedError(f'the held network "{name}" is another user\'s')
    return connection


def _ask(name: str) -> Held:
    with _connect(name) as connection:
        connection.settimeout(ANSWER_S)
        connection.sendall(frame(ASK))
        try:
            kind, payload = next(frames_of(connection))
        except TimeoutError:
            raise TestbedError(f'the holder of "{name}" does not answer') from None
    if kind != ANSWER:
        raise TestbedError(f'the holder of "{name}" says {payload[:100]!r}')
    answer = json.loads(payload)
    return Held(
        name=name,
        pid=answer["pid"],
        mode=answer["mode"],
        started_at=answer["started_at"],
        network=network_from_json(answer["network"]),
        node_names=tuple(answer["node_names"]),
    )


@contextmanager
def hold(
    name: str,
    network: Network,
    node_names: Sequence[str],
    *,
    mode: str,
    host: Host,
    on_phase: Callable[[str, int, int], None],
) -> Iterator[Callable[[], None]]:
    """A network that is there, shaped and read back, until the context ends.

    Yields what waits until someone asks for its end, and raises TestbedError when it ends without.
    Raises UsageError where one of that name is held already, TestbedError when it cannot be built.
    """
    listener = listen(name)
    pairs = [socket.socketpair() for _ in range(NUM_LINES)]
    events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    about = {
        "pid": os.getpid(),
        "mode": mode,
        "started_at": time.time(),
        "network": network_to_json(network),
        "node_names": [*node_names],
    }
    job = {"network": about["network"], "node_names": about["node_names"]}
    session: SessionProcess | None = None
    try:
        inner = [there.fileno() for _, there in pairs]
        session = start_session(mode, host, job, 0, events.put, module=HOLD_SESSION, lines=inner)
        for _, there in pairs:
            there.close()
        _await_held(session, events, on_phase)
        Holder(listener, [here for here, _ in pairs], about, events).start()

        def wait() -> None:
            event = events.get()
            if event is None or event["event"] == "error":
                assert session is not None
                raise TestbedError(_why(event, session))

        yield wait
    finally:
        listener.close()
        if session is not None:
            session.close()
        for here, there in pairs:
            here.close()
            there.close()


def _await_held(
    session: SessionProcess,
    events: queue.SimpleQueue[dict[str, Any] | None],
    on_phase: Callable[[str, int, int], None],
) -> None:
    while True:
        try:
            event = events.get(timeout=START_S)
        except queue.Empty:
            tail = session.console_tail()
            raise TestbedError(f"no sign of life for {START_S:g} s{tail}") from None
        if event is None or event["event"] == "error":
            raise TestbedError(_why(event, session))
        if event["event"] == "held":
            return
        on_phase(event["name"], event["done"], event["total"])


def _why(event: Mapping[str, Any] | None, session: SessionProcess) -> str:
    what = event["message"] if event else "the session that held the network ended unexpectedly"
    return f"{what}{session.console_tail(booted=event is not None)}"
