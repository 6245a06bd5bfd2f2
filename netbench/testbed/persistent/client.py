"""Keep a local network open, and reach into it from other processes of the same user.

The daemon starts a session (`persistent.session`) that dies with it, and listens on a UNIX socket
with an abstract name. The kernel removes that name when the daemon ends, however it ends, so
nothing is left behind. Each end checks the user id of the other, because such a name has no
permissions.

    netbench net shell <-socket-> daemon <-lines-> session -> command in a node
"""

import json
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
from netbench.network.nodes import COMMAND_TIMEOUT_S, Completed
from netbench.plan.serial import network_from_json, network_to_json
from netbench.scenario.model import Network
from netbench.scenario.sharing import num_routers
from netbench.testbed.lines import MAX_OUTPUT_BYTES
from netbench.testbed.machine.capabilities import Capabilities
from netbench.testbed.namespaces import node_addresses
from netbench.testbed.persistent.channel import FrameChannel, end_status
from netbench.testbed.persistent.daemon import (
    NUM_LINES,
    Daemon,
    address_of,
    hang_up,
    listen,
    peer_uid,
)
from netbench.testbed.persistent.frames import (
    ANSWER,
    ASK,
    CHUNK_BYTES,
    END,
    ERRORS,
    INPUT,
    OUTPUT,
    REQUEST,
    STOP,
    Frames,
    frame,
    json_frame,
)
from netbench.testbed.runs.launch import SessionProcess, start_session
from netbench.units import format_bytes

START_S = 120.0
"""Longest silence of a session that starts, seconds. Python takes most of a start; 64 nodes take a
guest some seconds."""

ANSWER_S = 10.0
"""Deadline for an answer of a daemon, seconds."""

HANG_UP_S = 2.0
"""Time from SIGHUP until a command is killed, seconds."""

SESSION_MODULE = "netbench.testbed.persistent.session"

SOCKETS = Path("/proc/net/unix")
LISTENS = 0x10000  # __SO_ACCEPTCON of a socket's flags there


@dataclass(frozen=True, kw_only=True, slots=True)
class PersistentNetwork:
    """A network that daemon `pid` keeps open. started_at: seconds since the epoch."""

    name: str
    pid: int
    testbed: str
    started_at: float
    network: Network
    node_names: tuple[str, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the nodes."""
        return tuple(node.address for node in node_addresses(self.node_names))

    def node(self, name: str) -> int:
        """Return the index of a node: its name, `node3` or `3`. Raises UsageError."""
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
        """Start a command in a node and return the connection for its frames.

        size: rows and columns of a terminal; None = pipes. wait: wait for a free line. patience_s:
        time from SIGHUP, which the command gets when the connection is closed, until it is killed.
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

    @property
    def nodes(self) -> "tuple[PersistentNode, ...]":
        """The nodes, and after them the routers."""
        count = len(self.node_names) + num_routers(self.network)
        return tuple(PersistentNode(self, index) for index in range(count))

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
                    f'"{self.name}" is still open {ANSWER_S:g} s after it was told to end; look at '
                    f"its daemon, process {self.pid}; killing that removes the network"
                ) from None


class PersistentNode:
    """A node of a persistent network: a `netbench.network.nodes.Node`."""

    def __init__(self, network: PersistentNetwork, index: int) -> None:
        self._network = network
        self._index = index

    def run(
        self, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Completed:
        """Run a command to its end. Raises TestbedError."""
        return self._run(argv, stdin.encode(), timeout_s)

    def _run(self, argv: Sequence[str], data: bytes, timeout_s: float) -> Completed:
        streams = {OUTPUT: bytearray(), ERRORS: bytearray()}
        with self._network.start(self._index, argv, None, wait=True) as connection:
            end_s = time.monotonic() + timeout_s
            # In a thread: a command may print before it has read all of its input.
            feed = threading.Thread(target=_feed, args=(connection, data), daemon=True)
            feed.start()
            try:
                for kind, payload in Frames(connection, end_s):
                    if kind == END:
                        out, err = (bytes(streams[k]).decode(errors="replace") for k in streams)
                        return Completed(end_status(payload), out, err)
                    streams[kind] += payload
                    if len(streams[kind]) > MAX_OUTPUT_BYTES:
                        limit = format_bytes(MAX_OUTPUT_BYTES)
                        raise TestbedError(f"more than {limit} of output from: {' '.join(argv)}")
            except TimeoutError:
                pass
            finally:
                hang_up(connection)  # the thread may wait for room in it
                feed.join()
        names = self._network.node_names
        name = names[self._index] if self._index < len(names) else "a router"
        raise TestbedError(f"{name}: no answer within {timeout_s:g} s from: {' '.join(argv)}")

    def open(
        self, argv: Sequence[str], what: str = "", patience_s: float = HANG_UP_S
    ) -> FrameChannel:
        """Start a command that stays.

        what: names the command in messages. patience_s: from SIGHUP, which the command gets when
        the channel is dropped, until it is killed.
        """
        connection = self._network.start(self._index, argv, None, wait=True, patience_s=patience_s)
        return FrameChannel(connection, what or " ".join(argv))


def _path() -> str:
    """Return the PATH of commands. `ip` and `tc` need not be on the user's."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def _feed(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the command ended before it had read everything
        for at in range(0, len(data), CHUNK_BYTES):
            connection.sendall(frame(INPUT, data[at : at + CHUNK_BYTES]))
        connection.sendall(frame(INPUT))


def persistent_networks() -> tuple[PersistentNetwork, ...]:
    """Return every persistent network of this user on this machine, by name."""
    found = []
    for name in persistent_names(SOCKETS.read_text(), os.geteuid()):
        with suppress(TestbedError):  # it has just ended
            found.append(_ask(name))
    return tuple(found)


def persistent_names(sockets: str, uid: int) -> tuple[str, ...]:
    """Return the names of the networks of `uid`, from the text of /proc/net/unix."""
    prefix = f"@netbench-{uid}/"
    rows = [line.split(maxsplit=7) for line in sockets.splitlines()[1:]]
    return tuple(
        sorted(
            row[7].removeprefix(prefix)
            for row in rows
            if len(row) == 8 and row[7].startswith(prefix) and int(row[3], 16) & LISTENS
        )
    )


def find_persistent(name: str | None) -> PersistentNetwork:
    """Return the persistent network of that name, or the only one. Raises UsageError."""
    found = {network.name: network for network in persistent_networks()}
    if not found:
        raise UsageError(
            "no persistent network is open; open one with: "
            "netbench net apply SCENARIO --testbed local"
        )
    if name is None and len(found) > 1:
        raise UsageError(
            f"{len(found)} networks are open; choose one with --network {' or '.join(found)}"
        )
    if name is None:
        return next(iter(found.values()))
    if name not in found:
        raise UsageError(f'no persistent network "{name}"; {nearest(name, found)}')
    return found[name]


def _connect(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address_of(name))
    except OSError as error:
        connection.close()
        raise TestbedError(f'the persistent network "{name}" has gone: {error.strerror}') from error
    if peer_uid(connection) != os.geteuid():
        connection.close()
        raise TestbedError(f'the persistent network "{name}" belongs to another user')
    return connection


def _ask(name: str) -> PersistentNetwork:
    with _connect(name) as connection:
        connection.sendall(frame(ASK))
        try:
            kind, payload = next(Frames(connection, time.monotonic() + ANSWER_S))
        except TimeoutError:
            raise TestbedError(f'the daemon of "{name}" does not answer') from None
    if kind != ANSWER:
        raise TestbedError(f'the daemon of "{name}" sent {payload[:100]!r}')
    answer = json.loads(payload)
    return PersistentNetwork(
        name=name,
        pid=answer["pid"],
        testbed=answer["testbed"],
        started_at=answer["started_at"],
        network=network_from_json(answer["network"]),
        node_names=tuple(answer["node_names"]),
    )


@contextmanager
def keep_network(
    name: str,
    network: Network,
    node_names: Sequence[str],
    *,
    testbed: str,
    machine: Capabilities,
    on_phase: Callable[[str, int, int], None],
) -> Iterator[Callable[[], None]]:
    """Build a network, shape it, read it back, and keep it until the context ends.

    Yields a function that waits until someone asks for the end of the network. It raises
    TestbedError if the network ends before. Raises UsageError if a network of that name is open,
    TestbedError if it cannot be built.
    """
    listener = listen(name)
    pairs = [socket.socketpair() for _ in range(NUM_LINES)]
    events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    about = {
        "pid": os.getpid(),
        "testbed": testbed,
        "started_at": time.time(),
        "network": network_to_json(network),
        "node_names": [*node_names],
    }
    job = {"network": about["network"], "node_names": about["node_names"]}
    session: SessionProcess | None = None
    try:
        inner = [there.fileno() for _, there in pairs]
        session = start_session(
            testbed, machine, job, 0, events.put, module=SESSION_MODULE, lines=inner
        )
        for _, there in pairs:
            there.close()
        _await_ready(session, events, on_phase)
        Daemon(listener, [here for here, _ in pairs], about, events).start()

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


def _await_ready(
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
        if event["event"] == "ready":
            return
        on_phase(event["name"], event["done"], event["total"])


def _why(event: Mapping[str, Any] | None, session: SessionProcess) -> str:
    what = event["message"] if event else "the session of the network ended unexpectedly"
    return f"{what}{session.console_tail(booted=event is not None)}"
