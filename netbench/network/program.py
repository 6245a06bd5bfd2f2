"""Compile a network into one shaping program (`tc -batch` text) per node. Pure.

What does what, and why:

- A HTB root, `default 0`: it only sorts. A packet no filter matches (SSH, the controller, ARP)
  goes out unshaped. One class and one netem leaf per destination, or per distinct link.
- The rate is netem's, not HTB's. netem counts every byte (`max(arrival + delay, end of the packet
  before) + bytes / rate`); a HTB class lets a burst through first, and at 1.12 Mbit/s (a scaled
  rate) the smallest legal burst, one frame, is 11 ms.
- A NIC cap is a HTB parent class, because it holds several queues back together, one quantum of
  each in turn. HTB sends first and pays after, so one flow alone would run ahead by a burst: each
  leaf has the cap as its own rate as well. What TCP hands over in one piece must not be more than
  the burst, or HTB makes it late. Measured, 25 Mbit/s: one message exact to 2 us, eight at once
  together early by the burst, 1 ms.
- Jitter must not reorder packets unless the link asks for it. netem with a rate sends no packet
  before the one ahead of it; so a link without a rate gets one that is never reached
  (`UNLIMITED_BPS`), and a link that may reorder has its rate in the HTB class instead.
- What befalls single packets (loss, say) must not befall 64 KiB at once, which is how TCP hands
  them over: then frames are handed over one by one (`max_segments`).
- `limit` is in packets and must never be what slows TCP down, see `_limit_packets`.
- A trunk is one leaf per region, at a router that everything leaving the region goes through.
- TCP from and to SSH's port is matched first and sent to the root itself, unshaped, whoever the
  peer is: the controller may run on a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from netbench.errors import NetworkError
from netbench.network.queues import (
    back_bps,
    destination_groups,
    egress_cap_bps,
    frame_bytes,
    leaf_bps,
    link_from,
    num_routers,
    num_senders,
    region_of,
)
from netbench.network.tc import (
    HANDLE,
    TABLE_DEVIATIONS,
    TABLES,
    HtbClass,
    Leaf,
    class_line,
    exempt_line,
    hash_lines,
    ip_version,
    leaf_line,
    match_line,
    parse_ip,
)
from netbench.scenario.model import Network

UNLIMITED_BPS = 1_000_000_000_000
"""Rate of a HTB class that only sorts, bit/s: above any NIC, and a rate every tc can print."""

CEILING_BPS = 100e9
"""What an unlimited link is taken to carry when queues and buffers are sized, bit/s."""

HASH_FROM_PEERS = 256
"""From here up filters are hashed on the last byte of the address instead of tried in turn."""

MIN_BUFFER_BYTES = (6 << 20, 4 << 20)
"""Linux's defaults for the third value of tcp_rmem and tcp_wmem, bytes: never set lower."""

MAX_BUFFER_BYTES = 1 << 30
"""Largest third value of tcp_rmem and tcp_wmem, bytes; the kernel keeps them in 32 bits."""

BUFFER_BDPS = 4
"""Buffer per bandwidth-delay product. Half of a buffer is bookkeeping, and a window that has
just left slow start is up to twice the product."""

SOCKETS_PER_PEER = 8
"""Connections between two nodes whose full send buffers fit a queue (gloo opens 2 to 4)."""

MAX_SEGMENTS = 65535
"""Linux's default for the frames TCP may hand over as one packet, to be cut up by the NIC."""

_PATIENCE = {
    "net.ipv4.tcp_early_retrans": "0",
    "net.ipv4.tcp_rto_min_us": "60000000",
}
"""Scaled down, ten frames (TCP's first window) fill a WAN link for 0.6 s: far longer than the 0.2 s
after which TCP sends again what is only queued. 165 needless frames an iteration were counted in
case 3, none with these. They are not set where frames are really lost."""

MAX_NODES = 0x6E61
"""Class ids are destination + 1 and name the leaves as well, which must not be called 6e62:."""

CAP_MINOR = 0xFFFF
"""The class of a NIC cap, the parent of all others."""

_MAX_TIME_US = 274_000_000  # 2^32 ticks of 64 ns, the longest time a qdisc holds
_MAX_JITTER_US = 2_147_483  # netem keeps a jitter in 31 bits of nanoseconds
_MAX_QUANTUM_BYTES = 200_000  # above, HTB warns: one class would send for too long
_BURST_S = 1e-3
_OWN_FRAME_S = 200.0  # HTB keeps a burst as the time it takes, which must stay below 274 s
_MAX_PACKET_BYTES = 1 << 16  # with segmentation offload


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """What one node's interface must hold. matches: destination address -> class minor.

    max_segments: frames TCP may hand over as one packet; a setting of the link, not of `tc`.
    exempt_ports: TCP ports, of either end, whose packets are not shaped.
    """

    node: int
    interface: str
    classes: tuple[HtbClass, ...]
    leaves: tuple[Leaf, ...]
    matches: tuple[tuple[str, int], ...]
    max_segments: int = MAX_SEGMENTS
    exempt_ports: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The program as `tc -batch` reads it. Fails on an interface with a root qdisc set."""
        dev = f"dev {self.interface}"
        lines = [f"qdisc add {dev} root handle {HANDLE} htb default 0"]
        lines += [class_line("add", dev, htb) for htb in self.classes]
        lines += [leaf_line("add", dev, leaf) for leaf in self.leaves]
        lines += _exempt_lines(dev, self.exempt_ports, self.matches)
        lines += _filter_lines(dev, self.matches)
        return "\n".join(lines) + "\n"


def compile_programs(
    network: Network, addresses: Sequence[Sequence[str]], interface: str, scale: float = 1.0
) -> tuple[Program, ...]:
    """The program of every node, then of every router. addresses: per node, IPv4 and IPv6.

    Raises NetworkError.
    """
    nodes = range(network.num_nodes + num_routers(network))
    return tuple(compile_program(network, node, addresses, interface, scale) for node in nodes)


def compile_program(
    network: Network,
    node: int,
    addresses: Sequence[Sequence[str]],
    interface: str,
    scale: float = 1.0,
    groups: Sequence[tuple[int, ...]] | None = None,
) -> Program:
    """The shaping program of one node or router. Bandwidths are divided by `scale`; delays not.

    groups: destinations that share a queue, where it is not `destination_groups` that says so.
    Ranks on the same node talk over loopback, which no program touches.
    Raises NetworkError for more nodes than class ids, or a rate or delay tc cannot express.
    """
    if network.num_nodes > MAX_NODES:
        raise NetworkError(f"{network.num_nodes} nodes: a shaping program holds {MAX_NODES}")
    cap_bps = _rate(egress_cap_bps(network, node), scale, f"NIC of node {node}")
    groups = destination_groups(network, node) if groups is None else groups
    minors = [group[0] + 1 for group in groups]
    leaves = tuple(
        _leaf(network, node, group, minor, scale)
        for group, minor in zip(groups, minors, strict=True)
    )
    reordered = {
        leaf.minor for leaf, group in zip(leaves, groups, strict=True)
        if leaf.rate_bps and link_from(network, node, group[0]).jitter_reorders
    }  # fmt: skip
    return Program(
        node=node,
        interface=interface,
        classes=_with_tables(_classes(network, leaves, cap_bps, reordered), leaves),
        leaves=tuple(
            replace(leaf, rate_bps=0) if leaf.minor in reordered else leaf for leaf in leaves
        ),
        matches=tuple(
            sorted(
                ((str(parse_ip(address)), minor)
                 for group, minor in zip(groups, minors, strict=True)
                 for dst in group for address in addresses[dst]),
                key=lambda match: (parse_ip(match[0]).version, parse_ip(match[0]).packed),
            )
        ),
        max_segments=1
        if _loses_frames(network, node)
        else _max_segments(cap_bps, frame_bytes(network)),
    )  # fmt: skip


def sysctls(network: Network, scale: float = 1.0) -> dict[str, str]:
    """Settings every node's network namespace needs for the run: name -> value.

    All are per namespace, so nothing has to be restored where a namespace ends with the run.
    """
    rmem, wmem = buffer_bytes(network, scale)
    lossy = any(link.mean_loss or link.queue_packets for row in network.links for link in row)
    return {
        **(_PATIENCE if scale > 1 and not lossy else {}),
        # Connections are older than the shaping. What they learned on the bare bridge (a round trip
        # of nothing) has to be forgotten, or RACK and cubic's HyStart act on it ever after, and on
        # which of two ranks happened to connect: one in six runs came out 4% off. Reno has no
        # HyStart.
        "net.ipv4.tcp_congestion_control": "reno",
        "net.ipv4.tcp_min_rtt_wlen": "1",
        "net.ipv4.tcp_slow_start_after_idle": "0",
        # A connection must not start from what an earlier one learned: runs would not repeat.
        "net.ipv4.tcp_no_metrics_save": "1",
        # netem holds a segmentation-offload packet back as one frame. Where the round trip is
        # short TCP makes these 64 KiB whatever the rate (20 ms at 25 Mbit/s), and then waits for
        # each: 0.87 of the rate was measured. Without this it sends about 1 ms at a time.
        "net.ipv4.tcp_tso_rtt_log": "0",
        "net.ipv4.tcp_rmem": f"4096 131072 {rmem}",
        "net.ipv4.tcp_wmem": f"4096 16384 {wmem}",
    }


def buffer_bytes(network: Network, scale: float) -> tuple[int, int]:
    """Largest TCP receive and send buffer, bytes: `BUFFER_BDPS` x the largest product."""
    need = BUFFER_BDPS * max(_region_pair_bdps(network, scale), default=0.0)
    pages = math.ceil(min(need, MAX_BUFFER_BYTES) / 4096) * 4096
    return max(pages, MIN_BUFFER_BYTES[0]), max(pages, MIN_BUFFER_BYTES[1])


def _region_pair_bdps(network: Network, scale: float) -> list[float]:
    """Rate x round-trip time of every region pair, bytes; a NIC counts with its largest cap."""
    cap = max(network.nic_bps, default=math.inf) if network.sharing == "nic" else math.inf
    return [
        min(there.bandwidth_bps, cap, CEILING_BPS) / scale / 8
        * (there.one_way_delay_s + network.links[j][i].one_way_delay_s)
        for i, row in enumerate(network.links)
        for j, there in enumerate(row)
    ]  # fmt: skip


def _classes(
    network: Network, leaves: Sequence[Leaf], cap_bps: int, reordered: set[int]
) -> tuple[HtbClass, ...]:
    """One class per leaf; those of `reordered` have the leaf's rate."""
    frame, minors = frame_bytes(network), [leaf.minor for leaf in leaves]
    own = {leaf.minor: leaf.rate_bps for leaf in leaves if leaf.minor in reordered}
    if not cap_bps:
        rates = [own.get(minor, UNLIMITED_BPS) for minor in minors]
        return tuple(_class(m, 0, r, r, frame) for m, r in zip(minors, rates, strict=True))
    # A class sends what it is sure of even where the cap is used up, and a burst of it each.
    # So it is sure of next to nothing, one frame in 200 s, and borrows: in turn, a quantum each.
    own_bps = 8 * math.ceil(frame / _OWN_FRAME_S)
    if own_bps * len(minors) > cap_bps / 100:
        raise NetworkError(
            f"a NIC cap of {cap_bps} bit/s (after scaling) is too low for HTB to share between "
            f"{len(minors)} destinations; lower the scale"
        )
    cap = _class(CAP_MINOR, 0, cap_bps, cap_bps, frame)
    ceils = [own.get(minor, cap_bps) for minor in minors]
    return (
        cap,
        *(
            _class(minor, CAP_MINOR, min(own_bps, ceil), ceil, frame)
            for minor, ceil in zip(minors, ceils, strict=True)
        ),
    )


def _with_tables(classes: Sequence[HtbClass], leaves: Sequence[Leaf]) -> tuple[HtbClass, ...]:
    tables = {leaf.minor: TABLES[leaf.distribution] for leaf in leaves if leaf.jitter_us}
    return tuple(replace(htb, mpu_bytes=tables.get(htb.minor, 0)) for htb in classes)


def _burst_bytes(rate_bps: int, frame: int) -> int:
    """1 ms at the rate, but never below one frame."""
    return max(math.ceil(rate_bps / 8 * _BURST_S), frame)


def _max_segments(cap_bps: int, frame: int) -> int:
    """As many frames as the burst of a NIC cap holds. Measured at 25 Mbit/s, one flow: 0.96 of the
    cap with packets of up to 64 KiB, 0.9999 so. From 64 KiB of burst there is nothing to limit.
    """
    burst = _burst_bytes(cap_bps, frame)
    return burst // frame if cap_bps and burst < _MAX_PACKET_BYTES else MAX_SEGMENTS


def _loses_frames(network: Network, node: int) -> bool:
    """Whether something befalls single frames of a node, on its own links or at its router.

    What TCP hands over in one piece netem loses, doubles or delays in one piece: 1% of loss on
    1 Gbit/s, 1 ms was 5 losses of 45 frames instead of 156 of one, and 888 Mbit/s instead of 146.
    """
    return any(
        link.mean_loss or link.duplication or link.reordering or link.jitter_reorders
        for link in network.links[region_of(network, node)]
    )


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


def _leaf(network: Network, node: int, group: tuple[int, ...], minor: int, scale: float) -> Leaf:
    link = link_from(network, node, group[0])
    where = f"link from node {node} to node {group[0]}"
    rate_bps = _rate(min(leaf_bps(network, node, dst) for dst in group), scale, where)
    if link.jitter_s and not link.jitter_reorders:
        rate_bps = rate_bps or UNLIMITED_BPS
    jitter_s = link.jitter_s / TABLE_DEVIATIONS[link.jitter_distribution]
    return Leaf(
        minor=minor,
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


def _limit_packets(network: Network, node: int, group: tuple[int, ...], scale: float) -> int:
    """Packets the leaf may hold: those on the way, and those waiting for the rate.

    On the way: 1.5 x bandwidth x delay in full frames, of the faster direction (acknowledgements
    of a fast flow cross its slow way back), plus 1000 for packets that are not full.
    Waiting: TCP sends into a netem queue until its window is as large as its send buffer. A queue
    that holds these makes TCP wait; a shorter one drops, and a message whose last packet was
    dropped is late by a whole queue. The limit only permits: what is not queued costs nothing.
    """
    frame = frame_bytes(network)
    in_flight = max(
        min(max(leaf_bps(network, node, dst), back_bps(network, node, dst)), CEILING_BPS)
        / scale / 8 * link_from(network, node, dst).one_way_delay_s / frame
        for dst in group
    )  # fmt: skip
    send_buffer = buffer_bytes(network, scale)[1]
    waiting = SOCKETS_PER_PEER * num_senders(network, node) * len(group) * send_buffer / frame
    return min(math.ceil(1.5 * in_flight + waiting) + 1000, 0xFFFFFFFF)


def _rate(bandwidth_bps: float, scale: float, where: str) -> int:
    """Bit/s in whole bytes, 0 = unlimited. Raises NetworkError below one byte per second."""
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


def _exempt_lines(
    dev: str, ports: tuple[int, ...], matches: tuple[tuple[str, int], ...]
) -> list[str]:
    versions = {ip_version(address) for address, _ in matches}
    return [
        exempt_line(dev, version, port, end)
        for version in sorted(versions)
        for port in ports
        for end in ("sport", "dport")
    ]


def _filter_lines(dev: str, matches: tuple[tuple[str, int], ...]) -> list[str]:
    lines: list[str] = []
    for version in sorted({ip_version(address) for address, _ in matches}):
        mine = [match for match in matches if ip_version(match[0]) == version]
        hashed = len(mine) >= HASH_FROM_PEERS
        lines += hash_lines(dev, version) if hashed else ()
        lines += [match_line(dev, address, minor, hashed=hashed) for address, minor in mine]
    return lines
