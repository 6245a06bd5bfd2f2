"""How the session reaches a node: run a command there, start a rank there.

Two implementations: `netbench.testbed.namespaces` (default, this machine) and
`netbench.testbed.sshd` (a real sshd per node). Everything above them sees only this interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

COMMAND_TIMEOUT_S = 7200.0
"""Deadline of a command on a node, by the session's clock, seconds. The longest is a throughput
probe of links scaled to 1/1000: two flows over 150 Mbit/s take 20 minutes, of virtual time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAddress:
    """Where node `index` lives: its IPv4 address and interface on the shaped network."""

    index: int
    name: str
    address: str
    interface: str


class Channel(Protocol):
    """A rank's control channel: JSON lines both ways. It never crosses the shaped links."""

    def send(self, line: str) -> None:
        """Send one line (without its newline)."""

    def receive(self) -> str | None:
        """The next line, blocking; None when the rank has gone."""

    def close(self) -> None:
        """Drop the channel: the rank exits when it reads the end of it."""


class Transport(Protocol):
    """Reaches the nodes of one session."""

    def run(
        self, node: int, argv: Sequence[str], stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> tuple[int, str, str]:
        """Run `argv` on `node` to its end: exit status, stdout, stderr. Raises TestbedError."""

    def start_rank(self, node: int, rank: int) -> Channel:
        """Start the process of `rank` on `node`."""

    def start_command(self, node: int, rank: int) -> Channel:
        """Start on `node` what will start the script of `rank` (`netbench.trainers.command`)."""

    def close(self) -> None:
        """End whatever the transport itself started."""
