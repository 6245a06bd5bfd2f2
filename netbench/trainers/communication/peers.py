"""Connections between peers that may leave: one TCP connection per pair, replaced in every epoch.

gloo's pairs are unsuitable: once a transfer on one fails, all later ones fail too. If a peer's
process ends, its kernel closes its connections, so the others notice at once. They do not notice a
peer that hangs; the controller watches for those.
"""

import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from netbench.errors import TestbedError

HELLO = struct.Struct("!II")
"""First bytes on a connection: rank of the process that opened it, epoch of the membership."""

MEET_TIMEOUT_S = 60.0
"""Deadline for connecting to all peers, seconds: many round trips of the longest path."""


Tensors = tuple[torch.Tensor, ...]


class PeerLost(Exception):
    """A connection has ended, or was not established."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundOutcome:
    """Outcome of a round. members: peers that are left, with their addresses. again: they repeat
    the round in this epoch. Not `netbench.records.Verdict`, which is on a run."""

    members: Mapping[int, str]
    again: bool
    epoch: int


Decide = Callable[[bool], RoundOutcome]
"""Tells the controller whether this peer has the result of a round, and returns the outcome."""


def agree(
    attempt: Callable[[RoundOutcome | None], None], close: Callable[[], None], decide: Decide | None
) -> RoundOutcome | None:
    """Attempt a round until the controller accepts it; return its outcome.

    attempt: given the outcome to attempt it again with, which has an epoch of its own; may raise
    PeerLost. close: ends all connections, so that the others notice. decide: None = losing a peer
    is an error; then there is no outcome. Raises TestbedError.
    """
    outcome: RoundOutcome | None = None
    while True:
        try:
            attempt(outcome)
            is_complete = True
        except PeerLost as error:
            close()
            if decide is None:
                raise TestbedError(f"a peer was lost: {error}") from error
            is_complete = False
        if decide is None:
            return None
        outcome = decide(is_complete)
        if not outcome.again:
            return outcome


class Peers:
    """This rank's connections to the other members. address: "host:port" that they connect to."""

    def __init__(self, rank: int, host: str) -> None:
        self.rank = rank
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._connections: dict[int, socket.socket] = {}

    def connect(self, members: Mapping[int, str], epoch: int) -> None:
        """Replace all connections by ones to `members` (rank -> address), which do the same.

        epoch: common to all of them. Raises PeerLost.
        """
        self.close()
        try:
            for peer in sorted(peer for peer in members if peer < self.rank):
                host, port = members[peer].rsplit(":", 1)
                made = socket.create_connection((host, int(port)), MEET_TIMEOUT_S)
                made.sendall(HELLO.pack(self.rank, epoch))
                self._keep(peer, made)
            waited_for = {peer for peer in members if peer > self.rank}
            self._listener.settimeout(MEET_TIMEOUT_S)
            while waited_for:
                made, _ = self._listener.accept()
                made.settimeout(MEET_TIMEOUT_S)
                hello = made.recv(HELLO.size, socket.MSG_WAITALL)
                peer, its_epoch = HELLO.unpack(hello) if len(hello) == HELLO.size else (-1, -1)
                if its_epoch != epoch or peer not in waited_for:
                    made.close()  # from an earlier epoch
                    continue
                waited_for.remove(peer)
                self._keep(peer, made)
        except OSError as error:
            raise PeerLost(str(error)) from error

    def _keep(self, peer: int, made: socket.socket) -> None:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[peer] = made

    @property
    def connections(self) -> Mapping[int, socket.socket]:
        """The connections by rank of the peer. They do not block."""
        return self._connections

    def close(self) -> None:
        """Close all connections; peers that wait for this one notice, and threads of this one."""
        for connection in self._connections.values():
            with suppress(OSError):  # the other end has closed it
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._connections.clear()

    def exchange(self, outgoing: Mapping[int, Tensors], incoming: Mapping[int, Tensors]) -> None:
        """Send each peer its tensors and fill those that come from peers, all at once.

        A peer must send exactly as many bytes as are expected from it. Raises PeerLost.
        """
        left = {
            event: {peer: deque(bytes_of(tensors)) for peer, tensors in tensors_of.items()}
            for event, tensors_of in (
                (selectors.EVENT_WRITE, outgoing),
                (selectors.EVENT_READ, incoming),
            )
        }

        def interest(peer: int) -> int:
            return sum(event for event, views in left.items() if views.get(peer))

        with selectors.DefaultSelector() as selector:
            for peer in sorted({*outgoing, *incoming}):
                if wanted := interest(peer):
                    selector.register(self._connections[peer], wanted, peer)
            while selector.get_map():
                for key, ready in selector.select():
                    for event, views in left.items():
                        if ready & event:
                            self._move(key.data, event, views[key.data])
                    if wanted := interest(key.data):
                        selector.modify(key.fileobj, wanted, key.data)
                    else:
                        selector.unregister(key.fileobj)

    def _move(self, peer: int, event: int, views: deque[memoryview]) -> None:
        """Send or receive as much as possible without blocking; drop finished views."""
        connection = self._connections[peer]
        try:
            if event == selectors.EVENT_WRITE:
                count = connection.send(views[0])
            else:
                count = connection.recv_into(views[0])
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerLost(f"rank {peer}: {error}") from error
        if count == 0:
            raise PeerLost(f"rank {peer} has closed its connection")
        views[0] = views[0][count:]
        if not views[0]:
            views.popleft()


def part_of(total: int, members: Sequence[int], rank: int) -> tuple[int, int]:
    """Return start and length of this member's part of `total` items, split evenly by rank."""
    place, count = sorted(members).index(rank), len(members)
    first = total * place // count
    return first, total * (place + 1) // count - first


def bytes_of(tensors: Sequence[torch.Tensor]) -> Iterator[memoryview]:
    """Yield the memory of contiguous CPU tensors, without empty ones."""
    for tensor in tensors:
        if tensor.numel():
            yield tensor.view(-1).view(torch.uint8).numpy().data
