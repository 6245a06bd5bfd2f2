"""The interface between a run and the place it runs in: `Testbed`.

A run never reaches around it (`testbed.runs.session`). Below it, commands and files go through
`netbench.network.nodes.Node`, which shaping and probing use too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from netbench.network.nodes import Channel
from netbench.scenario.model import Network
from netbench.testbed.ranks.hangs import Activity

STORE_PORT = 29500
"""Port of the store at which ranks meet, on the node of rank 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAddress:
    """IPv4 address and interface of node `index` on the shaped network."""

    index: int
    name: str
    address: str
    interface: str


class Testbed(Protocol):
    """A place to run plans that share a network. Implementations: `testbed.local`, `testbed.ssh`.

    name: one of `records.TESTBEDS`. tolerance: relative deviation of a probed link that is trusted.
    start_margin_s: from the order to run to the common start of an iteration, long enough for every
    rank to have read the order. shared_clock: all nodes have the clock of this process.
    """

    @property
    def nodes(self) -> Sequence[NodeAddress]: ...
    @property
    def name(self) -> str: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def start_margin_s(self) -> float: ...
    @property
    def shared_clock(self) -> bool: ...

    def tune(self, network: Network, scale: float) -> None:
        """Set up TCP on every node, before any connection is made: they keep what they found.

        Raises NetworkError listing every node that failed.
        """

    def shape(self, network: Network, scale: float) -> None:
        """Give every node the network and read it back. Raises NetworkError as `tune` does."""

    def verify(self, network: Network, scale: float) -> dict[str, Any]:
        """Measure links of every class: `network.probing.verify.NetworkVerdict` as JSON data."""

    def dropped_packets(self) -> int:
        """Packets the shaped queues dropped since `shape`, beside the loss that was asked for."""

    def sent_bytes(self) -> list[int]:
        """Bytes each node has sent over its shaped interface so far, headers included."""

    def activity(self) -> Activity:
        """Snapshot of traffic and processor use on all nodes, to detect ranks that hang."""

    def publish(self, name: str, text: str) -> str:
        """Put a file where the ranks of every node can read it: its path."""

    def start_rank(self, node: int, rank: int) -> Channel:
        """Start the process of a rank on a node: a trainer, or what starts its script.

        It ends when it reads the end of the channel. Raises NetbenchError.
        """

    def clock(self, index: int) -> tuple[float, float]:
        """CLOCK_MONOTONIC of a node minus that of this process, and its error, seconds."""

    def close(self) -> None:
        """End whatever was started on the nodes."""
