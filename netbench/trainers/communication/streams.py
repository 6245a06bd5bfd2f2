"""Messages over the connections of `Peers`, in both directions of each at once, without blocking.

A message is a kind, an index and a payload without values: receivers count its bytes and discard
them, so a rank needs memory for one message, however large the model.
"""

import selectors
import socket
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from netbench.trainers.communication.peers import PeerLost

HEADER = struct.Struct("!BId I")
"""Kind, index, value and payload bytes of a message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamMessage:
    """A message that has arrived whole. peer: its sender. value: any number."""

    peer: int
    kind: int
    index: int
    value: float


@dataclass(kw_only=True, slots=True)
class _Inbound:
    """The message that comes from a peer. left: bytes of its payload."""

    header: bytearray
    left: int


class Streams:
    """Messages to and from the peers at the other ends of `connections`, in order per peer.

    most_bytes: of a payload. survives: goes on without peers that are lost, and never raises
    PeerLost. lost: these peers.
    """

    def __init__(
        self, connections: Mapping[int, socket.socket], most_bytes: int, *, survives: bool = False
    ) -> None:
        self._connections = connections
        self._survives = survives
        self.lost: set[int] = set()
        self._nothing = memoryview(bytearray(most_bytes))
        self._discarded = memoryview(bytearray(most_bytes + HEADER.size))
        self._outbound: dict[int, deque[memoryview]] = {peer: deque() for peer in connections}
        self._inbound = {peer: _Inbound(header=bytearray(), left=0) for peer in connections}
        self._selector = selectors.DefaultSelector()
        for peer, connection in connections.items():
            self._selector.register(connection, selectors.EVENT_READ, peer)

    @property
    def is_flushed(self) -> bool:
        """True if the kernel has taken everything."""
        return not any(self._outbound.values())

    def send(
        self, peer: int, kind: int, index: int = 0, *, value: float = 0.0, payload_bytes: int = 0
    ) -> None:
        """Queue a message and send what the kernel takes now. Raises PeerLost."""
        if peer in self.lost:
            return
        header = HEADER.pack(kind, index, value, payload_bytes)
        self._outbound[peer].append(memoryview(header))
        if payload_bytes:
            self._outbound[peer].append(self._nothing[:payload_bytes])
        self._flush(peer)

    def poll(self, timeout_s: float | None = 0.0) -> list[StreamMessage]:
        """Move what can be moved, and return the messages that are complete, in order of arrival.

        timeout_s: wait this long until something can be moved; None = without end. Raises PeerLost.
        """
        found: list[StreamMessage] = []
        for key, ready in self._selector.select(timeout_s):
            if ready & selectors.EVENT_WRITE:
                self._flush(key.data)
            if ready & selectors.EVENT_READ and key.data not in self.lost:
                found += self._read(key.data)
        return found

    def drop(self, peer: int) -> None:
        """Go on without a peer."""
        if peer not in self.lost:
            self.lost.add(peer)
            self._outbound[peer].clear()
            self._selector.unregister(self._connections[peer])

    def close(self) -> None:
        """Forget the connections, which stay open."""
        self._selector.close()

    def _fail(self, peer: int, why: str) -> None:
        if not self._survives:
            raise PeerLost(f"rank {peer} {why}")
        self.drop(peer)

    def _flush(self, peer: int) -> None:
        waiting, connection = self._outbound[peer], self._connections[peer]
        was_blocked = self._is_watched(peer)
        try:
            while waiting:
                count = connection.send(waiting[0])
                waiting[0] = waiting[0][count:]
                if not waiting[0]:
                    waiting.popleft()
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(peer, f"cannot be reached: {error}")
            return
        if bool(waiting) != was_blocked:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if waiting else 0)
            self._selector.modify(connection, wanted, peer)

    def _is_watched(self, peer: int) -> bool:
        """Return True if the selector waits until the peer's connection takes more."""
        key = self._selector.get_key(self._connections[peer])
        return bool(key.events & selectors.EVENT_WRITE)

    def _read(self, peer: int) -> list[StreamMessage]:
        """Read until nothing has come; return the messages that are complete."""
        inbound = self._inbound[peer]
        found: list[StreamMessage] = []
        while True:
            missing = inbound.left or HEADER.size - len(inbound.header)
            buffer = self._discarded[:missing]
            try:
                count = self._connections[peer].recv_into(buffer)
            except BlockingIOError:
                return found
            except OSError as error:
                self._fail(peer, f"cannot be reached: {error}")
                return found
            if count == 0:
                self._fail(peer, "has closed its connection")
                return found
            if inbound.left:
                inbound.left -= count
            else:
                inbound.header += buffer[:count]
                if len(inbound.header) < HEADER.size:
                    continue
                inbound.left = HEADER.unpack(inbound.header)[3]
            if not inbound.left:
                kind, index, value, _ = HEADER.unpack(inbound.header)
                inbound.header.clear()
                found.append(StreamMessage(peer=peer, kind=kind, index=index, value=value))
