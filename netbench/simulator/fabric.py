"""The network as resources that flows share, and paths between ranks across them."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netbench.errors import PlanError
from netbench.scenario.model import Network
from netbench.scenario.sharing import Crossing, Place, QueueKind, Queues
from netbench.simulator import kernel
from netbench.transport.profile import TransportProfile

_BETWEEN_RANKS = ("src", "dst")
_HOST, _CHANNELS, _INSIDE = (
    QueueKind(name=name, by=_BETWEEN_RANKS) for name in ("host", "channels", "inside")
)
"""Limits of each pair of ranks: what hosts put on a connection, on several connections of a
collective, and on ranks of one node."""

_SOCKETS = QueueKind(name="sockets", by=("node",))
"""Limit of a node: what its CPUs move through sockets, in and out together."""

_LIMITS = (_HOST, _CHANNELS, _INSIDE, _SOCKETS)
"""Limits of hosts, beside the queues of the network."""


class Fabric:
    """Resources and paths, created on demand.

    queues: of the network. node_of_rank: (num_ranks,), indices into its nodes. burst_bytes: bytes
    that a connection typically sends at once; the time to send them adds to the round trip that TCP
    sees. alone: nothing but one collective is timed, as in published benchmarks of collectives.
    """

    def __init__(
        self,
        network: Network,
        node_of_rank: ArrayLike,
        transport: TransportProfile,
        burst_bytes: float = 0.0,
        *,
        alone: bool = False,
    ) -> None:
        self.transport, self.alone = transport, alone
        self._burst_bytes = burst_bytes
        self._network = network
        self._node = np.asarray(node_of_rank, dtype=np.int64)
        self.num_ranks = len(self._node)
        mtu = network.mtu_bytes
        self._goodput = (mtu - transport.header_bytes) / (mtu + transport.ethernet_bytes)
        self.queues = Queues(network)
        self._region = self.queues.region[self._node]
        self._region_delay_s = np.array(
            [[link.one_way_delay_s for link in row] for row in network.links]
        )
        self._index: dict[int, NDArray[np.int32]] = {}  # by number of channels
        self._capacity: list[float] = []
        self._in_order: list[bool] = []
        self._keys: dict[tuple[object, ...], int] = {}
        self._hops = np.zeros((0, kernel.MAX_HOPS), np.int64)
        self._delay_s, self._rtt_s, self._channels = np.zeros((3, 0))

    @property
    def delay_s(self) -> NDArray[np.float64]:
        """One-way delays, seconds, (num_paths,)."""
        return self._delay_s

    @property
    def rate(self) -> NDArray[np.float64]:
        """Rate of each path without contention, payload bytes/s, (num_paths,)."""
        capacity = np.append(self._capacity, math.inf)  # NONE is the last
        rate: NDArray[np.float64] = capacity[self._hops].min(axis=-1)
        return rate

    @property
    def resources(self) -> tuple[tuple[object, ...], ...]:
        """Keys of all resources, in the order of `network().capacity`.

        A key is the kind, then the ranks that the resource joins (host, channels, inside), or the
        columns of the network's queue.
        """
        return tuple(self._keys)

    def one_way_delay_s(
        self, source: NDArray[np.int64], target: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return delays between ranks, seconds, in the shape of the arguments."""
        delay_s = self._region_delay_s[self._region[source], self._region[target]]
        return np.where(self._node[source] == self._node[target], 0.0, delay_s)

    def paths(
        self, source: NDArray[np.int64], target: NDArray[np.int64], channels: int = 1
    ) -> NDArray[np.int64]:
        """Return path indices from ranks to ranks, in the shape of the arguments.

        channels: number of parallel connections that make up a path.
        """
        if channels not in self._index:
            self._index[channels] = np.full(self.num_ranks**2, kernel.NONE, np.int32)
        known = self._index[channels]
        keys = source * self.num_ranks + target
        index = known[keys]
        if (index == kernel.NONE).any():
            new = np.unique(keys[index == kernel.NONE])
            known[new] = self._make(*np.divmod(new, self.num_ranks), channels)
            index = known[keys]
        paths: NDArray[np.int64] = index.astype(np.int64)
        return paths

    def network(self) -> kernel.FluidNetwork:
        """Return the resources and paths created so far, for the kernel."""
        transport, rtt_s = self.transport, self._rtt_s
        # RFC 6298, with a round trip that varies by the time the connection itself has queued.
        queue_s = self._burst_bytes / self.rate
        return kernel.FluidNetwork(
            capacity=np.asarray(self._capacity, dtype=np.float64),
            hops=self._hops,
            rtt_s=rtt_s,
            idle_s=np.where(  # no round trip: the window never limits
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
            in_order=np.asarray(self._in_order, dtype=np.bool_),
        )

    def copy_s(
        self, source: NDArray[np.int64], target: NDArray[np.int64], size: float
    ) -> NDArray[np.float64]:
        """Return the seconds that a process needs to copy `size` bytes from or to its sockets."""
        inside = self._node[source] == self._node[target]
        return np.where(inside, 0.0, 8 * size / self.transport.host_bps)

    def serialisation_s(
        self, source: NDArray[np.int64], target: NDArray[np.int64], size: float
    ) -> NDArray[np.float64]:
        """Return the seconds for which `size` bytes leave into an idle path with open windows."""
        paths = self.paths(source, target)  # which may make them
        seconds: NDArray[np.float64] = size / self.rate[paths]
        return seconds

    def starts_fast(
        self, source: NDArray[np.int64], target: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return where the first window fills the path, so that nothing starts slowly."""
        paths = self.paths(source, target)
        with np.errstate(invalid="ignore"):  # an unlimited rate without a delay
            full = np.nan_to_num(self.rate[paths] * self._rtt_s[paths], posinf=math.inf)
        fast: NDArray[np.bool_] = self.network().first_window[paths] >= full
        return fast

    def num_beside(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, for each of `ranks`, (n,), how many of them are on its node, itself included."""
        nodes = self._node[ranks]
        count: NDArray[np.int64] = np.bincount(nodes)[nodes]
        return count

    def buffered_bytes(
        self, source: NDArray[np.int64], target: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the bytes that one end of a connection buffers; unlimited inside a node."""
        transport = self.transport
        paths = self.paths(source, target)
        rtt_s = self._rtt_s[paths]
        window = np.where(rtt_s > 0, self.rate[paths], 0.0) * rtt_s * transport.window_factor
        buffered = transport.fifo_bytes + transport.window_bytes + window
        return np.where(self._node[source] == self._node[target], math.inf, buffered)

    def _make(
        self, source: NDArray[np.int64], target: NDArray[np.int64], channels: int
    ) -> NDArray[np.int64]:
        """Create paths and the resources that they cross. Return the indices of the paths."""
        delay_s = self.one_way_delay_s(source, target)
        rtt_s = delay_s + self.one_way_delay_s(target, source)
        hops = np.full((len(source), kernel.MAX_HOPS), kernel.NONE)
        used = np.zeros(len(source), np.int64)
        a, b = self._node[source], self._node[target]
        host_bps = channels * self._host_bps(rtt_s) / self._goodput
        inside_bps = np.full(len(a), self.transport.inside_node_bps / self._goodput)
        for crossing in (
            Crossing(_INSIDE, a == b, inside_bps, (source, target)),
            Crossing(_HOST if channels == 1 else _CHANNELS, a != b, host_bps, (source, target)),
            *self.queues.between(a, b),
            *self._sockets(a, b),
        ):
            some = np.flatnonzero(crossing.passes & np.isfinite(crossing.bps))
            in_order = self._keeps_order(crossing, source)[some]
            hops[some, used[some]] = [
                self._resource(*each)
                for each in zip(
                    crossing.ids(some), crossing.bps[some].tolist(), in_order.tolist(), strict=True
                )
            ]
            used[some] += 1
        first = len(self._hops)
        self._hops = np.concatenate([self._hops, hops])
        self._delay_s = np.append(self._delay_s, delay_s)
        self._rtt_s = np.append(self._rtt_s, rtt_s)
        self._channels = np.append(self._channels, np.full(len(source), channels))
        return np.arange(first, len(self._hops))

    def _keeps_order(self, crossing: Crossing, source: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the oldest message is served first, for every pair.

        netem takes a message as fast as its connection's window allows, so the first one that comes
        leaves first. Where ranks of a node, a NIC or a trunk share, so do messages.
        """
        kind = crossing.kind
        if kind in _LIMITS or kind.is_cap or kind.place is not Place.SENDER:
            return np.zeros(len(source), np.bool_)
        nic_bps = np.asarray(self._network.nic_bps)[self._node[source]]
        is_single = self.num_beside(np.arange(self.num_ranks))[source] == 1
        in_order: NDArray[np.bool_] = is_single & (crossing.bps < nic_bps)
        return in_order

    def _sockets(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> list[Crossing]:
        """Return the limits of the hosts at both ends, where the network has them."""
        if not self._network.host_bps:
            return []
        host_bps = np.asarray(self._network.host_bps) / self._goodput
        return [Crossing(_SOCKETS, src != dst, host_bps[end], (end,)) for end in (src, dst)]

    def _host_bps(self, rtt_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the payload rate of a connection: its host's limit, or a window per round trip."""
        transport = self.transport
        window_bytes = transport.max_window_bytes * transport.sockets
        with np.errstate(divide="ignore"):
            return np.where(
                rtt_s == 0,
                transport.host_bps,
                np.minimum(transport.host_bps, 8 * window_bytes / rtt_s),
            )

    def _resource(self, key: tuple[object, ...], bps: float, in_order: bool) -> int:
        if key not in self._keys:
            if bps <= 0:
                raise PlanError(f"{key[0]} bandwidth is {bps:g} bit/s; expected more than 0")
            self._keys[key] = len(self._capacity)
            self._capacity.append(bps * self._goodput / 8)
            self._in_order.append(in_order)
        return self._keys[key]
