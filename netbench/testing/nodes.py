"""Nodes, channels and a testbed whose other ends are functions; capabilities of machines."""

import os
import queue
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from netbench.errors import NetworkError
from netbench.network.nodes import Channel, Completed
from netbench.network.probing.dynamics import Messages
from netbench.scenario.model import Network
from netbench.testbed.interface import Clocks, NodeAddress
from netbench.testbed.machine.capabilities import Capabilities
from netbench.testbed.ranks.hangs import Activity
from netbench.testbed.ranks.scripts import inherited_environment

CAPABLE = Capabilities(
    is_root=True,
    has_netem=True,
    netem_error="",
    has_user_namespaces=True,
    guest_kernel=Path("/cache/linux"),
    packaged_kernel=None,
    guest_tmpdir=Path("/dev/shm"),
    num_cores=2,
    memory_bytes=8_000_000_000,
    tc_version="tc utility, iproute2-6.1.0",
    torch_version="2.13.0",
)
LAPTOP = replace(CAPABLE, is_root=False, has_netem=False, netem_error="unknown qdisc")
SERVER = replace(CAPABLE, guest_kernel=None, netem_error="unknown qdisc", num_cores=64)
"""A machine that can do everything, a laptop and a server."""

Answer = Callable[[int, Sequence[str], str], tuple[int, str, str]]
"""Carry out a command: (node, argv, stdin) -> exit status, stdout, stderr."""


class FakeNode:
    """A `netbench.network.nodes.Node`.

    start: called by `open` with the node's index and argv; without it, `open` fails.
    """

    def __init__(
        self,
        index: int,
        answer: Answer,
        start: Callable[[int, Sequence[str]], Channel] | None = None,
    ) -> None:
        self._index, self._answer, self._start = index, answer, start

    def run(self, argv: Sequence[str], stdin: str = "", timeout_s: float = 0.0) -> Completed:
        return Completed(*self._answer(self._index, argv, stdin))

    def open(self, argv: Sequence[str]) -> Channel:
        if self._start is None:
            raise NetworkError(f"node {self._index} opens no channels")
        return self._start(self._index, argv)


class FakeChannel:
    """A `netbench.network.nodes.Channel` whose other end is a function.

    answer: line that was sent -> lines to receive; None ends the command. greeting: lines to
    receive before anything was sent. sent: every line so far. closed: `close` was called.
    """

    def __init__(
        self, answer: Callable[[str], Iterable[str | None]], greeting: Iterable[str] = ()
    ) -> None:
        self.sent: list[str] = []
        self.closed = False
        self._has_ended = False
        self._answer = answer
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        for line in greeting:
            self._lines.put(line)

    def send(self, line: str) -> None:
        if self._has_ended or self.closed:
            raise NetworkError("the command has ended")
        self.sent.append(line)
        for received in self._answer(line):
            self._has_ended |= received is None
            self._lines.put(received)

    def receive(self) -> str | None:
        line = self._lines.get()
        if line is None:
            self._lines.put(None)  # for the next call
        return line

    def close(self) -> None:
        self.closed = True
        self._lines.put(None)


def fake_nodes(answer: Answer, count: int = 64) -> list[FakeNode]:
    """Return nodes with one function that answers for all."""
    return [FakeNode(index, answer) for index in range(count)]


class FakeTestbed:
    """A `netbench.testbed.interface.Testbed` that shapes nothing and records what it is asked.

    start: called with node and rank. activity: see `Testbed`. offsets_s: of the nodes' clocks.
    drops: counts of packets dropped since `shape`, 0 after the last.
    """

    name = "native"
    tolerance = 0.05
    start_margin_s = 0.0

    def __init__(
        self,
        nodes: Sequence[NodeAddress],
        start: Callable[[int, int], Channel],
        activity: Callable[[], Activity] = lambda: Activity(at_s=0.0, num_bytes=0, processes={}),
        offsets_s: Sequence[float] = (),
    ) -> None:
        self.nodes = nodes
        self.activity = activity
        self.asked: list[str] = []
        self.drops: Iterator[int] = iter(())
        self._start = start
        self._offsets_s = offsets_s or [0.0] * len(nodes)

    def tune(self, network: Network, scale: float) -> None:
        self.asked.append("tune")

    def shape(self, network: Network, scale: float) -> None:
        self.asked.append("shape")

    def verify(
        self, network: Network, scale: float, messages: Messages | None = None
    ) -> dict[str, Any]:
        self.asked.append("verify")
        return {"reasons": []}

    def dropped_packets(self) -> int:
        self.asked.append("dropped_packets")
        return next(self.drops, 0)

    def sent_bytes(self) -> list[int]:
        return [0] * len(self.nodes)

    def host_use(self) -> Mapping[int, dict[str, Any]]:
        return {}

    def publish(self, name: str, text: str) -> str:
        self.asked.append(f"publish {name}")
        return name

    def environment(self, node: int) -> dict[str, str]:
        return inherited_environment(sys.executable, os.environ)

    def start_rank(self, node: int, rank: int) -> Channel:
        self.asked.append(f"start_rank {node} {rank}")
        return self._start(node, rank)

    def clocks(self) -> Clocks:
        return Clocks(at_s=time.monotonic(), offsets_s=dict(enumerate(self._offsets_s)))

    def close(self) -> None:
        self.asked.append("close")
