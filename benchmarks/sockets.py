"""Compare one connection that stands for NCCL's 16 sockets with 16 real ones.

    python -m benchmarks.sockets

An emulation has one connection per pair, with the first window of all sockets (`Tcp.sockets`).
Here, in a guest in virtual time and at full size, messages cross a link over such a connection, and
over 16 in parts of 64 KiB that take the sockets in turn, as NCCL sends them. A message starts a
given time after the one before it has arrived. Prints the seconds of the last of `NUM_MESSAGES` as
a markdown table, with cubic's HyStart and without.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from benchmarks.dynamics import LINUX, MIB, full_network
from benchmarks.guest import run_in_guest, shaped_nodes
from netbench.network.shaping import netlink
from netbench.testbed import namespaces
from netbench.testbed.guest.cache import ensure_kernel
from netbench.testbed.machine.capabilities import probe_machine

NUM_SOCKETS = 16
"""NCCL on AWS: 2 threads with 8 sockets each (src/transport/net_socket.cc)."""

PART_BYTES = 64 << 10
"""Least part of a message on a socket (MIN_CHUNKSIZE in src/transport/net_socket.cc)."""

PATHS = ((0.011, 1.12e9), (0.060, 0.8e9), (0.238, 0.342e9))
"""One-way delay, seconds, and rate, bit/s: links like those of cases 3, 4 and 5."""

SIZES = (4 * MIB, 8 * MIB)
IDLE_S = (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0)
NUM_MESSAGES = 20
PORT = 5000
TIMEOUT_S = 1800.0

HYSTART = Path("/sys/module/tcp_cubic/parameters/hystart")


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Seconds of the last message after each of `IDLE_S`. real: sockets, each a connection."""

    delay_s: float
    rate_bps: float
    size: int
    real: int
    hystart: bool
    times_s: tuple[float, ...]


def measure() -> Iterator[Series]:
    """Measure every path and size both ways. Needs root and a private /run: runs in a guest."""
    for hystart, (delay_s, rate_bps), real in product((True, False), PATHS, (1, NUM_SOCKETS)):
        HYSTART.write_text(str(int(hystart)))
        tcp = replace(LINUX, sockets=NUM_SOCKETS // real)
        network = full_network(delay_s, rate_bps, tcp)
        with shaped_nodes(("left", "right"), network) as nodes:
            for size in SIZES:
                with ExitStack() as until:
                    ends = connect(nodes[1].address, real, until)
                    times_s = [last_message_s(*ends, size, idle_s) for idle_s in IDLE_S]
                yield Series(
                    delay_s=delay_s,
                    rate_bps=rate_bps,
                    size=size,
                    real=real,
                    hystart=hystart,
                    times_s=tuple(times_s),
                )


def connect(
    address: str, count: int, open_until: ExitStack, *, sender: int = 0
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return the ends of `count` connections at node `sender`, and at the next, at `address`."""
    senders, receivers = [], []
    with netlink.inside(namespaces.namespace_path(sender + 1)):
        listener = open_until.enter_context(socket.create_server((address, PORT), backlog=count))
    with netlink.inside(namespaces.namespace_path(sender)):
        for _ in range(count):
            senders.append(open_until.enter_context(socket.create_connection((address, PORT))))
            receivers.append(open_until.enter_context(listener.accept()[0]))
    for end in (*senders, *receivers):
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as NCCL and gloo set it
    return senders, receivers


def last_message_s(
    senders: Sequence[socket.socket], receivers: Sequence[socket.socket], size: int, idle_s: float
) -> float:
    """Send messages and return the seconds from the start of the last one to its arrival."""
    started_s = arrived_s = 0.0
    for _ in range(NUM_MESSAGES):
        time.sleep(idle_s)
        started_s = time.monotonic()
        send(senders, receivers, size)
        arrived_s = time.monotonic()
    return arrived_s - started_s


def send(senders: Sequence[socket.socket], receivers: Sequence[socket.socket], size: int) -> None:
    """Send a message in parts that take the sockets in turn, and receive it."""
    left = [0] * len(senders)
    for number, first in enumerate(range(0, size, PART_BYTES)):
        left[number % len(senders)] += min(PART_BYTES, size - first)
    turns = deque(index for index, count in enumerate(left) if count)
    missing, buffer, part = size, bytearray(MIB), bytes(PART_BYTES)
    with selectors.DefaultSelector() as selector:
        for receiver in receivers:
            selector.register(receiver, selectors.EVENT_READ)
        while missing:
            blocked = 0
            while turns and blocked < len(turns):
                index = turns.popleft()
                try:
                    left[index] -= senders[index].send(part[: min(PART_BYTES, left[index])])
                    blocked = 0
                except BlockingIOError:
                    blocked += 1
                if left[index]:
                    turns.append(index)
            # A full socket takes more when its receiver has read: bytes arrive all the time.
            for key, _ in selector.select(0.001 if turns else None):
                missing -= key.fileobj.recv_into(buffer)  # type: ignore[union-attr]


def table(found: Sequence[Series]) -> str:
    """Return the seconds as markdown."""
    lines = [
        f"| path | MiB | HyStart | connections | {' | '.join(f'{s:g} s' for s in IDLE_S)} |",
        f"|---|--:|---|--:|{'--:|' * len(IDLE_S)}",
    ]
    ordered = sorted(found, key=lambda s: (s.delay_s, s.size, not s.hystart, s.real))
    for row in ordered:
        path = f"{row.delay_s * 1e3:g} ms, {row.rate_bps / 1e9:g} Gbit/s"
        times = " | ".join(f"{time_s:.3f}" for time_s in row.times_s)
        switch = "on" if row.hystart else "off"
        lines.append(f"| {path} | {row.size // MIB} | {switch} | {row.real} | {times} |")
    return "\n".join(lines)


def main() -> None:
    """Measure in a guest and print, or with --inside do what the guest is to do."""
    if sys.argv[1:] == ["--inside"]:
        for series in measure():
            print(json.dumps(asdict(series)), flush=True)
        return
    ensure_kernel()
    argv = [sys.executable, "-m", "benchmarks.sockets", "--inside"]
    status, output = run_in_guest(probe_machine(), argv, timeout_s=TIMEOUT_S)
    if status:
        sys.exit(f"the guest ended with status {status}:\n{output[-2000:]}")
    lines = [line for line in output.splitlines() if line.startswith('{"delay_s"')]
    print(table([Series(**json.loads(line)) for line in lines]))


if __name__ == "__main__":
    if not Path("results").is_dir():
        sys.exit("run it in the repository: python -m benchmarks.sockets")
    main()
