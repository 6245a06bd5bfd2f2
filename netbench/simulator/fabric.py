"""A network as resources that flows share, and paths between ranks across them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netbench.errors import PlanError
from netbench.scenario.model import Network
from netbench.simulator import kernel
from netbench.simulator.profile import TransportProfile

_Limit = tuple[str, NDArray[np.bool_], NDArray[np.float64], tuple[NDArray[Any], ...]]
"""A kind of resource, the paths that cross one, its rate (bit/s), and what tells it from others of
its kind; of each path."""


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
        regions = np.asarray(network.node_regions, dtype=np.int64)
        self._region = regions[self._node]
        self._region_delay_s = np.array(
            [[link.one_way_delay_s for link in row] for row in network.links]
        )
        self._region_bps = np.array([[link.bandwidth_bps for link in row] for row in network.links])
        self._index: dict[int, NDArray[np.int32]] = {}  # by channels
        self._capacity: list[float] = []
        self._keys: dict[tuple[object, ...], int] = {}
        self._hops = np.zeros((0, kernel.MAX_HOPS), np.int64)
        self._delay_s, self._rtt_s, self._channels = np.zeros((3, 0))

    @property
    def delay_s(self) -> NDArray[np.float64]:
        """One-way, seconds, (num_paths,)."""
        return self._delay_s

    @property
    def rate(self) -> NDArray[np.float64]:
        """What each path carries when it is alone, payload bytes/s, (num_paths,)."""
        capacity = np.append(self._capacity, math.inf)  # NONE is the last
        rate: NDArray[np.float64] = capacity[self._hops].min(axis=-1)
        return rate

    @property
    def resources(self) -> tuple[tuple[object, ...], ...]:
        """What each resource is, in the order of `network().capacity`: its kind, then the ranks
        (host, channels, inside), nodes (pair, egress, ingress) or regions (trunk) it joins; a class
        has its node, delay and rate."""
        return tuple(self._keys)

    def one_way_delay_s(
        self, source: NDArray[np.int64], target: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Between ranks, seconds, in the shape of the arguments."""
        delay_s = self._region_delay_s[self._region[source], self._region[target]]
        return np.where(self._node[source] == self._node[target], 0.0, delay_s)

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
            new = np.unique(keys[index == kernel.NONE])
            known[new] = self._make(*np.divmod(new, self._num_ranks), channels)
            index = known[keys]
        paths: NDArray[np.int64] = index.astype(np.int64)
        return paths

    def network(self) -> kernel.Network:
        """What the kernel needs of it."""
        transport, rtt_s = self.transport, self._rtt_s
        # RFC 6298, with a round trip that varies by what the connection itself has queued.
        queue_s = self._burst_bytes / self.rate
        return kernel.Network(
            capacity=np.asarray(self._capacity, dtype=np.float64),
            hops=self._hops,
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
                * self._channels,
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
        rtt_s = self._rtt_s[paths]
        window = np.where(rtt_s > 0, self.rate[paths], 0.0) * rtt_s * transport.window_factor
        held = transport.fifo_bytes + transport.window_bytes + window
        return np.where(self._node[source] == self._node[target], math.inf, held)

    def _make(
        self, source: NDArray[np.int64], target: NDArray[np.int64], channels: int
    ) -> NDArray[np.int64]:
        """New paths, with the resources that they cross; their indices."""
        delay_s = self.one_way_delay_s(source, target)
        rtt_s = delay_s + self.one_way_delay_s(target, source)
        hops = np.full((len(source), kernel.MAX_HOPS), kernel.NONE)
        used = np.zeros(len(source), np.int64)
        host_bps = channels * self._host_bps(rtt_s) / self._goodput
        own = ("host" if channels == 1 else "channels", host_bps)
        for kind, where, bps, which in self._limits(source, target, delay_s, own):
            some = np.flatnonzero(where & np.isfinite(bps))
            keys = zip(*(column[some].tolist() for column in which), strict=True)
            hops[some, used[some]] = [
                self._resource((kind, *key), limit)
                for key, limit in zip(keys, bps[some].tolist(), strict=True)
            ]
            used[some] += 1
        first = len(self._hops)
        self._hops = np.concatenate([self._hops, hops])
        self._delay_s = np.append(self._delay_s, delay_s)
        self._rtt_s = np.append(self._rtt_s, rtt_s)
        self._channels = np.append(self._channels, np.full(len(source), channels))
        return np.arange(first, len(self._hops))

    def _limits(
        self,
        source: NDArray[np.int64],
        target: NDArray[np.int64],
        delay_s: NDArray[np.float64],
        own: tuple[str, NDArray[np.float64]],
    ) -> list[_Limit]:
        """What the network's sharing puts on paths. own: that of each connection, on its hosts."""
        network = self._network
        a, b = self._node[source], self._node[target]
        inside, far = a == b, a != b
        src, dst = self._region[source], self._region[target]
        link_bps = self._region_bps[src, dst]
        inside_bps = np.full(len(a), self.transport.inside_node_bps / self._goodput)
        kind, host_bps = own
        limits: list[_Limit] = [
            ("inside", inside, inside_bps, (source, target)),
            (kind, far, host_bps, (source, target)),
        ]
        trunked = far & (src != dst) if network.sharing == "trunk" else np.zeros_like(far)
        if network.sharing == "class":
            limits.append(("class", far, link_bps, (a, delay_s, link_bps)))
        else:
            limits.append(("pair", far & ~trunked, link_bps, (a, b)))
            limits.append(("trunk", trunked, link_bps, (src, dst)))
        if network.sharing == "nic":
            nic_bps = np.asarray(network.nic_bps, dtype=np.float64)
            limits += [("egress", far, nic_bps[a], (a,)), ("ingress", far, nic_bps[b], (b,))]
        return limits

    def _host_bps(self, rtt_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Payload that a connection carries at most: its host's, or a window per round trip."""
        transport = self.transport
        window_bytes = transport.max_window_bytes * transport.sockets
        with np.errstate(divide="ignore"):
            return np.where(
                rtt_s == 0,
                transport.host_bps,
                np.minimum(transport.host_bps, 8 * window_bytes / rtt_s),
            )

    def _resource(self, key: tuple[object, ...], bps: float) -> int:
        if key not in self._keys:
            if bps <= 0:
                raise PlanError(f"{key[0]} bandwidth is {bps:g} bit/s; expected more than 0")
            self._keys[key] = len(self._capacity)
            self._capacity.append(bps * self._goodput / 8)
        return self._keys[key]
