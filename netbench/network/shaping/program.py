"""Compile a network into one tc configuration (`tc -batch` text) per node. Pure.

Design decisions:

- The root is HTB with `default 0`. It only classifies: a packet that no filter matches (SSH, the
  controller, ARP) leaves unshaped. Each destination, or each distinct link, has one class and one
  netem leaf. A trunk is one leaf per region, at a router.
- netem limits the rate, not HTB. netem accounts for every byte (`max(arrival + delay, end of the
  previous packet) + bytes / rate`). A HTB class first lets a burst through. At 1.12 Mbit/s, a
  scaled rate, the smallest legal burst is one frame, which takes 11 ms.
- A NIC cap is a HTB parent class, because it delays several queues together, one quantum of each
  in turn. HTB sends before it charges, so a single flow would run ahead by a burst. Each leaf
  therefore has the cap as its own rate too. Measured at 25 Mbit/s: one message is exact to 2 us;
  eight at once are together early by the burst, 1 ms.
- In virtual time, the burst of a NIC is one turn, and its connections are served in turn (`fair`).
  Otherwise a message leaves as a whole while those of other connections wait.
- Jitter must not reorder packets unless the link asks for it. netem with a rate never sends a
  packet before the previous one. A link without a rate therefore gets one that is never reached
  (`UNLIMITED_BPS`), and a link that may reorder has its rate in the HTB class instead.
- TCP from and to SSH's port is matched first and sent to the root itself, unshaped, whoever the
  peer is: the controller may run on a node.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from netbench.errors import NetworkError
from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.segments import (
    largest_window_segments,
    packet_segments,
    segment_bytes,
)
from netbench.network.shaping.tc import (
    TABLE_DEVIATIONS,
    TABLES,
    HtbClass,
    Leaf,
    class_line,
    exempt_line,
    fair_line,
    frame_bytes,
    hash_lines,
    ip_version,
    leaf_line,
    match_line,
    parse_ip,
)
from netbench.scenario.model import Network
from netbench.scenario.sharing import (
    destination_groups,
    egress_cap_bps,
    flow_bps,
    forwarded_destinations,
    link_from,
    nic_caps_bps,
    num_routers,
    region_of,
)

UNLIMITED_BPS = 1_000_000_000_000
"""Rate of a HTB class that only classifies, bit/s: above any NIC, and printable by every tc."""

CEILING_BPS = 100e9
"""Rate of an unlimited link for the sizing of queues and buffers, bit/s."""

HASH_FROM_PEERS = 256
"""Number of peers from which filters are hashed by the last byte of the address."""

MIN_BUFFER_BYTES = (6 << 20, 4 << 20)
"""Linux's defaults for the third value of tcp_rmem and tcp_wmem, bytes: never set lower."""

MAX_BUFFER_BYTES = 1 << 30
"""Largest third value of tcp_rmem and tcp_wmem, bytes; the kernel keeps them in 32 bits."""

BUFFER_BDPS = 4
"""Buffer size in bandwidth-delay products. Half of a buffer is bookkeeping, and a window that has
just left slow start is up to twice the product."""

BUFFER_WINDOWS = 8
"""Receive buffer in windows where TCP acts. A segment of 280 bytes takes up to four times as much
memory, and the window may be half of the rest."""

SEND_WINDOWS = 2
"""Send buffer in windows where TCP acts: a writer is woken when a third of the buffer is free, and
by then the window must not be empty."""

SKB_BYTES = 1280
"""Memory of a packet beside its payload (sk_buff, its shared part, room for headers), bytes."""

SOCKETS_PER_PEER = 8
"""Connections between two nodes whose full send buffers a queue can hold (gloo opens 2 to 4)."""

MAX_SEGMENTS = 65535
"""Linux's default for the number of frames in one packet that TCP hands over to the NIC."""

_PATIENCE = {"net.ipv4.tcp_early_retrans": "0", "net.ipv4.tcp_rto_min_us": "60000000"}
"""Settings for scaled networks. There, TCP's first window of ten frames fills a WAN link for 0.6 s,
while TCP retransmits after 0.2 s what is only queued: 165 needless frames per iteration in case 3,
none with these settings. They are not set where frames are really lost."""

TURN_S = 1e-4
"""Time of a connection's turn at a NIC, seconds, at least a frame."""

FAIR_BUCKETS = 1 << 16
"""Hash buckets of all fair queues of a node: hardly two connections share one of a queue's."""

MAX_NODES = 0x6E61
"""Class ids are destination + 1. They name the leaves too, which must not be called 6e62:."""

CAP_MINOR = 0xFFFF
"""Class of a NIC cap, the parent of all others."""

_MAX_TIME_US = 274_000_000  # 2^32 ticks of 64 ns, the longest time a qdisc holds
_MAX_JITTER_US = 2_147_483  # netem keeps a jitter in 31 bits of nanoseconds
_MAX_QUANTUM_BYTES = 200_000  # above, HTB warns: one class would send for too long
_BURST_S = 1e-3
_OWN_FRAME_S = 200.0  # HTB keeps a burst as the time it takes, which must stay below 274 s
MAX_PACKET_BYTES = 1 << 16  # largest that TCP hands over, with segmentation offload


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """The tc configuration of one node's interface.

    matches: (destination address, class minor). max_segments: frames that TCP may hand over as one
    packet, a setting of the link. exempt_ports: TCP ports, at either end, that are not shaped.
    """

    node: int
    interface: str
    classes: tuple[HtbClass, ...]
    leaves: tuple[Leaf, ...]
    matches: tuple[tuple[str, int], ...]
    max_segments: int = MAX_SEGMENTS
    exempt_ports: tuple[int, ...] = ()

    @property
    def rates_bps(self) -> dict[int, float]:
        """Rate of every queue, bit/s, by its class minor; inf = not limited."""
        ceils = {htb.minor: htb.ceil_bps for htb in self.classes}
        rates = {x.minor: min(x.rate_bps or UNLIMITED_BPS, ceils[x.minor]) for x in self.leaves}
        return {minor: rate if rate < UNLIMITED_BPS else math.inf for minor, rate in rates.items()}

    @property
    def text(self) -> str:
        """`tc -batch` text. tc refuses it on an interface that has a root qdisc already."""
        dev = f"dev {self.interface}"
        lines = [f"qdisc add {dev} root handle {HANDLE} htb default 0"]
        lines += [class_line("add", dev, htb) for htb in self.classes]
        lines += [leaf_line("add", dev, leaf) for leaf in self.leaves]
        fair = [leaf for leaf in self.leaves if leaf.fair_quantum_bytes]
        lines += [fair_line(dev, leaf, FAIR_BUCKETS // len(fair)) for leaf in fair]
        by_version: dict[int, list[tuple[str, int]]] = {}
        for address, minor in self.matches:
            by_version.setdefault(ip_version(address), []).append((address, minor))
        lines += [
            exempt_line(dev, version, port, end)
            for version in sorted(by_version)
            for port in self.exempt_ports
            for end in ("sport", "dport")
        ]
        for version, mine in sorted(by_version.items()):
            hashed = len(mine) >= HASH_FROM_PEERS
            lines += hash_lines(dev, version) if hashed else ()
            lines += [match_line(dev, address, minor, hashed=hashed) for address, minor in mine]
        return "\n".join(lines) + "\n"


def compile_programs(
    network: Network,
    addresses: Sequence[Sequence[str]],
    interface: str,
    scale: float = 1.0,
    *,
    fair: bool = False,
) -> tuple[Program, ...]:
    """Compile for every node, then for every router. addresses: per node, IPv4 and IPv6.

    fair: connections of a NIC are served in turn. Raises NetworkError.
    """
    nodes = range(network.num_nodes + num_routers(network))
    return tuple(
        compile_program(network, node, addresses, interface, scale, fair=fair) for node in nodes
    )


def compile_program(
    network: Network,
    node: int,
    addresses: Sequence[Sequence[str]],
    interface: str,
    scale: float = 1.0,
    groups: Sequence[tuple[int, ...]] | None = None,
    exempt_ports: tuple[int, ...] = (),
    fair: bool = False,
) -> Program:
    """Compile for one node or router. `scale` divides bandwidths, but not delays.

    groups: destinations that share a queue, instead of `destination_groups`. fair: connections that
    only a NIC limits are served in turn, `TURN_S` of each. It needs timers that are never late.
    Ranks on the same node communicate over loopback, which is never shaped.
    Raises NetworkError for more nodes than class ids, or a rate or delay that tc cannot express.
    """
    if network.num_nodes > MAX_NODES:
        raise NetworkError(f"{network.num_nodes} nodes: a tc configuration holds {MAX_NODES}")
    cap_bps = _rate(egress_cap_bps(network, node), scale, f"NIC of node {node}")
    groups = destination_groups(network, node) if groups is None else groups
    forwarded = forwarded_destinations(network, node)
    leaves = tuple(_leaf(network, node, group, scale) for group in groups)
    reordered = {
        leaf.minor for leaf, group in zip(leaves, groups, strict=True)
        if leaf.rate_bps and link_from(network, node, group[0]).jitter_reorders
    }  # fmt: skip
    if forwarded:
        leaves = (*leaves, _forwarding_leaf(network, node, forwarded, cap_bps, scale))
        groups = (*groups, forwarded)
    ips = {parse_ip(x): group[0] + 1 for group in groups for dst in group for x in addresses[dst]}
    in_order = sorted(ips, key=lambda ip: (ip.version, ip.packed))
    tables = {leaf.minor: TABLES[leaf.distribution] for leaf in leaves if leaf.jitter_us}
    max_segments = _max_segments(network, node, cap_bps)
    if fair and cap_bps:
        max_segments = min(max_segments, _segments_in_turn(network, cap_bps))
        turn_bytes = min(max_segments * frame_bytes(network), MAX_PACKET_BYTES)
        leaves = tuple(
            replace(leaf, rate_bps=0, fair_quantum_bytes=turn_bytes)
            if has_fair_queue(network, node, group[0]) else leaf
            for leaf, group in zip(leaves, groups, strict=True)
        )  # fmt: skip
    classes = _classes(network, leaves, cap_bps, reordered)
    if any(leaf.fair_quantum_bytes for leaf in leaves):
        classes = tuple(
            replace(
                htb,
                burst_bytes=_least_burst_bytes(htb.rate_bps, frame_bytes(network)),
                ceil_burst_bytes=_least_burst_bytes(htb.ceil_bps, turn_bytes),
                quantum_bytes=turn_bytes,
            )
            for htb in classes
        )
    return Program(
        node=node,
        interface=interface,
        classes=tuple(replace(htb, mpu_bytes=tables.get(htb.minor, 0)) for htb in classes),
        leaves=tuple(
            replace(leaf, rate_bps=0) if leaf.minor in reordered else leaf for leaf in leaves
        ),
        matches=tuple((str(ip), ips[ip]) for ip in in_order),
        max_segments=max_segments,
        exempt_ports=exempt_ports,
    )


def has_fair_queue(network: Network, node: int, dst: int) -> bool:
    """Return whether connections from a node to another can be served in turn: HTB limits them to
    the rate of the NIC, instead of netem, which sends one message after the other."""
    cap_bps = egress_cap_bps(network, node)
    is_forwarded = dst in forwarded_destinations(network, node)
    if math.isinf(cap_bps) or (flow_bps(network, node, dst) < cap_bps and not is_forwarded):
        return False
    return is_forwarded or not link_from(network, node, dst).jitter_s


def sysctls(network: Network, scale: float = 1.0) -> dict[str, str]:
    """Return the sysctls that every node's network namespace needs for a run: name -> value.

    All are per namespace, so nothing has to be restored where the namespace ends with the run.
    """
    rmem, wmem = buffer_bytes(network, scale)
    common = {
        # A connection must not reuse the metrics of an earlier one: runs would not repeat.
        "net.ipv4.tcp_no_metrics_save": "1",
        # netem delays a segmentation-offload packet as one frame. On short round trips TCP makes
        # these 64 KiB at any rate (20 ms at 25 Mbit/s) and waits for each: 0.87 of the rate was
        # measured. With this setting it sends about 1 ms at a time, as Linux did before 5.18.
        "net.ipv4.tcp_tso_rtt_log": "0",
    }
    if network.tcp.acts:
        return {**common, **_acting_tcp(network, rmem, wmem)}
    lossy = any(link.mean_loss or link.queue_packets for row in network.links for link in row)
    return {
        **(_PATIENCE if scale > 1 and not lossy else {}),
        # Connections are older than the shaping. They must forget what they measured on the bare
        # bridge (a round trip near 0), or RACK and cubic's HyStart use it for the whole run. It
        # also depends on which of two ranks connected: one in six runs was 4% off. Reno has no
        # HyStart.
        "net.ipv4.tcp_congestion_control": "reno",
        "net.ipv4.tcp_min_rtt_wlen": "1",
        "net.ipv4.tcp_slow_start_after_idle": "0",
        **common,
        "net.ipv4.tcp_rmem": f"4096 131072 {rmem}",
        "net.ipv4.tcp_wmem": f"4096 16384 {wmem}",
    }


def _acting_tcp(network: Network, rmem: int, wmem: int) -> dict[str, str]:
    """Return the settings of TCP that acts as on the machines.

    Windows in segments are metrics of routes (`testbed.namespaces`). Receive buffers limit nothing,
    because the kernel counts its bookkeeping, which weighs more in small segments.
    """
    tcp = network.tcp
    return {
        "net.ipv4.tcp_congestion_control": tcp.congestion,
        "net.ipv4.tcp_slow_start_after_idle": str(int(tcp.slow_start_after_idle)),
        "net.ipv4.tcp_rto_min_us": str(round(tcp.min_rto_s * 1e6)),
        "net.ipv4.tcp_rmem": f"4096 {rmem} {rmem}",
        "net.ipv4.tcp_wmem": f"4096 {wmem} {wmem}",
        # A closed connection leaves the largest window, a locked metric, to those after it.
        "net.ipv4.tcp_no_metrics_save": "0",
    }


def buffer_bytes(network: Network, scale: float) -> tuple[int, int]:
    """Return the largest TCP receive and send buffers, bytes.

    `BUFFER_BDPS` x the largest bandwidth-delay product. If TCP acts, the machines' send buffer with
    room for the kernel's bookkeeping, and several of the largest windows to receive.
    """
    if network.tcp.acts:
        weight = 1 + SKB_BYTES / (packet_segments(network) * segment_bytes(network))
        window_bytes = largest_window_segments(network) * segment_bytes(network)
        return (
            min(max(MIN_BUFFER_BYTES[0], BUFFER_WINDOWS * window_bytes), MAX_BUFFER_BYTES),
            min(math.ceil(SEND_WINDOWS * window_bytes * weight), MAX_BUFFER_BYTES),
        )
    most_bps = min(max(nic_caps_bps(network), default=math.inf), CEILING_BPS)
    bdps = [
        min(there.bandwidth_bps, most_bps) / scale / 8
        * (there.one_way_delay_s + network.links[j][i].one_way_delay_s)
        for i, row in enumerate(network.links)
        for j, there in enumerate(row)
    ]  # fmt: skip
    need = BUFFER_BDPS * max(bdps, default=0.0)
    pages = math.ceil(min(need, MAX_BUFFER_BYTES) / 4096) * 4096
    return max(pages, MIN_BUFFER_BYTES[0]), max(pages, MIN_BUFFER_BYTES[1])


def _classes(
    network: Network, leaves: Sequence[Leaf], cap_bps: int, reordered: set[int]
) -> tuple[HtbClass, ...]:
    """Return one class per leaf. Classes of `reordered` leaves have the leaf's rate."""
    frame, minors = frame_bytes(network), [leaf.minor for leaf in leaves]
    own = {leaf.minor: leaf.rate_bps for leaf in leaves if leaf.minor in reordered}
    if not cap_bps:
        rates = [own.get(minor, UNLIMITED_BPS) for minor in minors]
        return tuple(_class(m, 0, r, r, frame) for m, r in zip(minors, rates, strict=True))
    # A class sends its guaranteed rate, and a burst at that rate, even when the cap is used up.
    # So the guarantee is almost nothing, one frame in 200 s, and classes borrow a quantum in turn.
    own_bps = 8 * math.ceil(frame / _OWN_FRAME_S)
    if own_bps * len(minors) > cap_bps / 100:
        raise NetworkError(
            f"a NIC cap of {cap_bps} bit/s (after scaling) is too low for HTB to share between "
            f"{len(minors)} destinations; lower the scale"
        )
    classes = [_class(CAP_MINOR, 0, cap_bps, cap_bps, frame)]
    for minor in minors:
        ceil_bps = own.get(minor, cap_bps)
        classes.append(_class(minor, CAP_MINOR, min(own_bps, ceil_bps), ceil_bps, frame))
    return tuple(classes)


def _burst_bytes(rate_bps: int, frame: int) -> int:
    """Return the bytes of 1 ms at the rate, at least one frame."""
    return max(math.ceil(rate_bps / 8 * _BURST_S), frame)


def _segments_in_turn(network: Network, cap_bps: int) -> int:
    """Return the frames that a connection sends in its turn at a NIC."""
    within_bytes = math.floor(cap_bps / 8 * TURN_S)
    if within_bytes >= MAX_PACKET_BYTES:
        return MAX_SEGMENTS
    return max(1, within_bytes // frame_bytes(network))


def _least_burst_bytes(rate_bps: int, least_bytes: int) -> int:
    """Return the smallest burst of at least `least_bytes`. tc keeps it as whole microseconds at the
    rate, rounded down: 1514 bytes at 1 Gbit/s would become 1500."""
    time_us = math.ceil(8e6 * least_bytes / rate_bps)
    return math.floor(time_us * rate_bps / 8e6) + 1


def _max_segments(network: Network, node: int, cap_bps: int) -> int:
    """Return 1 where single frames are impaired, else the frames in the burst of a NIC cap.

    netem impairs as a whole what TCP hands over as a whole. With 1% loss at 1 Gbit/s and 1 ms, 5
    losses of 45 frames gave 888 Mbit/s, and 156 of single frames gave 146. HTB delays packets that
    exceed the burst: one flow at 25 Mbit/s got 0.96 of the cap with packets of 64 KiB, else 0.9999.
    """
    for link in network.links[region_of(network, node)]:
        if link.mean_loss or link.duplication or link.reordering or link.jitter_reorders:
            return 1
    frame = frame_bytes(network)
    burst = _burst_bytes(cap_bps, frame)
    most = packet_segments(network) if network.tcp.acts else MAX_SEGMENTS
    return min(burst // frame, most) if cap_bps and burst < MAX_PACKET_BYTES else most


def _class(minor: int, parent: int, rate_bps: int, ceil_bps: int, frame: int) -> HtbClass:
    if frame * 8e6 / rate_bps > _MAX_TIME_US:
        raise NetworkError(
            f"a rate of {rate_bps} bit/s (after scaling) takes longer for a frame of {frame} bytes "
            f"than the {_MAX_TIME_US / 1e6:g} s that HTB holds; lower the scale"
        )
    ceil_burst = _burst_bytes(ceil_bps, frame)
    return HtbClass(
        minor=minor,
        parent=parent,
        rate_bps=rate_bps,
        ceil_bps=ceil_bps,
        burst_bytes=_burst_bytes(rate_bps, frame),
        ceil_burst_bytes=ceil_burst,
        quantum_bytes=min(ceil_burst, max(_MAX_QUANTUM_BYTES, frame)),
    )


def _leaf(network: Network, node: int, group: tuple[int, ...], scale: float) -> Leaf:
    link = link_from(network, node, group[0])
    where = f"link from node {node} to node {group[0]}"
    rate_bps = _rate(flow_bps(network, node, group[0]), scale, where)
    if link.jitter_s and not link.jitter_reorders:
        rate_bps = rate_bps or UNLIMITED_BPS
    jitter_s = link.jitter_s / TABLE_DEVIATIONS[link.jitter_distribution]
    return Leaf(
        minor=group[0] + 1,
        delay_us=_microseconds(link.one_way_delay_s, _MAX_TIME_US, f"{where}: a delay"),
        jitter_us=_microseconds(jitter_s, _MAX_JITTER_US, f"{where}: a jitter"),
        loss=link.loss,
        rate_bps=rate_bps,
        limit_packets=link.queue_packets or _limit_packets(network, node, group, scale),
        distribution=link.jitter_distribution,
        jitter_correlation=link.jitter_correlation,
        bursts=link.bursts,
        duplication=link.duplication,
        corruption=link.corruption,
        reordering=link.reordering,
        may_overflow=link.queue_packets > 0,
    )


def _forwarding_leaf(
    network: Network, node: int, group: tuple[int, ...], cap_bps: int, scale: float
) -> Leaf:
    """Return the leaf of packets that a router delays. Only the NIC limits them here."""
    return Leaf(
        minor=group[0] + 1,
        delay_us=0,
        jitter_us=0,
        loss=0.0,
        rate_bps=cap_bps,
        limit_packets=_limit_packets(network, node, group, scale),
    )


def _limit_packets(network: Network, node: int, group: tuple[int, ...], scale: float) -> int:
    """Return the number of packets a leaf may hold: those in flight, and those in the queue.

    In flight: 1.5 x bandwidth x delay of the faster direction in full frames, because the
    acknowledgements of a fast flow cross its slow way back, plus 1000 for smaller packets.
    In the queue: TCP fills a netem queue until its window equals its send buffer. A shorter queue
    drops packets, and a message whose last packet was dropped is late by a whole queue.
    """
    frame = frame_bytes(network)
    in_flight = max(
        min(max(flow_bps(network, node, dst), _back_bps(network, node, dst)), CEILING_BPS)
        / scale / 8 * link_from(network, node, dst).one_way_delay_s / frame
        for dst in group
    )  # fmt: skip
    send_buffer = buffer_bytes(network, scale)[1]
    region = node - network.num_nodes  # of a router
    num_senders = network.node_regions.count(region) if region >= 0 else 1
    waiting = SOCKETS_PER_PEER * num_senders * len(group) * send_buffer / frame
    return min(math.ceil(1.5 * in_flight + waiting) + 1000, 0xFFFFFFFF)


def _back_bps(network: Network, node: int, dst: int) -> float:
    """Return the highest rate of one flow from `dst` back to a node or router, bit/s, unscaled."""
    if node < network.num_nodes:
        return flow_bps(network, dst, node)
    link = network.links[network.node_regions[dst]][region_of(network, node)]
    return min(link.bandwidth_bps, egress_cap_bps(network, dst))


def _rate(bandwidth_bps: float, scale: float, where: str) -> int:
    """Round a rate to whole bytes, bit/s; 0 = unlimited. Raises NetworkError below 1 byte/s."""
    if math.isinf(bandwidth_bps):
        return 0
    rate_bps = 8 * round(bandwidth_bps / scale / 8)
    if rate_bps < 8:
        raise NetworkError(
            f"{where}: {bandwidth_bps:g} bit/s over a scale of {scale:g} is less than 1 byte/s, "
            "the least tc can shape; lower the scale"
        )
    return rate_bps


def _microseconds(seconds: float, most_us: int, what: str) -> int:
    time_us = round(seconds * 1e6)
    if time_us > most_us:
        most_s = most_us / 1e6
        raise NetworkError(f"{what} of {seconds:g} s is above what netem holds, {most_s:.4g} s")
    return time_us
