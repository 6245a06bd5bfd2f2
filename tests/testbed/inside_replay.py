"""Traces played in persistent networks, seen by packets: run in a guest in virtual time, as root,
with /run private.

`python -m tests.testbed.inside_replay` exits with 1 and says what was wrong, or with 0. All sockets
are this process's own, so every time is by one clock.
"""

from __future__ import annotations

import math
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from netbench.network.nodes import Channel
from netbench.network.shaping import netlink
from netbench.network.shaping.apply import read_back
from netbench.network.traces.replay import START_MARGIN_S, Played, play
from netbench.network.traces.trace import Change, ReplayStep
from netbench.scenario.model import Link, Network
from netbench.testbed.interface import NodeAddress
from netbench.testbed.namespaces import BRIDGE, build, gateways, namespace_nodes, namespace_path
from netbench.testbed.persistent.replay import SESSION, request
from netbench.testbed.persistent.session import network_addresses
from netbench.testbed.shaping import programs, shape, tune

NEAR = Link(one_way_delay_s=0.001, bandwidth_bps=1e9)
FAR = Link(one_way_delay_s=0.005, bandwidth_bps=40e6)
NIC_BPS = 30e6
NAMES = ("n0", "n1", "n2", "n3")
SRC, DST = 0, 2

LONG_S, SLOW_BPS = 0.05, 10e6
CHANGES = tuple(
    Change(time_s=time_s, src=0, dst=1, **values)
    for time_s, values in (
        (0.5, {"one_way_delay_s": LONG_S}),
        (1.0, {"one_way_delay_s": FAR.one_way_delay_s}),
        (1.5, {"bandwidth_bps": SLOW_BPS}),
        (2.0, {"loss": 1.0}),
        (2.5, {"loss": 0.0}),
    )
)
RATE_CHANGE = (Change(time_s=2.0, src=0, dst=1, bandwidth_bps=SLOW_BPS),)
WINDOWS_S = ((1.0, 2.0), (4.0, 6.0))
"""Windows of throughput, by the trace's clock: before, and once the old queue has drained."""

PACKET_S, LATE_S, EXACT_S = 0.001, 0.001, 100e-6
TOLERANCE = 0.005
DATAGRAM = 100
FRAME_BITS = 8 * (DATAGRAM + 8 + 20 + 14)
PAYLOAD, FRAME = 1448, 1514


def network(sharing: str) -> Network:
    """Two nodes in each of two regions."""
    return Network(
        regions=("a", "b"),
        links=((NEAR, FAR), (FAR, NEAR)),
        node_regions=(0, 0, 1, 1),
        sharing=sharing,
        nic_bps=(NIC_BPS if sharing == "nic" else math.inf,) * 4,
    )


@contextmanager
def kept(wanted: Network) -> Iterator[tuple[NodeAddress, ...]]:
    """The network, shaped, until the context ends."""
    nodes = network_addresses(wanted, NAMES)
    build(nodes, wanted.mtu_bytes, gateways(wanted))
    try:
        reached = namespace_nodes(nodes)
        tune(reached, nodes, wanted, 1.0)
        shape(reached, nodes, wanted, 1.0)
        yield nodes
    finally:
        names = [(f"v{node.index}", namespace_path(node.index).name) for node in nodes]
        lines = [f"link del {plug}\nnetns del {name}\n" for plug, name in names]
        lines.append(f"link del {BRIDGE}\n")
        subprocess.run(["ip", "-batch", "-"], input="".join(lines), text=True, check=True)


class Pipes:
    """A process as a channel."""

    def __init__(self, argv: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def receive(self) -> str | None:
        assert self.process.stdout is not None
        return self.process.stdout.readline() or None

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


class Player:
    """A trace played on a persistent network while a block runs; start_s: when it started."""

    def __init__(self, wanted: Network, changes: Sequence[Change]) -> None:
        self.session = Pipes([sys.executable, "-m", SESSION])
        self.session.send(request(wanted, NAMES, changes))
        self.start_s = math.inf
        self.played: dict[int, Played | Exception] = {}
        times_s = sorted({change.time_s for change in changes})
        steps = {0: [ReplayStep(time_s=time_s, text="") for time_s in times_s]}
        channels: dict[int, Channel] = {0: self.session}
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._play, args=(channels, steps))

    def _play(self, channels: dict[int, Channel], steps: dict[int, list[ReplayStep]]) -> None:
        self.played = play(channels, steps, self._start)

    def _start(self, at_s: float) -> None:
        self.start_s = at_s
        self._started.set()

    def __enter__(self) -> Player:
        self._thread.start()
        assert self._started.wait(300.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self.session.close()
        self.session.process.wait()


def socket_on(node: NodeAddress, kind: socket.SocketKind) -> socket.socket:
    """A socket of the node's network, bound to its address."""
    with netlink.inside(namespace_path(node.index)):
        made = socket.socket(socket.AF_INET, kind)
    made.bind((node.address, 0))
    return made


@dataclass
class Stream:
    """Datagrams from one node to another, one a millisecond, until `until_s`: when each was sent,
    and when it came (None: lost)."""

    sent_s: list[float] = field(default_factory=list)
    came_s: dict[int, float] = field(default_factory=dict)

    def flow(self, src: NodeAddress, dst: NodeAddress, until_s: float) -> None:
        with socket_on(src, socket.SOCK_DGRAM) as there, socket_on(dst, socket.SOCK_DGRAM) as here:
            here.settimeout(1.0)
            receiver = threading.Thread(target=self._receive, args=(here,))
            receiver.start()
            while time.monotonic() < until_s:
                self.sent_s.append(time.monotonic())
                number = str(len(self.sent_s) - 1).encode()
                there.sendto(number.ljust(DATAGRAM), here.getsockname())
                time.sleep(PACKET_S)
            receiver.join()

    def _receive(self, here: socket.socket) -> None:
        try:
            while True:
                number = int(here.recv(2 * DATAGRAM))
                self.came_s[number] = time.monotonic()
        except TimeoutError:
            pass


def expected(
    link: Link, changes: Sequence[Change], start_s: float, sent_s: Sequence[float], slack_s: float
) -> list[float | None]:
    """Arrival time of each packet if every change is in force `slack_s` after its time: in order,
    one
    after the other at the link's rate; None: lost."""
    came: list[float | None] = []
    last_s = -math.inf
    for at_s in sent_s:
        now = link
        for change in changes:
            if start_s + change.time_s + slack_s <= at_s:
                now = change.of(now)
        if now.loss == 1.0:
            came.append(None)
            continue
        last_s = max(last_s, at_s + now.one_way_delay_s) + FRAME_BITS / now.bandwidth_bps
        came.append(last_s)
    return came


def check_packets(sharing: str, stream: Stream, link: Link, start_s: float) -> Iterator[str]:
    """Every packet is as of before a change, or as of after it; the latter from 1 ms after."""
    at_once, late = (
        expected(link, CHANGES, start_s, stream.sent_s, slack_s) for slack_s in (0.0, LATE_S)
    )
    wrong = 0
    for number, (early_s, late_s) in enumerate(zip(at_once, late, strict=True)):
        came_s, sent_s = stream.came_s.get(number), stream.sent_s[number]
        if None in (early_s, late_s) and came_s is None:
            continue
        allowed = [at_s for at_s in (early_s, late_s) if at_s is not None]
        if came_s is None or not (
            allowed and min(allowed) - EXACT_S <= came_s <= max(allowed) + EXACT_S
        ):
            wrong += 1
            if wrong < 5:
                took = "was lost" if came_s is None else f"took {(came_s - sent_s) * 1e3:.3f} ms"
                wanted = [f"{(at_s - sent_s) * 1e3:.3f} ms" for at_s in allowed]
                yield f"{sharing}: sent at {sent_s - start_s:.4f} s {took}, expected {wanted}"
    if wrong:
        yield f"{sharing}: {wrong} of {len(stream.sent_s)} packets"
    took_s = [came_s - stream.sent_s[number] for number, came_s in stream.came_s.items()]
    if min(took_s) < FAR.one_way_delay_s:
        yield f"{sharing}: a packet was not shaped: {min(took_s)} s"
    num_lost = len(stream.sent_s) - len(took_s)
    if not 0.45 < num_lost * PACKET_S < 0.55:
        yield f"{sharing}: {num_lost} lost in an outage of 0.5 s"
    print(f"{sharing}: {len(took_s)} packets came, {num_lost} were lost in the outage", flush=True)


def check_played(sharing: str, played: dict[int, Played | Exception]) -> Iterator[str]:
    """In time; the clock is ours, and is found to be so."""
    found = played[0]
    if isinstance(found, Exception):
        yield f"{sharing}: {found}"
    elif max(found.late_s) > LATE_S:
        yield f"{sharing}: late by {found.late_s}"
    else:
        print(f"{sharing}: late by {[f'{s * 1e6:.0f} us' for s in found.late_s]}", flush=True)


def rates_bps(src: NodeAddress, dst: NodeAddress, player: Player) -> list[float]:
    """Payload in each of the windows, of one TCP connection."""
    with socket_on(dst, socket.SOCK_STREAM) as listener:
        listener.listen()
        there = socket_on(src, socket.SOCK_STREAM)
        there.connect(listener.getsockname())
        here, _ = listener.accept()
    end_s = player.start_s + WINDOWS_S[-1][-1] + 0.1
    at_s, received = [0.0], [0]

    def send() -> None:
        try:
            while True:
                there.sendall(bytes(1 << 16))
        except OSError:
            pass

    sender = threading.Thread(target=send)
    sender.start()
    while time.monotonic() < end_s:
        received.append(received[-1] + len(here.recv(1 << 16)))
        at_s.append(time.monotonic() - player.start_s)
    here.close()
    there.shutdown(socket.SHUT_RDWR)
    sender.join()
    there.close()
    counts = [np.interp(window, at_s, received) for window in WINDOWS_S]
    return [
        8 * float(after - before) / (end - begin)
        for (before, after), (begin, end) in zip(counts, WINDOWS_S, strict=True)
    ]


def check_rates(sharing: str, nodes: Sequence[NodeAddress], wanted: Network) -> Iterator[str]:
    with Player(wanted, RATE_CHANGE) as player:
        time.sleep(max(0.0, player.start_s - time.monotonic()))
        measured = rates_bps(nodes[SRC], nodes[DST], player)
    yield from check_played(sharing, player.played)
    before_bps = min(FAR.bandwidth_bps, NIC_BPS) if sharing == "nic" else FAR.bandwidth_bps
    for found, rate_bps in zip(measured, (before_bps, SLOW_BPS), strict=True):
        target = rate_bps * PAYLOAD / FRAME
        if abs(found / target - 1) > TOLERANCE:
            yield f"{sharing}: {found / 1e6:.3f} Mbit/s, expected {target / 1e6:.3f}"
    print(f"{sharing}: {', '.join(f'{rate / 1e6:.3f}' for rate in measured)} Mbit/s", flush=True)


def check(sharing: str) -> Iterator[str]:
    """One way of sharing: packets, throughput, and nothing is left of it."""
    wanted = network(sharing)
    first = min(FAR.bandwidth_bps, NIC_BPS) if sharing == "nic" else FAR.bandwidth_bps
    with kept(wanted) as nodes:
        stream = Stream()
        with Player(wanted, CHANGES) as player:
            stream.flow(nodes[SRC], nodes[DST], player.start_s + CHANGES[-1].time_s + 0.5)
        yield from check_played(sharing, player.played)
        link = Link(one_way_delay_s=FAR.one_way_delay_s, bandwidth_bps=first)
        yield from check_packets(sharing, stream, link, player.start_s)
        yield from check_rates(sharing, nodes, wanted)
        for found in read_back(programs(nodes, wanted, 1.0), namespace_nodes(nodes)):
            yield from (f"{sharing}: afterwards: {problem}" for problem in found.problems)


def check_failures() -> Iterator[str]:
    """A step that tc refuses, and a controller that is killed: the nodes get back what they had."""
    wanted = network("pair")
    with kept(wanted) as nodes:
        own = programs(nodes, wanted, 1.0)
        with Player(wanted, CHANGES) as player:
            time.sleep(max(0.0, player.start_s - time.monotonic()) + 0.2)
            node = namespace_nodes(nodes)[SRC]
            node.run(("tc", "class", "add", "dev", "eth0", "parent", "6e62:", "classid", "6e62:99",
                "htb", "rate", "1mbit"), "")  # fmt: skip
            node.run(("tc", "qdisc", "del", "dev", "eth0", "parent", "6e62:3"), "")
        error = str(player.played[0])
        if "n0, at 0.5 s: tc refused `qdisc change dev eth0 parent 6e62:3" not in error:
            yield f"refused: {error}"
        session = Pipes([sys.executable, "-m", SESSION])
        session.send(request(wanted, NAMES, CHANGES))
        session.send('{"clock": true}')
        session.receive()
        session.send(f'{{"start_s": {time.monotonic()}}}')
        for _ in range(2):
            session.receive()
        if not any(found.problems for found in read_back(own, namespace_nodes(nodes))):
            yield "the links had not changed"
        session.process.send_signal(signal.SIGHUP)
        session.process.wait(60.0)
        for found in read_back(own, namespace_nodes(nodes)):
            yield from (f"after a failure: {problem}" for problem in found.problems)


def main() -> None:
    """Every way of sharing."""
    assert all(after.time_s - before.time_s == 0.5 for before, after in pairwise(CHANGES))
    assert START_MARGIN_S > 0
    problems = [problem for kind in ("pair", "class", "nic", "trunk") for problem in check(kind)]
    problems += check_failures()
    print("\n".join(problems) or "all as planned", flush=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
