"""One connection that stands for 16, and 16 real ones: how a message is divided, and the table."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from benchmarks.dynamics import MIB
from benchmarks.sockets import IDLE_S, NUM_SOCKETS, PART_BYTES, Series, send, table


def test_a_message_is_shared_by_the_sockets_in_turn() -> None:
    """20 parts and a rest over 16 sockets: 4 sockets have two parts, one has one and the rest."""
    size = 20 * PART_BYTES + 1000
    with ExitStack() as open_until:
        pairs = [socket.socketpair() for _ in range(NUM_SOCKETS)]
        for end in (end for pair in pairs for end in pair):
            open_until.enter_context(end).setblocking(False)
        counted = [CountingSocket(receiver) for _, receiver in pairs]
        send([sender for sender, _ in pairs], counted, size)  # type: ignore[arg-type]
    received = [each.received for each in counted]
    assert sum(received) == size
    assert received == [2 * PART_BYTES] * 4 + [PART_BYTES + 1000] + [PART_BYTES] * 11


class CountingSocket:
    """The receiving end of a connection that counts its bytes."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self.received = end, 0

    def fileno(self) -> int:
        return self._end.fileno()

    def recv_into(self, buffer: bytearray) -> int:
        count = self._end.recv_into(buffer)
        self.received += count
        return count


def test_the_table_has_real_connections_below_the_one_that_stands_for_them() -> None:
    both = [
        Series(
            delay_s=0.238,
            rate_bps=0.342e9,
            size=8 * MIB,
            real=real,
            hystart=True,
            times_s=(0.1 * real,) * len(IDLE_S),
        )
        for real in (NUM_SOCKETS, 1)
    ]
    first, second = table(both).splitlines()[2:]
    assert first.startswith("| 238 ms, 0.342 Gbit/s | 8 | on | 1 | 0.100 |")
    assert second.startswith("| 238 ms, 0.342 Gbit/s | 8 | on | 16 | 1.600 |")
