"""The queues of a network, as data: an entry of `SHARING` per value of a scenario's `sharing`.

Between two nodes, packets pass queues in the order of `Sharing.queues`. Simulator, tc
configurations, their verification, `explain` and placement read queues here and know no names.
Indices of nodes may be those of routers too: that of region r is `num_nodes + r`.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netbench.scenario.model import Link, Network

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]


class Place(Enum):
    """Location of a queue. Those at receivers exist in the simulator and in emulated runs on this
    machine (`testbed.ingress`); on other nodes `tc` shapes egress only."""

    SENDER = "sender"
    ROUTER = "router of the sender's region"
    RECEIVER = "receiver"


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueKind:
    """Queues of one kind.

    by: columns of a pair of nodes: `src`, `dst`, `src_region`, `dst_region`, and `link`, which is
        the same number for equal links. Pairs that agree in all of them share a queue.
    rate: `link`, or the NIC of one end, `src_nic` or `dst_nic`.
    across: whether pairs of two regions pass such a queue (True), or those inside one (False).
    """

    name: str
    by: tuple[str, ...]
    rate: str = "link"
    place: Place = Place.SENDER
    across: bool | None = None

    @property
    def is_cap(self) -> bool:
        """True for a NIC, which caps what passes other queues there."""
        return self.rate != "link"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """A sharing semantics.

    meaning: completes "one-way delay; ...". queues: in the order that packets pass them. Each pair
    passes one that is not a cap; `tc` delays packets there. At a router, `by` has regions only.
    """

    meaning: str
    queues: tuple[QueueKind, ...]

    @property
    def has_nics(self) -> bool:
        """True if a NIC limits its node."""
        return any(kind.is_cap for kind in self.queues)

    @property
    def is_by_sender(self) -> bool:
        """True if flows of different senders never share a queue."""
        return all("src" in kind.by for kind in self.queues)


PAIR = QueueKind(name="pair", by=("src", "dst"))
CLASS = QueueKind(name="class", by=("src", "link"))
INSIDE = replace(PAIR, across=False)
TRUNK = QueueKind(name="trunk", by=("src_region", "dst_region"), place=Place.ROUTER, across=True)
EGRESS = QueueKind(name="egress", by=("src",), rate="src_nic")
INGRESS = QueueKind(name="ingress", by=("dst",), rate="dst_nic", place=Place.RECEIVER)

SHARING: Mapping[str, Sharing] = {
    "pair": Sharing(meaning="each pair of nodes has its own rate", queues=(PAIR,)),
    "class": Sharing(meaning="destinations over equal links share the rate", queues=(CLASS,)),
    "nic": Sharing(meaning="all destinations share the node's NIC", queues=(PAIR, EGRESS, INGRESS)),
    "class-nic": Sharing(
        meaning="destinations over equal links share the rate, and all share the node's NIC",
        queues=(CLASS, EGRESS, INGRESS),
    ),
    "trunk": Sharing(
        meaning="all traffic between two regions shares one rate", queues=(INSIDE, TRUNK)
    ),
    "trunk-nic": Sharing(
        meaning="all traffic between two regions shares one rate, and all destinations share the "
        "node's NIC",
        queues=(INSIDE, EGRESS, TRUNK, INGRESS),
    ),
}


class Crossing(NamedTuple):
    """For each of n pairs: whether it passes a queue of `kind`, the rate of that queue, bit/s,
    unscaled, and the columns `kind.by`, which identify it. All arrays are (n,)."""

    kind: QueueKind
    passes: NDArray[np.bool_]
    bps: Floats
    keys: tuple[Ids, ...]

    def ids(self, pairs: Ids | NDArray[np.bool_]) -> list[tuple[object, ...]]:
        """Return what identifies the queue of each of some pairs: its kind's name and columns."""
        columns = (column[pairs].tolist() for column in self.keys)
        return [(self.kind.name, *key) for key in zip(*columns, strict=True)]


class Queues:
    """The queues between nodes of a network.

    region: of nodes and routers. link: (num_regions, num_regions), [src, dst], equal numbers for
    equal links.
    """

    def __init__(self, network: Network) -> None:
        self._kinds = SHARING[network.sharing].queues
        routers = range(len(network.regions))
        self.region = np.array([*network.node_regions, *routers])
        numbers: dict[Link, int] = {}
        self.link = np.array(
            [[numbers.setdefault(link, len(numbers)) for link in row] for row in network.links]
        )
        self._link_bps = np.array([link.bandwidth_bps for link in numbers])
        self._nic_bps = np.array([*network.nic_bps, *(math.inf for _ in routers)])

    def between(self, src: Ids, dst: Ids) -> list[Crossing]:
        """Return the queues from nodes or routers to nodes, (n,) each, in the order of passing.

        A node passes no queue to itself.
        """
        here, there = self.region[src], self.region[dst]
        link = self.link[here, there]
        columns = {"src": src, "dst": dst, "src_region": here, "dst_region": there, "link": link}
        nic_bps = self._nic_bps
        bps = {"link": self._link_bps[link], "src_nic": nic_bps[src], "dst_nic": nic_bps[dst]}
        apart, crosses = src != dst, here != there
        return [
            Crossing(
                kind,
                apart if kind.across is None else apart & (crosses == kind.across),
                bps[kind.rate],
                tuple(columns[name] for name in kind.by),
            )
            for kind in self._kinds
        ]


def num_routers(network: Network) -> int:
    """Return the number of routers: one per region if regions share queues, else 0."""
    num_regions = len(network.regions)
    routed = any(kind.place is Place.ROUTER for kind in SHARING[network.sharing].queues)
    return num_regions if routed and num_regions > 1 else 0


def nic_caps_bps(network: Network) -> tuple[float, ...]:
    """Return the cap of each node's NIC, bit/s, unscaled; inf where `sharing` ignores NICs."""
    return network.nic_bps if SHARING[network.sharing].has_nics else (math.inf,) * network.num_nodes


def egress_cap_bps(network: Network, node: int) -> float:
    """Return the cap of all egress of a node or router, bit/s, unscaled; inf if there is none."""
    capped = node < network.num_nodes and SHARING[network.sharing].has_nics
    return network.nic_bps[node] if capped else math.inf


def destination_groups(network: Network, node: int) -> list[tuple[int, ...]]:
    """Return the destinations that share each queue at a node or router, ordered by first member.

    Destinations whose queue is elsewhere are left out.
    """
    place = Place.SENDER if node < network.num_nodes else Place.ROUTER
    peers = np.flatnonzero(np.arange(network.num_nodes) != node)
    groups: dict[Hashable, list[int]] = {}
    for queues in Queues(network).between(np.full(len(peers), node), peers):
        if queues.kind.place is place and not queues.kind.is_cap:
            passing = peers[queues.passes].tolist()
            for dst, queue in zip(passing, queues.ids(queues.passes), strict=True):
                groups.setdefault(queue, []).append(dst)
    return sorted(tuple(group) for group in groups.values())


def forwarded_destinations(network: Network, node: int) -> tuple[int, ...]:
    """Return the destinations that pass only the NIC of a node; their queues are at a router."""
    if math.isinf(egress_cap_bps(network, node)):
        return ()
    queued = {dst for group in destination_groups(network, node) for dst in group}
    return tuple(dst for dst in range(network.num_nodes) if dst not in queued | {node})


def region_of(network: Network, node: int) -> int:
    """Return the region of a node or router."""
    routed = node - network.num_nodes
    return routed if routed >= 0 else network.node_regions[node]


def link_from(network: Network, node: int, dst: int) -> Link:
    """Return the link from a node or router to node `dst`."""
    return network.links[region_of(network, node)][network.node_regions[dst]]


def flow_bps(network: Network, node: int, dst: int) -> float:
    """Return the highest rate of the packets of one flow from a node or router to node `dst`,
    bit/s, unscaled. Of a link that a window limits, it is that of the NIC."""
    cap_bps = egress_cap_bps(network, node)
    if is_window_limited(network, node, dst):
        return cap_bps
    return min(link_from(network, node, dst).bandwidth_bps, cap_bps)


def is_window_limited(network: Network, node: int, dst: int) -> bool:
    """Return True if the window of a connection limits it to the rate of the link from a node or
    router to node `dst` (`Tcp.limits_links`).

    The NIC must be faster, and the rate fill more than TCP's first window in a round trip.
    """
    if not network.tcp.limits_links or node >= network.num_nodes:
        return False
    link, cap_bps = network.link(node, dst), egress_cap_bps(network, node)
    first_bits = 8 * network.tcp.sockets * network.tcp.initial_window * network.mtu_bytes
    in_flight_bits = link.bandwidth_bps * round_trip_s(network, node, dst)
    return math.isfinite(cap_bps) and link.bandwidth_bps < cap_bps and in_flight_bits > first_bits


def round_trip_s(network: Network, src: int, dst: int) -> float:
    """Return the delays from node `src` to node `dst` and back, seconds."""
    return network.link(src, dst).one_way_delay_s + network.link(dst, src).one_way_delay_s


def joint_bps(network: Network, flows: Sequence[tuple[int, int]]) -> float:
    """Return the rate that flows, (source, destination), get together, bit/s, unscaled."""
    return sum(fair_bps(network, flows))


def fair_bps(
    network: Network, flows: Sequence[tuple[int, int]], *, ingress: bool = False
) -> list[float]:
    """Return the max-min fair share of each flow, (source, destination), bit/s, unscaled.

    Source: Bertsekas and Gallager, Data Networks, section 6.5.2. ingress: NICs also limit what they
    receive; `tc` on the nodes does not see to that.
    """
    src, dst = np.array(flows).T
    members: dict[Hashable, list[int]] = {}
    capacity: dict[Hashable, float] = {}
    for queues in Queues(network).between(src, dst):
        passes = queues.passes & (ingress or queues.kind.place is not Place.RECEIVER)
        passing = np.flatnonzero(passes & np.isfinite(queues.bps))
        for flow, queue in zip(passing.tolist(), queues.ids(passing), strict=True):
            members.setdefault(queue, []).append(flow)
            capacity[queue] = float(queues.bps[flow])
    growing, rates = set(range(len(flows))), [math.inf] * len(flows)
    while members and growing:
        full = min(members, key=lambda queue: capacity[queue] / len(members[queue]))
        share_bps = capacity[full] / len(members[full])
        for flow in members[full]:
            rates[flow] = share_bps
        growing -= {*members[full]}
        for crossed, through in list(members.items()):
            rest = [flow for flow in through if flow in growing]
            capacity[crossed] -= share_bps * (len(through) - len(rest))
            members[crossed] = rest
            if not rest:
                del members[crossed]
    return rates
