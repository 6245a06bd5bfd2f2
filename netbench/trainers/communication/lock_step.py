"""Hivemind's butterfly all-reduce: every peer averages one part of the vector, piece by piece.

Source: `AllReduceRunner` and `TensorPartContainer` of Hivemind 1.1, as
results/published/multicloud/README.md describes a run of it. A peer

- cuts each part of its vector into pieces of 512 KiB, in fp16, and sends them in order to the peers
  that average the parts;
- adds up the pieces that it gets for its own part. A piece is finished when it has come from all,
  itself included; it is then sent back to each;
- does all of this on one CPU, one piece after the other (`HostCosts`).

Averaged pieces and pieces to be averaged share the connection of a pair. A sender that is
`AHEAD_PIECES` ahead of the averages that came back waits: so all senders move at the pace of the
slowest. The pieces have no values.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from netbench.trainers.communication.streams import StreamMessage, Streams
from netbench.trainers.layers.virtual import compute

WIRE_BYTES = 2
"""Bytes of a parameter on the wire: fp16."""

PIECE_PARAMETERS = (512 << 10) // WIRE_BYTES
"""Parameters of a piece: Hivemind's `DEFAULT_PART_SIZE_BYTES`, 512 KiB after compression."""

AHEAD_PIECES = 8
"""Pieces that a sender is ahead of the averages: the six that TCP's largest window of 3 MiB holds,
and one that is prefetched at either end."""


class Kind(IntEnum):
    """Kinds of messages between peers. The first are those that form a group."""

    JOIN = 1
    ACCEPTED = 2
    READY = 3
    BEGIN = 4
    OPEN = 5
    OPENED = 6
    PIECE = 7
    AVERAGE = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCosts:
    """Seconds of the CPU. add_s: per parameter of a piece that is added. convert_s: per parameter
    of a piece that is serialised or deserialised."""

    add_s: float
    convert_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The parts of a vector, from the view of one peer. members: ranks of all peers. parameters: of
    the part that each of them averages. scale: divides bytes, not seconds of the CPU."""

    rank: int
    members: Sequence[int]
    parameters: float
    scale: float

    @property
    def others(self) -> list[int]:
        """The other peers, beginning with the next, so that not all send to the same first."""
        place = self.members.index(self.rank)
        return [*self.members[place + 1 :], *self.members[:place]]

    @property
    def pieces(self) -> list[float]:
        """Parameters of each piece."""
        whole, rest = divmod(self.parameters, PIECE_PARAMETERS)
        return [float(PIECE_PARAMETERS)] * int(whole) + ([rest] if rest > 0 else [])

    def payload_bytes(self, piece: int) -> int:
        """Bytes of a piece as they are sent."""
        return max(1, round(WIRE_BYTES * self.pieces[piece] / self.scale))


def largest_payload_bytes(scale: float) -> int:
    """Return the bytes of a whole piece as they are sent."""
    return max(1, round(WIRE_BYTES * PIECE_PARAMETERS / scale))


class LockStep:
    """One averaging of a peer. `run` it once."""

    def __init__(self, streams: Streams, share: Share, costs: HostCosts) -> None:
        self._streams, self._share, self._costs = streams, share, costs
        self._pieces = share.pieces
        self._payloads = [share.payload_bytes(piece) for piece in range(len(self._pieces))]
        self._others = share.others
        self._work: deque[tuple[float, Callable[[], None]]] = deque()
        self._sent = dict.fromkeys(self._others, 0)
        self._returned = dict.fromkeys(self._others, 0)
        self._is_serialising = dict.fromkeys(self._others, False)
        self._added = [0] * len(self._pieces)
        self._left_to_return = len(self._others) * len(self._pieces)
        self._next: list[StreamMessage] = []

    def run(self, early: Sequence[StreamMessage] = ()) -> list[StreamMessage]:
        """Average with the others, which run it too; return the messages that are of the next
        averaging, because a peer was done first.

        early: pieces that have come before. Raises PeerLost.
        """
        if not self._others:
            return []
        self._add_own(0)
        for peer in self._others:
            self._feed(peer)
        for message in early:
            self._take(message)
        while self._work or not self._is_done():
            for message in self._streams.poll(0.0 if self._work else None):
                self._take(message)
            if self._work:
                seconds, then = self._work.popleft()
                compute(seconds)
                then()
        while not self._streams.is_flushed:
            self._next += self._streams.poll(None)
        return self._next

    def _is_done(self) -> bool:
        all_back = all(count == len(self._pieces) for count in self._returned.values())
        return all_back and not self._left_to_return

    def _take(self, message: StreamMessage) -> None:
        if message.kind == Kind.PIECE:
            seconds = self._pieces[message.index] * (self._costs.convert_s + self._costs.add_s)
            self._work.append((seconds, partial(self._count_added, message.index)))
        elif message.kind == Kind.AVERAGE:
            seconds = self._pieces[message.index] * self._costs.convert_s
            self._work.append((seconds, partial(self._count_returned, message.peer)))
        else:
            self._next.append(message)

    def _add_own(self, piece: int) -> None:
        if piece < len(self._pieces):
            seconds = self._pieces[piece] * self._costs.add_s
            self._work.append((seconds, partial(self._count_added, piece)))

    def _count_added(self, piece: int) -> None:
        """Send a piece back once all peers' are in it. Each sends them in order."""
        self._added[piece] += 1
        if self._added[piece] == len(self._others) + 1:
            seconds = self._pieces[piece] * self._costs.convert_s
            for peer in self._others:
                self._work.append((seconds, partial(self._return, peer, piece)))
            self._add_own(piece + 1)

    def _return(self, peer: int, piece: int) -> None:
        self._left_to_return -= 1
        payload_bytes = self._payloads[piece]
        self._streams.send(peer, Kind.AVERAGE, piece, payload_bytes=payload_bytes)

    def _feed(self, peer: int) -> None:
        """Serialise the next piece for a peer, if it may be ahead so far."""
        number = self._sent[peer]
        is_ahead = number - self._returned[peer] >= AHEAD_PIECES
        if self._is_serialising[peer] or is_ahead or number == len(self._pieces):
            return
        self._is_serialising[peer] = True
        seconds = self._pieces[number] * self._costs.convert_s
        self._work.append((seconds, partial(self._send_piece, peer)))

    def _send_piece(self, peer: int) -> None:
        number = self._sent[peer]
        payload_bytes = self._payloads[number]
        self._streams.send(peer, Kind.PIECE, number, payload_bytes=payload_bytes)
        self._sent[peer] += 1
        self._is_serialising[peer] = False
        self._feed(peer)

    def _count_returned(self, peer: int) -> None:
        self._returned[peer] += 1
        self._feed(peer)
