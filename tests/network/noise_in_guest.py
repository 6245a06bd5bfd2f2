"""Impairments that netem really applies: numbered packets over a shaped link, one by one.

`python -m tests.network.noise_in_guest`, as root in a kernel with netem, in virtual time, with /run
private. Prints what was asked for and what came out; exits with 1 if one is not the other.
docs/netem-limits.md quotes it.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import socket
import statistics
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from netbench.network.shaping.apply import apply, clear
from netbench.network.shaping.program import Program, compile_program
from netbench.scenario.model import BurstLoss, Link
from tests.network.inside_guest import ADDRESSES, NODES, build, run
from tests.networks import two_regions

CLONE_NEWNET = 0x40000000
SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_TIMESTAMPNS = 32, 33, 35
"""From linux/socket.h; not in Python's socket."""
TCPI_TOTAL_RETRANS = 100  # bytes before it in struct tcp_info, linux/tcp.h
UDP_PORT, PLAIN_PORT, SSH_PORT = 9000, 9001, 22
PAYLOAD_BYTES = 200
SIGMAS = 4.5
"""A share may be this many standard errors off: by chance once in 150,000 times."""

DELAY_S, JITTER_S = 0.04, 0.002
STILL = Link(one_way_delay_s=DELAY_S, bandwidth_bps=math.inf)
NOISY = replace(STILL, jitter_s=JITTER_S)


@dataclass(frozen=True, kw_only=True, slots=True)
class PacketTrain:
    """num_sent packets and what arrived, in order: (number, seconds since it was sent, intact)."""

    num_sent: int
    arrived: tuple[tuple[int, float, bool], ...]

    @property
    def delays_s(self) -> list[float]:
        return [delay_s for _, delay_s, _ in self.arrived]

    @property
    def num_late(self) -> int:
        """Packets that a later one overtook."""
        newest, late = -1, 0
        for number, _, _ in self.arrived:
            late += number < newest
            newest = max(newest, number)
        return late

    @property
    def share_lost(self) -> float:
        return 1 - len({number for number, _, _ in self.arrived}) / self.num_sent

    def bursts(self) -> list[int]:
        """Lengths of the runs of lost packets."""
        there = {number for number, _, _ in self.arrived}
        runs = itertools.groupby(range(self.num_sent), key=there.__contains__)
        return [len(list(run)) for arrived, run in runs if not arrived]


def enter(node: int) -> None:
    """From now on this process makes its sockets in a node's namespace."""
    with Path(f"/run/netns/n{node}").open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def udp_pair() -> tuple[socket.socket, socket.socket]:
    """A socket in node 0 that sends to one in node 1."""
    enter(1)
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
    receiver.bind((ADDRESSES[1][0], UDP_PORT))
    enter(0)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 26)
    sender.connect((ADDRESSES[1][0], UDP_PORT))
    return sender, receiver


def send_train(num_packets: int, gap_s: float, wait_s: float = 1.0) -> PacketTrain:
    """Send a packet every gap_s; once the last was sent wait_s ago, note what arrived.

    The kernel stamps what arrives, so that nobody has to wait for it between two packets.
    """
    sender, receiver = udp_pair()
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    filler = bytes(i % 256 for i in range(PAYLOAD_BYTES - 16))
    arrived = []
    start_s = time.monotonic()
    with sender, receiver:
        for number in range(num_packets):
            if (left_s := start_s + number * gap_s - time.monotonic()) > 0:
                time.sleep(left_s)
            sender.send(struct.pack("!QQ", number, time.time_ns()) + filler)
        time.sleep(wait_s)
        receiver.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                data, ((_, _, stamp),), _, _ = receiver.recvmsg(65535, 64)
                index, sent_ns = struct.unpack("!QQ", data[:16])
                seconds, nanoseconds = struct.unpack("=qq", stamp)
                delay_s = (seconds * 10**9 + nanoseconds - sent_ns) / 1e9
                arrived.append((index, delay_s, data[16:] == filler))
    return PacketTrain(num_sent=num_packets, arrived=tuple(arrived))


@contextmanager
def shaped(link: Link, exempt_ports: tuple[int, ...] = ()) -> Iterator[Program]:
    """Node 0 sends to node 1 over the link; nothing else is shaped."""
    program = compile_program(two_regions(link, link, num_nodes=2), 0, ADDRESSES, "eth0")
    program = replace(program, exempt_ports=exempt_ports)
    apply([program], NODES)
    try:
        yield program
    finally:
        clear([program], NODES)


def train(link: Link, num_packets: int, gap_s: float) -> PacketTrain:
    with shaped(link):
        return send_train(num_packets, gap_s)


def off(what: str, found: float, asked: float, most: float) -> Iterator[str]:
    """Print both; a problem if they are more than `most` apart."""
    print(f"  {what}: {found:.6g}, asked for {asked:.6g} (± {most:.2g})")
    if not abs(found - asked) <= most:
        yield f"{what} is {found:.6g}, asked for {asked:.6g} ± {most:.2g}"


def share_error(share: float, number: int) -> float:
    """Return the largest error of a fraction of `number` independent packets."""
    return SIGMAS * math.sqrt(share * (1 - share) / number)


def lag_correlation(values: Sequence[float]) -> float:
    """Return the correlation of each value with the one before."""
    return statistics.correlation(values[1:], values[:-1])


MEAN_SHIFTS = {"normal": 0.0, "uniform": 0.0, "pareto": -0.041, "paretonormal": -0.030}
"""Mean of tc's tables over their standard deviation (iproute2 6.1): their tails are cut."""

SPREADS = {"normal": 0.05, "uniform": 0.04, "pareto": 0.12, "paretonormal": 0.10}
"""Largest relative error of a standard deviation of 4000 values."""


def check_distributions() -> Iterator[str]:
    """Each has the deviation that was asked for, where nothing keeps packets in order."""
    for name in MEAN_SHIFTS:
        print(f"jitter of 2 ms, {name}")
        found = train(replace(NOISY, jitter_distribution=name, jitter_reorders=True), 4000, 0.001)
        mean_s = DELAY_S + MEAN_SHIFTS[name] * JITTER_S
        yield from off(f"{name}: mean delay, s", statistics.mean(found.delays_s), mean_s, 1.5e-4)
        deviation_s = statistics.pstdev(found.delays_s)
        yield from off(f"{name}: deviation, s", deviation_s, JITTER_S, SPREADS[name] * JITTER_S)
        low, high = min(found.delays_s) - DELAY_S, max(found.delays_s) - DELAY_S
        print(f"  from {low * 1e3:+.2f} to {high * 1e3:+.2f} ms; {found.num_late} of 4000 late")
        if not found.num_late:
            yield f"{name}: jitter of a link that may reorder never did"


def check_order() -> Iterator[str]:
    """Without `reorders` packets keep their order, whatever the rate; what that does to jitter."""
    for name, rate_bps in (("unlimited", math.inf), ("10 Mbit/s", 10e6)):
        for gap_s in (0.0002, 0.001, 0.004, 0.02):
            found = train(replace(NOISY, bandwidth_bps=rate_bps), 2000, gap_s)
            mean_ms = (statistics.mean(found.delays_s) - DELAY_S) * 1e3
            deviation_ms = statistics.pstdev(found.delays_s) * 1e3
            print(f"jitter of 2 ms in order, {name}, a packet per {gap_s * 1e3:g} ms: "
                  f"mean {mean_ms:+.2f} ms, deviation {deviation_ms:.2f} ms")  # fmt: skip
            if found.num_late or found.share_lost:
                yield f"{name}: {found.num_late} packets late, {found.share_lost} lost"


def check_correlation() -> Iterator[str]:
    """A correlation does nothing to the delays of neighbours on Linux 6.12. Where this fails, the
    kernel has learned it: then docs/netem-limits.md and `shaping.limits` are out of date."""
    number = 2000
    for name in ("normal", "uniform"):
        for share in (0.5, 0.9):
            link = replace(NOISY, jitter_distribution=name, jitter_correlation=share)
            found = train(replace(link, jitter_reorders=True), number, 0.02)
            what = f"{name}, correlation of {share:.0%}: between neighbours"
            lag = lag_correlation(found.delays_s)
            yield from off(what, lag, 0.0, SIGMAS / math.sqrt(number))


def check_loss() -> Iterator[str]:
    """At random, and in bursts: mean loss and mean length of a burst."""
    print("loss of 3% at random")
    found = train(replace(STILL, loss=0.03), 20000, 0.0001)
    yield from off("lost", found.share_lost, 0.03, share_error(0.03, 20000))
    to_bad, to_good, number = 0.02, 0.25, 40000
    for loss_bad, loss_good in ((1.0, 0.0), (0.7, 0.01)):
        bursts = BurstLoss(to_bad=to_bad, to_good=to_good, loss_bad=loss_bad, loss_good=loss_good)
        print(f"bursts: {bursts}")
        found = train(replace(STILL, bursts=bursts), number, 0.0001)
        # Of a chain of two states whose memory is 1 - to_bad - to_good per packet.
        memory = 1 - to_bad - to_good
        error = share_error(bursts.loss, number) * math.sqrt((1 + memory) / (1 - memory))
        yield from off("lost", found.share_lost, bursts.loss, error)
        lengths = found.bursts()
        if (loss_bad, loss_good) == (1.0, 0.0):
            spread = math.sqrt(1 - to_good) / to_good / math.sqrt(len(lengths))
            mean = statistics.mean(lengths)
            yield from off("packets of a burst", mean, 1 / to_good, SIGMAS * spread)


def check_shares() -> Iterator[str]:
    """Packets that arrive twice, damaged, ahead of others."""
    number, share = 20000, 0.05
    error = share_error(share, number)
    print("duplication, corruption, reordering of 5%")
    found = train(replace(STILL, duplication=share), number, 0.0001)
    times = Counter(index for index, _, _ in found.arrived)
    yield from off("twice", sum(n == 2 for n in times.values()) / number, share, error)
    if max(times.values()) > 2 or found.share_lost:
        yield f"duplication: up to {max(times.values())} copies, {found.share_lost} lost"
    found = train(replace(STILL, corruption=share), number, 0.0001)
    # A bit of the sender's Ethernet address, 6 of the frame's bytes, is nobody's concern.
    unseen = 6 / (PAYLOAD_BYTES + 42)
    yield from off("damaged", found.share_lost, share * (1 - unseen), error)
    print(f"  {sum(not intact for _, _, intact in found.arrived)} arrived with a wrong byte")
    found = train(replace(STILL, reordering=share), number, 0.0001)
    ahead = sum(delay_s < DELAY_S / 2 for delay_s in found.delays_s) / number
    yield from off("ahead", ahead, share, error)


def check_queue() -> Iterator[str]:
    """A stated queue holds what it says, on the way or waiting."""
    print("queue of 100 packets, 500 at once")
    found = train(replace(STILL, bandwidth_bps=10e6, queue_packets=100), 500, 0.0)
    yield from off("arrived", len(found.arrived), 100, 1)


def check_tcp() -> Iterator[str]:
    """TCP loses frame by frame what the link loses, not 64 KiB at once."""
    with shaped(replace(STILL, one_way_delay_s=0.001, bandwidth_bps=1e9, loss=0.01)) as program:
        start_s = time.monotonic()
        resent = send_stream(20 << 20)
        goodput_bps = 8 * (20 << 20) / (time.monotonic() - start_s)
        shown = run(0, ("tc", "-s", "-j", "qdisc", "show", "dev", "eth0"), "")[1]
    (leaf,) = (qdisc for qdisc in json.loads(shown) if qdisc["kind"] == "netem")
    frames = leaf["packets"] + leaf["drops"]
    print(f"TCP, 1 Gbit/s, 1 ms, loss of 1%, at most {program.max_segments} frame(s) at once: "
          f"{goodput_bps / 1e6:.0f} Mbit/s, {frames} frames")  # fmt: skip
    yield from off("lost", leaf["drops"] / frames, 0.01, share_error(0.01, frames))
    yield from off("sent again", resent, leaf["drops"], 0.05 * leaf["drops"])


def send_stream(size_bytes: int) -> int:
    """Frames that TCP sent again of a stream from node 0 to node 1."""
    enter(1)
    with socket.create_server((ADDRESSES[1][0], PLAIN_PORT)) as listener:
        enter(0)
        client = socket.create_connection((ADDRESSES[1][0], PLAIN_PORT))
        server = listener.accept()[0]
    with client, server:
        sender = threading.Thread(target=client.sendall, args=(bytes(size_bytes),))
        sender.start()
        received = 0
        while received < size_bytes:
            received += len(server.recv(1 << 20))
        sender.join()
        info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (total_retransmitted,) = struct.unpack_from("=I", info, TCPI_TOTAL_RETRANS)
    return int(total_retransmitted)


def check_exempt() -> Iterator[str]:
    """TCP from and to port 22 does not wait; others do. IPv4 and IPv6."""
    with shaped(STILL, exempt_ports=(SSH_PORT,)):
        for family, version in ((socket.AF_INET, 0), (socket.AF_INET6, 1)):
            for server, port, asked_s in (
                (1, SSH_PORT, 0.0), (1, PLAIN_PORT, DELAY_S),
                (0, SSH_PORT, 0.0), (0, PLAIN_PORT, DELAY_S),
            ):  # fmt: skip
                name = f"IPv{4 + 2 * version}, node {1 - server} to port {port} of node {server}"
                connect_s = connect(family, ADDRESSES[server][version], server, port)
                yield from off(f"{name}, s", connect_s, asked_s, 1e-4)


def connect(family: socket.AddressFamily, address: str, server: int, port: int) -> float:
    """Seconds until a connection to `port` of node `server` stands, from the other node; its first
    packets resolve the neighbour's address and are not counted."""
    enter(server)
    with socket.create_server((address, port), family=family) as listener:
        enter(1 - server)
        times = []
        for _ in range(2):
            with socket.socket(family, socket.SOCK_STREAM) as client:
                start_s = time.monotonic()
                client.connect((address, port))
                times.append(time.monotonic() - start_s)
                listener.accept()[0].close()
    return times[-1]


CHECKS = (
    check_distributions, check_order, check_correlation, check_loss, check_shares, check_queue,
    check_tcp, check_exempt,
)  # fmt: skip


def main() -> int:
    """Run all checks, or those named; print what failed."""
    build(2)
    chosen = [check for check in CHECKS if not sys.argv[1:] or check.__name__ in sys.argv[1:]]
    problems = [problem for check in chosen for problem in check()]
    for problem in problems:
        print(f"FAILED: {problem}")
    print("all as asked for" if not problems else f"{len(problems)} problems")
    return 1 if problems or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
