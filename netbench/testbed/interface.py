"""The interface between a run and the place it runs in: `Testbed`.

A run never reaches around it (`testbed.runs.session`). Below it, commands and files go through
`netbench.network.nodes.Node`, which shaping and probing use too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from netbench.network.nodes import Channel
from netbench.network.probing.dynamics import Messages
from netbench.scenario.model import Network
from netbench.testbed.ranks.hangs import Activity

STORE_PORT = 29500
"""Port of the store at which ranks meet, on the node of rank 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAddress:
    """IPv4 address and interface of node `index` on the shaped network.

    kernel: number of the kernel that it runs on; nodes of this machine share one.
    """

    index: int
    name: str
    address: str
    interface: str
    kernel: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Clocks:
    """Readings of CLOCK_MONOTONIC of all nodes.

    at_s: of this process, the middle of the readings. offsets_s: by node, node minus this process,
    seconds; 0 for others. error_s: bound of the error of any offset.
    """

    at_s: float
    offsets_s: Mapping[int, float] = field(default_factory=dict)
    error_s: float = 0.0

    @classmethod
    def shared(cls) -> Self:
        """Return the readings of nodes that have the clock of this process."""
        return cls(at_s=-math.inf)

    def to_node(self, node: int, moment_s: float) -> float:
        """Convert a moment of this process's clock to that of a node."""
        return moment_s + self.offsets_s.get(node, 0.0)

    def from_node(self, node: int, moment_s: float, earlier: "Clocks") -> float:
        """Convert a moment of a node's clock, between the `earlier` readings and these.

        Offsets drift linearly in between.
        """
        now_s, then_s = self.offsets_s.get(node, 0.0), earlier.offsets_s.get(node, 0.0)
        if now_s == then_s:
            return moment_s - now_s
        fraction = (moment_s - now_s - earlier.at_s) / max(self.at_s - earlier.at_s, 1e-9)
        return moment_s - then_s - (now_s - then_s) * min(max(fraction, 0.0), 1.0)


class Testbed(Protocol):
    """A place to run plans that share a network.

    Implementations: `testbed.local`, `testbed.ssh.local_sshd`, `testbed.cluster.testbed`.

    name: one of `records.TESTBEDS`. tolerance: relative deviation of a probed link that is trusted.
    start_margin_s: from the order to run to the common start of an iteration, long enough for every
    rank to have read the order.
    """

    @property
    def nodes(self) -> Sequence[NodeAddress]: ...
    @property
    def name(self) -> str: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def start_margin_s(self) -> float: ...

    def tune(self, network: Network, scale: float) -> None:
        """Set up TCP on every node, before any connection is made: they keep what they found.

        Raises NetworkError listing every node that failed.
        """

    def shape(self, network: Network, scale: float) -> None:
        """Give every node the network and read it back. Raises NetworkError as `tune` does."""

    def verify(
        self, network: Network, scale: float, messages: Messages | None = None
    ) -> dict[str, Any]:
        """Measure links of every class: `network.probing.verify.NetworkVerdict` as JSON data.

        messages: to send where TCP acts, to verify that it does.
        """

    def dropped_packets(self) -> int:
        """Packets the shaped queues dropped since `shape`, beside the loss that was asked for."""

    def sent_bytes(self) -> list[int]:
        """Bytes each node has sent over its shaped interface so far, headers included."""

    def host_use(self) -> Mapping[int, dict[str, Any]]:
        """Return what the run has used on every host since the last call, by `NodeAddress.kernel`.

        Values: fields of `records.HostSample` but `sent_bytes`. Empty if all nodes are on this
        machine, whose kernel counts for all of them together.
        """

    def activity(self) -> Activity:
        """Snapshot of traffic and processor use on all nodes, to detect ranks that hang."""

    def publish(self, name: str, text: str) -> str:
        """Put a file where the ranks of every node can read it: its path."""

    def environment(self, node: int) -> Mapping[str, str]:
        """Return the variables that scripts on a node inherit."""

    def start_rank(self, node: int, rank: int) -> Channel:
        """Start the process of a rank on a node: a trainer, or what starts its script.

        It ends when it reads the end of the channel. Raises NetbenchError.
        """

    def clocks(self) -> Clocks:
        """Read the clocks of all nodes."""

    def close(self) -> None:
        """End whatever was started on the nodes."""
