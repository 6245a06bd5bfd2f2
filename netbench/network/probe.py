"""Measure the links between two nodes. Runs on the nodes, alone: standard library only, one file.

`python - serve ADDRESS TOTAL_BYTES` on each destination takes a transfer and prints
    {"arrivals": [[nanoseconds, bytes so far], ...]}, CLOCK_MONOTONIC, the last one included
`python - measure TOTAL_BYTES ADDRESS...` on the source, to all destinations at once, prints
    {"method": "ping" or "udp", "rtt_s": [...], "one_way_s": [...]}

Delays are taken while nothing else is sent, then all transfers start together. `one_way_s` is by
the clocks of both nodes and means something only where they share one (nodes on one kernel), as
do arrivals of several destinations put together.
"""

from __future__ import annotations

import json
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

PORT = 26262
"""Below the ephemeral ports, registered to nobody."""

DEADLINE_S = 120.0
"""To connect, and for any single receive, seconds."""

NUM_ECHOES = 5
ECHO_S = 0.2  # between pings; also how long a lost one is waited for, beside the deadline below
ECHO_DEADLINE_S = 5.0
PAYLOAD_BYTES = 56
"""Of a ping: with its headers a frame of 98 bytes. The UDP echo is made as long."""

CHUNK_BYTES = 1 << 18
NUM_ARRIVALS = 500  # kept of a transfer, at most: every one is exact, those between are dropped


def serve(address: str, total_bytes: int) -> dict[str, list[tuple[int, int]]]:
    """Answer echoes and take one transfer."""
    family = _family(address)
    with (
        socket.create_server((address, PORT), family=family) as listener,
        socket.socket(family, socket.SOCK_DGRAM) as echo,
    ):
        echo.bind((address, PORT))
        _answer_until(listener, echo)
        connection, _ = listener.accept()
        with connection:
            _answer_until(connection, echo)
            return {"arrivals": _receive(connection, total_bytes)}


def _answer_until(other: socket.socket, echo: socket.socket) -> None:
    """Until `other` has something: send every datagram back with the time it came in at."""
    while True:
        ready, _, _ = select.select([echo, other], [], [], DEADLINE_S)
        if not ready:
            raise TimeoutError(f"the other side was silent for {DEADLINE_S:g} s")
        if echo not in ready:
            return
        data, peer = echo.recvfrom(2048)
        echo.sendto(struct.pack("!q", time.monotonic_ns()) + data[8:], peer)


def _receive(connection: socket.socket, total_bytes: int) -> list[tuple[int, int]]:
    """When how many bytes had come. The sender leaves when all are sent and echoes are done."""
    connection.settimeout(DEADLINE_S)
    buffer = bytearray(CHUNK_BYTES)
    arrivals: list[tuple[int, int]] = []
    received = kept = 0
    while count := connection.recv_into(buffer):
        now_ns = time.monotonic_ns()
        received += count
        if received == total_bytes or received - kept >= total_bytes / NUM_ARRIVALS:
            arrivals.append((now_ns, received))
            kept = received
    if received != total_bytes:
        raise ConnectionError(f"the sender left after {received} of {total_bytes} bytes")
    return arrivals


def measure(total_bytes: int, addresses: list[str]) -> dict[str, object]:
    """Delay to every address in turn, then `total_bytes` to all of them at once."""
    connections = [_connect(address) for address in addresses]
    echoes = [_udp_echo(address) for address in addresses]
    pings = [_ping(address) for address in addresses] if shutil.which("ping") else None
    senders = [
        threading.Thread(target=_send, args=(connection, total_bytes)) for connection in connections
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    return {
        "method": "udp" if pings is None else "ping",
        "rtt_s": [rtt for rtt, _ in echoes] if pings is None else pings,
        "one_way_s": [one_way for _, one_way in echoes],
    }


def _connect(address: str) -> socket.socket:
    """The server may still be starting: try until the deadline."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=DEADLINE_S)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def _udp_echo(address: str) -> tuple[float | None, float | None]:
    """Smallest round trip and smallest way there, seconds; None where nothing came back."""
    rtts, ways = [], []
    with socket.socket(_family(address), socket.SOCK_DGRAM) as echo:
        echo.connect((address, PORT))
        echo.settimeout(ECHO_DEADLINE_S)
        for number in range(NUM_ECHOES):
            sent_ns = time.monotonic_ns()
            echo.send(struct.pack("!qq", sent_ns, number).ljust(PAYLOAD_BYTES, b"\0"))
            try:
                data = echo.recv(2048)
            except TimeoutError:
                continue
            now_ns = time.monotonic_ns()
            arrived_ns, echoed = struct.unpack_from("!qq", data)
            if echoed == number:  # not the late answer to one given up
                rtts.append((now_ns - sent_ns) / 1e9)
                ways.append((arrived_ns - sent_ns) / 1e9)
    return min(rtts, default=None), min(ways, default=None)


def _ping(address: str) -> float | None:
    """Smallest round trip by ping, seconds; its summary has microseconds, its lines do not."""
    argv = ["ping", "-n", "-q", "-c", str(NUM_ECHOES), "-i", str(ECHO_S)]
    argv += ["-s", str(PAYLOAD_BYTES), "-W", str(ECHO_DEADLINE_S), address]
    printed = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    found = re.search(r"min/avg/max\S* = ([\d.]+)/", printed)
    return float(found[1]) / 1e3 if found else None


def _send(connection: socket.socket, total_bytes: int) -> None:
    block = bytes(CHUNK_BYTES)
    with connection:
        for at in range(0, total_bytes, CHUNK_BYTES):
            connection.sendall(block[: total_bytes - at])


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def main(arguments: list[str]) -> None:
    """Entry point on the node."""
    if arguments[0] == "serve":
        print(json.dumps(serve(arguments[1], int(arguments[2]))))
    else:
        print(json.dumps(measure(int(arguments[1]), arguments[2:])))


if __name__ == "__main__":
    main(sys.argv[1:])
