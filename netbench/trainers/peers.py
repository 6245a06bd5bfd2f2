"""Connections between peers that may go: one TCP connection per pair, made anew when one has gone.

gloo's pairs are not for this: once one fails, all that was waited for on it fails for ever. A peer
whose process ends is noticed at once, by the end of its connections, which its kernel sends. Peers
that stand still are not: the controller watches for them.
"""

from __future__ import annotations

import selectors
import socket
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import torch

HELLO = struct.Struct("!II")
"""First on a connection, from who made it: its rank and the epoch of the membership."""

MEET_TIMEOUT_S = 60.0
"""For all peers to be connected, seconds: many round trips of the longest path."""


Tensors = tuple[torch.Tensor, ...]


class PeerLost(Exception):
    """A connection has ended, or did not come about."""


class Peers:
    """This rank's connections to the other members. address: "host:port" where it is reached."""

    def __init__(self, rank: int, host: str) -> None:
        self.rank = rank
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._connections: dict[int, socket.socket] = {}

    def connect(self, members: Mapping[int, str], epoch: int) -> None:
        """Connect to all `members` (rank -> address) anew; all of them do so with this epoch.

        Raises PeerLost.
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
                    made.close()  # left from an epoch that somebody did not live to see
                    continue
                waited_for.remove(peer)
                self._keep(peer, made)
        except OSError as error:
            raise PeerLost(str(error)) from error

    def _keep(self, peer: int, made: socket.socket) -> None:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[peer] = made

    def close(self) -> None:
        """End all connections; peers that wait for this one notice."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def exchange(self, outgoing: Mapping[int, Tensors], incoming: Mapping[int, Tensors]) -> None:
        """Send each peer its tensors and fill those that come from peers, all at once.

        What a peer sends must be as long as what is expected of it. Raises PeerLost.
        """
        left = {
            event: {peer: deque(_bytes_of(tensors)) for peer, tensors in tensors_of.items()}
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
        """Send or receive what can be at the moment; take away what is done."""
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


def share(total: int, members: Sequence[int], rank: int) -> tuple[int, int]:
    """First and number of this member's of `total` things, split evenly in the order of ranks."""
    place, count = sorted(members).index(rank), len(members)
    first = total * place // count
    return first, total * (place + 1) // count - first


def _bytes_of(tensors: Tensors) -> Iterator[memoryview]:
    """The memory of contiguous CPU tensors, of those that have any."""
    for tensor in tensors:
        if tensor.numel():
            yield tensor.view(-1).view(torch.uint8).numpy().data
