"""Measure the links between nodes. Runs alone on the nodes: one file, Python 3.9, no packages.

It is sent to `python -I -S -` on standard input, with `main(JOB)` as its last line: everybody can
read the arguments of a process, and the job has a token. JOB has the arguments of `serve` or
`measure` as JSON, and `op`, the name of the function. The answer is one line of JSON.

A server listens on one address during the measurement and accepts only clients that know its token.
Delays are measured on an idle network. Then packet trains are sent, then all transfers start
together. Figures from the clocks of two nodes are only valid if the nodes share one (nodes on one
kernel), or after `offset_s` is subtracted.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import select
import selectors
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

PORT = 26262
"""Port for TCP and UDP: unregistered, and below the ephemeral ports."""

DEADLINE_S = 120.0
"""Deadline to connect, and of any single receive, seconds."""

HELLO_S = 5.0
"""Deadline for a connection to identify itself, seconds."""

TOKEN_BYTES = 16
HELLO = struct.Struct(f"!{TOKEN_BYTES}sBBH")  # token, source, transfer, stream
START_LINE = 255
"""Transfer number of the connection on which a source waits for all others."""

PACKET = struct.Struct(f"!{TOKEN_BYTES}sBBqq")  # token, source, train, sent at (ns), number
ECHO = 255
"""Train number of an echo, which is sent back."""

NUM_ECHOES = 5
ECHO_S = 0.2  # between pings, which also wait this long for a lost one
ECHO_DEADLINE_S = 5.0
PAYLOAD_BYTES = 56
"""Payload of a ping, which makes a frame of 98 bytes. UDP packets have the same size."""

CHUNK_BYTES = 1 << 18
NUM_ARRIVALS = 500  # kept per transfer, at most; each is exact
UDP_BUFFER_BYTES = 1 << 22  # or what the kernel allows

Arrival = tuple[int, int, int]
"""A packet of a train: sent at, arrived at (nanoseconds of each side's clock), number."""


class Transfers(NamedTuple):
    """Transfers of every flow, one after the other.

    streams: connections, by transfer. total_bytes: per connection, by transfer; None: the source
    ends each after about `transfer_s`, seconds. congestion: control of the source, "" = its own.
    """

    streams: Sequence[int] = (1,)
    total_bytes: Sequence[int] | None = None
    transfer_s: float = 0.0
    congestion: str = ""


ONE_TRANSFER = Transfers()


def serve(
    address: str,
    token: str,
    num_sources: int = 1,
    transfers: Transfers = ONE_TRANSFER,
    num_waiting: int = 0,
) -> dict[str, object]:
    """Answer echoes and receive packet trains, then receive the transfers of every source.

    num_waiting: number of sources that wait here until all are ready to send.
    Returns "arrivals": by transfer and connection [[nanoseconds, bytes so far], ...] of
    CLOCK_MONOTONIC, the last one included; "trains": [source, train, `describe` of it].
    """
    streams, total_bytes, transfer_s, _ = transfers
    secret, family = bytes.fromhex(token), _family(address)
    trains: dict[tuple[int, int], list[Arrival]] = {}
    opened: dict[tuple[int, int, int], socket.socket] = {}
    num_connections = num_sources * sum(streams) + num_waiting
    with contextlib.ExitStack() as stack:
        # Before the listener: clients send echoes as soon as they are connected.
        echo = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
        echo.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UDP_BUFFER_BYTES)
        echo.bind((address, PORT))
        listener = stack.enter_context(
            socket.create_server((address, PORT), family=family, backlog=256)
        )
        try:
            while len(opened) < num_connections:
                _answer_until([listener], echo, secret, trains)
                connection, _ = listener.accept()
                name = _name_of(connection, secret)
                if name is None or name in opened:
                    connection.close()
                else:
                    opened[name] = connection
            listener.close()
            waiting = [c for name, c in sorted(opened.items()) if name[1] == START_LINE]
            for connection in waiting:
                _answer_until([connection], echo, secret, trains)
                connection.recv(1)
            for connection in waiting:
                connection.sendall(b"!")
            arrivals = []
            for transfer in range(len(streams)):
                flows = [c for name, c in sorted(opened.items()) if name[1] == transfer]
                _answer_until(flows, echo, secret, trains)
                expected = None if total_bytes is None else total_bytes[transfer]
                arrivals.append(_receive(flows, expected, transfer_s))
        finally:
            for connection in opened.values():
                connection.close()
    described = [[*name, describe(packets)] for name, packets in sorted(trains.items())]
    return {"arrivals": arrivals, "trains": described}


def _name_of(connection: socket.socket, secret: bytes) -> tuple[int, int, int] | None:
    """Return source, transfer and stream of a connection; None without the right token."""
    connection.settimeout(HELLO_S)
    said = b""
    try:
        while len(said) < HELLO.size:
            more = connection.recv(HELLO.size - len(said))
            if not more:
                return None
            said += more
    except OSError:
        return None
    token, source, transfer, stream = HELLO.unpack(said)
    connection.settimeout(DEADLINE_S)
    return (source, transfer, stream) if hmac.compare_digest(token, secret) else None


def _answer_until(
    others: list[socket.socket],
    echo: socket.socket,
    secret: bytes,
    trains: dict[tuple[int, int], list[Arrival]],
) -> None:
    """Return echoes with their time of arrival, and collect trains, until `others` have data."""
    while True:
        ready, _, _ = select.select([echo, *others], [], [], DEADLINE_S)
        if not ready:
            raise TimeoutError(f"the other side was silent for {DEADLINE_S:g} s")
        if echo not in ready:
            return
        data, peer = echo.recvfrom(2048)
        now_ns = time.monotonic_ns()
        if len(data) != PAYLOAD_BYTES:
            continue
        token, source, train, sent_ns, number = PACKET.unpack_from(data)
        if not hmac.compare_digest(token, secret):
            continue
        if train == ECHO:
            echo.sendto(_packet(secret, source, ECHO, now_ns, number), peer)
        else:
            trains.setdefault((source, train), []).append((sent_ns, now_ns, number))


def _packet(secret: bytes, source: int, train: int, sent_ns: int, number: int) -> bytes:
    return PACKET.pack(secret, source, train, sent_ns, number).ljust(PAYLOAD_BYTES, b"\0")


def describe(packets: list[Arrival]) -> dict[str, float]:
    """Summarise a packet train, given its packets in order of arrival.

    received, duplicates: number of distinct packets, and of copies. ahead: packets that overtook
    an earlier one. mean_s: mean of arrived - sent, including the offset of the clocks. jitter_s:
    standard deviation of arrived - sent around a straight line over the time of sending, which
    removes offset and drift of the clocks.
    """
    first: dict[int, tuple[int, int]] = {}
    for sent_ns, arrived_ns, number in packets:
        first.setdefault(number, (sent_ns, arrived_ns))
    ahead, least = 0, max(first, default=0) + 1
    for number in reversed(list(first)):
        ahead += number > least
        least = min(least, number)
    start_ns = min((sent_ns for sent_ns, _ in first.values()), default=0)
    sent = [(sent_ns - start_ns) / 1e9 for sent_ns, _ in first.values()]
    took = [(arrived_ns - sent_ns) / 1e9 for sent_ns, arrived_ns in first.values()]
    mean_s = statistics.fmean(took) if took else 0.0
    return {
        "received": len(first),
        "duplicates": len(packets) - len(first),
        "ahead": ahead,
        "mean_s": mean_s,
        "jitter_s": _spread(sent, [delay_s - mean_s for delay_s in took]),
    }


def _spread(at: list[float], values: list[float]) -> float:
    """Return the standard deviation of `values` (mean 0) around their straight line over `at`."""
    mean = statistics.fmean(at or [0.0])
    width = sum((x - mean) ** 2 for x in at)
    if len(at) < 3 or not width:
        return 0.0
    slope = sum((x - mean) * y for x, y in zip(at, values)) / width  # noqa: B905 (Python 3.9)
    rest = sum((y - slope * (x - mean)) ** 2 for x, y in zip(at, values))  # noqa: B905
    return float((rest / (len(at) - 2)) ** 0.5)


def _receive(
    connections: list[socket.socket], total_bytes: int | None, transfer_s: float
) -> list[list[tuple[int, int]]]:
    """Receive until all senders have closed; return (time, bytes so far) by connection."""
    buffer = bytearray(CHUNK_BYTES)
    arrivals: list[list[tuple[int, int]]] = [[] for _ in connections]
    last = [(0, 0)] * len(connections)
    with selectors.DefaultSelector() as selector:
        for flow, connection in enumerate(connections):
            selector.register(connection, selectors.EVENT_READ, flow)
        while selector.get_map():
            ready = selector.select(DEADLINE_S)
            if not ready:
                raise TimeoutError(f"the sender was silent for {DEADLINE_S:g} s")
            for key, _ in ready:
                flow, kept = key.data, arrivals[key.data]
                count = connections[flow].recv_into(buffer)
                now_ns, received = time.monotonic_ns(), last[flow][1] + count
                if not count:
                    selector.unregister(connections[flow])
                    connections[flow].close()  # the sender may wait for this
                    continue
                last[flow] = (now_ns, received)
                kept_ns, kept_bytes = kept[-1] if kept else (0, 0)
                if total_bytes is None:
                    keep = now_ns - kept_ns >= 1e9 * transfer_s / NUM_ARRIVALS
                else:
                    keep = received - kept_bytes >= total_bytes / NUM_ARRIVALS
                if keep:
                    kept.append(last[flow])
    for kept, end in zip(arrivals, last):  # noqa: B905 (Python 3.9)
        if total_bytes is not None and end[1] != total_bytes:
            raise ConnectionError(f"the sender left after {end[1]} of {total_bytes} bytes")
        if end[1] and kept[-1] != end:
            kept.append(end)
    return arrivals


def measure(
    addresses: list[str],
    token: str,
    source: int = 0,
    transfers: Transfers = ONE_TRANSFER,
    trains: Sequence[tuple[int, float, float]] = (),
    num_echoes: int = NUM_ECHOES,
    median: bool = False,
    wait_at: str = "",
) -> dict[str, object]:
    """Measure the delay to every address in turn, send packet trains, then all transfers at once.

    trains: (packets, seconds between them, seconds to wait afterwards). median: take the median of
    UDP echoes as the delay, not the smallest of pings, for links on which some packets are early or
    damaged. wait_at: the address at which all sources wait for each other.
    Returns "method": `ping` or `udp`, "rtt_s", "one_way_s", "offset_s" (clock there - clock here,
    if both ways take equally long) per address, "wait_offset_s" to the clock of `wait_at`.
    """
    streams, total_bytes, transfer_s, congestion = transfers
    secret = bytes.fromhex(token)
    opened = [
        [[_connect(a, HELLO.pack(secret, source, transfer, stream)) for stream in range(num)]
         for a in addresses]
        for transfer, num in enumerate(streams)
    ]  # fmt: skip
    for flow in (c for by_address in opened for flows in by_address for c in flows):
        if congestion:
            flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    line = _connect(wait_at, HELLO.pack(secret, source, START_LINE, 0)) if wait_at else None
    echoes = [_udp_echo(address, secret, source, num_echoes, median) for address in addresses]
    pings: list[float | None] = [None for _ in addresses]
    if shutil.which("ping") and not median and num_echoes == NUM_ECHOES:
        pings = [_ping(address) for address in addresses]
    found: dict[str, object] = {
        "method": "udp" if None in pings else "ping",
        "rtt_s": [rtt for rtt, _, _ in echoes] if None in pings else pings,
        "one_way_s": [one_way for _, one_way, _ in echoes],
        "offset_s": [offset for _, _, offset in echoes],
    }
    for address in addresses:
        for train, (num_packets, interval_s, settle_s) in enumerate(trains):
            _send_train(address, secret, source, train, num_packets, interval_s)
            time.sleep(settle_s)
    if line is not None:
        found["wait_offset_s"] = _udp_echo(wait_at, secret, source, NUM_ECHOES, False)[2]
        with line:
            line.sendall(b"?")
            line.recv(1)
    for transfer, by_address in enumerate(opened):
        flows = [connection for connections in by_address for connection in connections]
        amount = 0 if total_bytes is None else total_bytes[transfer]
        length_s = transfer_s if total_bytes is None else 0.0
        more = transfer + 1 < len(opened)
        senders = [
            threading.Thread(target=_send, args=(flow, amount, length_s, more)) for flow in flows
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    return found


def _connect(address: str, hello: bytes) -> socket.socket:
    """Connect to a server that may still be starting."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            connection = socket.create_connection((address, PORT), timeout=DEADLINE_S)
        except OSError as error:
            if not isinstance(error, ConnectionRefusedError) or time.monotonic() > end:
                where = f"TCP port {PORT} of {address} cannot be reached"
                raise ConnectionError(f"{where}: {error}") from None
            time.sleep(0.02)
        else:
            connection.sendall(hello)
            return connection


def _udp_echo(
    address: str, secret: bytes, source: int, num_echoes: int, median: bool
) -> tuple[float | None, float | None, float | None]:
    """Return round trip, one-way delay and clock offset, seconds; None if no echo returned."""
    found: list[tuple[float, float, float]] = []
    with socket.socket(_family(address), socket.SOCK_DGRAM) as echo:
        echo.connect((address, PORT))
        echo.settimeout(ECHO_DEADLINE_S)
        for number in range(num_echoes):
            sent_ns = time.monotonic_ns()
            echo.send(_packet(secret, source, ECHO, sent_ns, number))
            try:
                data = echo.recv(2048)
            except socket.timeout:  # noqa: UP041 (distinct from TimeoutError in Python 3.9)
                continue
            now_ns = time.monotonic_ns()
            _, _, _, arrived_ns, echoed = PACKET.unpack_from(data)
            if echoed == number:  # not a late answer to an earlier one
                offset_s = (arrived_ns - (sent_ns + now_ns) / 2) / 1e9
                found.append(((now_ns - sent_ns) / 1e9, (arrived_ns - sent_ns) / 1e9, offset_s))
    if not found:
        return None, None, None
    rtts = sorted(rtt for rtt, _, _ in found)
    ways = sorted(way for _, way, _ in found)
    at = (len(found) - 1) // 2 if median else 0
    return rtts[at], ways[at], min(found)[2]


def _ping(address: str) -> float | None:
    """Return the smallest round trip by ping, seconds, from its summary, which has microseconds."""
    argv = ["ping", "-n", "-q", "-c", str(NUM_ECHOES), "-i", str(ECHO_S)]
    argv += ["-s", str(PAYLOAD_BYTES), "-W", str(ECHO_DEADLINE_S), address]
    printed = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    found = re.search(r"min/avg/max\S* = ([\d.]+)/", printed)
    return float(found[1]) / 1e3 if found else None


def _send_train(
    address: str, secret: bytes, source: int, train: int, num_packets: int, interval_s: float
) -> None:
    """Send packets at even intervals, each with its time of sending."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as sender:
        sender.connect((address, PORT))
        start_s = time.monotonic()
        for number in range(num_packets):
            wait_s = start_s + number * interval_s - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            sender.send(_packet(secret, source, train, time.monotonic_ns(), number))


def _send(connection: socket.socket, total_bytes: int, transfer_s: float, more: bool) -> None:
    """Send `total_bytes`, or for `transfer_s`. more: wait until the receiver has everything."""
    block = bytes(CHUNK_BYTES)
    end_s = time.monotonic() + transfer_s
    with connection:
        for at in range(0, total_bytes, CHUNK_BYTES):
            connection.sendall(block[: total_bytes - at])
        while transfer_s and time.monotonic() < end_s:
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        if more:
            connection.recv(1)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _leave_with_reader() -> None:
    """End this process, and free its ports, when nobody reads its output any more."""
    watch = select.poll()
    watch.register(1, 0)
    watch.poll()
    os._exit(1)


def main(job: str) -> None:
    """Run the job: the entry point on the node."""
    threading.Thread(target=_leave_with_reader, daemon=True).start()
    arguments = json.loads(job)
    operations: dict[str, Callable[..., dict[str, object]]] = {"serve": serve, "measure": measure}
    try:
        transfers = Transfers(**arguments.pop("transfers", {}))
        print(json.dumps(operations[arguments.pop("op")](transfers=transfers, **arguments)))
    except OSError as error:
        sys.exit(f"{type(error).__name__}: {error}")
