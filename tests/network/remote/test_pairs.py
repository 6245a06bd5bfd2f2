"""Ordered pairs of nodes that are processes of this machine, each with a loopback address."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from netbench.network.nodes import Channel
from netbench.network.probing import reach
from netbench.network.probing.measure import Endpoints
from netbench.network.remote.pairs import unreachable
from netbench.testbed.namespaces import SocketChannel
from netbench.testing.nodes import FakeNode

NAMES = ("a", "b", "c")
ADDRESSES = tuple(f"127.0.0.{40 + node}" for node in range(len(NAMES)))


@contextmanager
def endpoints(replaced: str = "", by: str = "") -> Iterator[Endpoints]:
    """Nodes that run the program, but on node c with `by` in it instead of `replaced`."""
    processes = []

    def start(node: int, argv: Sequence[str]) -> Channel:
        words = list(argv)
        if node == 2 and replaced:
            assert replaced in words[-1]
            words[-1] = words[-1].replace(replaced, by)
        here, there = socket.socketpair()
        with there:
            processes.append(subprocess.Popen(words, stdin=there.fileno(), stdout=there.fileno()))
        return SocketChannel(here)

    nodes = [FakeNode(node, lambda *_: (1, "", ""), start) for node in range(len(NAMES))]
    yield Endpoints(addresses=[(address,) for address in ADDRESSES], nodes=nodes)
    for process in processes:
        assert process.wait(10.0) == 0, "it ends with its input"


def free_port() -> int:
    with socket.create_server((ADDRESSES[0], 0)) as listener:
        return int(listener.getsockname()[1])


def failures(found: Endpoints, port: int) -> list[tuple[int, str]]:
    return [(one.node, one.text) for one in unreachable(found, NAMES, port)]


def test_all_pairs_reach_each_other() -> None:
    with endpoints() as found:
        assert failures(found, free_port()) == []


def test_a_port_in_use_is_named_once() -> None:
    """The nodes that cannot reach it do not repeat it."""
    with socket.create_server((ADDRESSES[1], 0)) as listener, endpoints() as found:
        port = listener.getsockname()[1]
        assert failures(found, port) == [
            (1, f"port {port} is in use; `ss -tlnp sport = :{port}` names by what")
        ]


def test_a_host_that_passes_only_one_port_is_named() -> None:
    port = free_port()
    with endpoints("chosen.getsockname()[1]", "1") as found:
        texts = failures(found, port)
    assert [node for node, _ in texts] == [0, 1]
    for _, text in texts:
        assert text.startswith(f"reaches c at port {port} but not at one that the kernel chose (")


def test_lost_frames_are_told_from_lost_connections() -> None:
    """c takes connections, and nothing that needs more than one frame arrives."""
    echo = "self.due += bytes(FULL_BYTES)"
    with endpoints(echo, "pass") as found:
        texts = failures(found, free_port())
    assert [node for node, _ in texts] == [0, 1]
    for _, text in texts:
        assert text.startswith("reaches c, but full frames are lost (no answer within 5 s)")


def test_a_program_that_does_not_start_is_named() -> None:
    with endpoints("def main() -> None:", "def main() -> None:\n    sys.exit(0)") as found:
        assert failures(found, free_port()) == [
            (2, "the program that tries the network there has ended")
        ]


def test_strangers_get_nothing() -> None:
    """Without the token there is no answer, and the connection is closed."""
    listener = reach.listen(ADDRESSES[0], 0)
    threading.Thread(target=reach.serve, args=(listener, bytes(16)), daemon=True).start()
    with socket.create_connection(listener.getsockname()[:2], timeout=10.0) as connection:
        connection.sendall(b"x" * 16)
        assert connection.recv(1) == b""
