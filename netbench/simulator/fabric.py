"""A network as resources that flows share, and paths between ranks across them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netbench.errors import PlanError
from netbench.scenario.model import Network
from netbench.simulator import kernel
from netbench.simulator.profile import TransportProfile


class Fabric:
    """Resources and paths, made as they are asked for.

    node_of_rank: (num_ranks,), indices into the network's nodes. burst_bytes: what a connection
    typically carries at once: its own queue adds so much to the round trip that TCP sees.
    """

    def __init__(
        self,
        network: Network,
        node_of_rank: ArrayLike,
        transport: TransportProfile,
        burst_bytes: float = 0.0,
    ) -> None:
        self.transport = transport
        self._burst_bytes = burst_bytes
        self._network = network
        self._node = np.asarray(node_of_rank, dtype=np.int64)
        self._num_ranks = len(self._node)
        mtu = network.mtu_bytes
        self._goodput = (mtu - transport.header_bytes) / (mtu + transport.ethernet_bytes)
        self._index: dict[int, NDArray[np.int32]] = {}  # by channels
        self._capacity: list[float] = []
        self._keys: dict[tuple[object, ...], int] = {}
        self._hops: list[list[int]] = []
        self._delay_s: list[float] = []
        self._rtt_s: list[float] = []
        self._channels: list[int] = []

    @property
    def delay_s(self) -> NDArray[np.float64]:
        """One-way, seconds, (num_paths,)."""
        return np.asarray(self._delay_s)

    @property
    def rate(self) -> NDArray[np.float64]:
        """What each path carries when it is alone, payload bytes/s, (num_paths,)."""
        capacity = np.append(self._capacity, math.inf)  # NONE is the last
        rate: NDArray[np.float64] = capacity[self._hop_matrix()].min(axis=-1)
        return rate

    @property
    def resources(self) -> tuple[tuple[object, ...], ...]:
        """What each resource is, in the order of `network().capacity`: its kind, then the ranks
        (host, channels, inside) or nodes (pair, egress, ingress) it joins; a class has its node,
        delay and rate."""
        return tuple(self._keys)

    def _hop_matrix(self) -> NDArray[np.int64]:
        return np.asarray(self._hops, dtype=np.int64).reshape(-1, kernel.MAX_HOPS)

    def paths(
        self, source: NDArray[np.int64], target: NDArray[np.int64], channels: int = 1
    ) -> NDArray[np.int64]:
        """Path indices from ranks to ranks, in the shape of the arguments.

        channels: connections side by side that make up the path.
        """
        if channels not in self._index:
            self._index[channels] = np.full(self._num_ranks**2, kernel.NONE, np.int32)
        known = self._index[channels]
        keys = source * self._num_ranks + target
        index = known[keys]
        if (index == kernel.NONE).any():
            for key in np.unique(keys[index == kernel.NONE]):
                known[key] = self._make(*divmod(int(key), self._num_ranks), channels)
            index = known[keys]
        paths: NDArray[np.int64] = index.astype(np.int64)
        return paths

    def network(self) -> kernel.Network:
        """What the kernel needs of it."""
        transport, rtt_s = self.transport, np.asarray(self._rtt_s)
        # RFC 6298, with a round trip that varies by what the connection itself has queued.
        queue_s = self._burst_bytes / self.rate
        return kernel.Network(
            capacity=np.asarray(self._capacity, dtype=np.float64),
            hops=self._hop_matrix(),
            rtt_s=rtt_s,
            idle_s=np.where(  # a window that is never short is never halved
                rtt_s > 0,
                rtt_s + queue_s + np.maximum(transport.retransmission_s, 4 * queue_s),
                np.inf,
            ),
            first_window=np.where(
                rtt_s > 0,
                transport.first_window_segments
                * (self._network.mtu_bytes - transport.header_bytes)
                * transport.sockets
                * np.asarray(self._channels),
                np.inf,
            ),
        )

    def copy_s(
        self, source: NDArray[np.int64], target: NDArray[np.int64], size: float
    ) -> NDArray[np.float64]:
        """Seconds a process needs to move `size` bytes between its buffers and its sockets."""
        inside = self._node[source] == self._node[target]
        return np.where(inside, 0.0, 8 * size / self.transport.host_bps)

    def num_beside(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of each of `ranks`, (n,): how many of them are on its node, itself included."""
        nodes = self._node[ranks]
        count: NDArray[np.int64] = np.bincount(nodes)[nodes]
        return count

    def buffered_bytes(
        self, source: NDArray[np.int64], target: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Bytes that one end of a connection holds; unlimited inside a node."""
        transport = self.transport
        paths = self.paths(source, target)
        rtt_s = np.asarray(self._rtt_s)[paths]
        window = np.where(rtt_s > 0, self.rate[paths], 0.0) * rtt_s * transport.window_factor
        held = transport.fifo_bytes + transport.window_bytes + window
        return np.where(self._node[source] == self._node[target], math.inf, held)

    def _make(self, source: int, target: int, channels: int) -> int:
        network, transport = self._network, self.transport
        a, b = int(self._node[source]), int(self._node[target])
        limits: dict[tuple[object, ...], float] = {}
        if a == b:
            limits["inside", source, target] = transport.inside_node_bps / self._goodput
            delay_s = rtt_s = 0.0
        else:
            link = network.link(a, b)
            delay_s = link.one_way_delay_s
            rtt_s = delay_s + network.link(b, a).one_way_delay_s
            kind = "host" if channels == 1 else "channels"
            limits[kind, source, target] = channels * self._host_bps(rtt_s) / self._goodput
            if network.sharing == "class":
                limits["class", a, delay_s, link.bandwidth_bps] = link.bandwidth_bps
            else:
                limits["pair", a, b] = link.bandwidth_bps
            if network.sharing == "nic":
                limits["egress", a] = network.nic_bps[a]
                limits["ingress", b] = network.nic_bps[b]
        hops = [self._resource(key, bps) for key, bps in limits.items() if math.isfinite(bps)]
        self._hops.append(hops + [kernel.NONE] * (kernel.MAX_HOPS - len(hops)))
        self._delay_s.append(delay_s)
        self._rtt_s.append(rtt_s)
        self._channels.append(channels)
        return len(self._hops) - 1

    def _host_bps(self, rtt_s: float) -> float:
        """Payload that a connection carries at most: its host's, or a window per round trip."""
        transport = self.transport
        if rtt_s == 0:
            return transport.host_bps
        window_bytes = transport.max_window_bytes * transport.sockets
        return min(transport.host_bps, 8 * window_bytes / rtt_s)

    def _resource(self, key: tuple[object, ...], bps: float) -> int:
        if key not in self._keys:
            if bps <= 0:
                raise PlanError(f"{key[0]} bandwidth is {bps:g} bit/s; expected more than 0")
            self._keys[key] = len(self._capacity)
            self._capacity.append(bps * self._goodput / 8)
        return self._keys[key]
