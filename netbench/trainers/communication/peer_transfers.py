"""Transfers of whole tensors over connections between peers, for collectives that may lose one.

It stands in for gloo's backend in `World`. A thread per connection and direction moves its tensors
in the order in which they were given.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from netbench.trainers.communication.peers import PeerLost, bytes_of
from netbench.trainers.communication.world import PendingTransfer


class PeerTransfers:
    """Transfers to and from the peers at the other ends of `connections`, which then block.

    Each raises PeerLost, where it is waited for, once its connection has ended.
    """

    def __init__(self, connections: Mapping[int, socket.socket]) -> None:
        self._connections = connections
        self._threads: dict[tuple[int, bool], ThreadPoolExecutor] = {}
        for connection in connections.values():
            connection.setblocking(True)

    def send(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> PendingTransfer:
        """Start to send; done when the kernel has taken the bytes."""
        connection = self._connections[peer]
        return self._start(peer, True, lambda: _send(connection, tensors))

    def recv(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> PendingTransfer:
        """Start to receive exactly as many bytes as the tensors have."""
        connection = self._connections[peer]
        return self._start(peer, False, lambda: _receive(connection, tensors))

    def close(self) -> None:
        """Wait for the threads. Close the connections first."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)

    def _start(self, peer: int, sends: bool, move: Callable[[], None]) -> PendingTransfer:
        key = (peer, sends)
        if key not in self._threads:
            self._threads[key] = ThreadPoolExecutor(max_workers=1)
        return _Transfer(self._threads[key].submit(move), peer)


class _Transfer:
    """A transfer that has been started."""

    def __init__(self, moved: Future[None], peer: int) -> None:
        self._moved, self._peer = moved, peer

    def wait(self) -> None:
        try:
            self._moved.result()
        except OSError as error:
            raise PeerLost(f"rank {self._peer}: {error}") from error


def _send(connection: socket.socket, tensors: Sequence[torch.Tensor]) -> None:
    for view in bytes_of(tensors):
        connection.sendall(view)


def _receive(connection: socket.socket, tensors: Sequence[torch.Tensor]) -> None:
    for view in bytes_of(tensors):
        while view:
            count = connection.recv_into(view)
            if count == 0:
                raise ConnectionResetError("it has closed its connection")
            view = view[count:]
