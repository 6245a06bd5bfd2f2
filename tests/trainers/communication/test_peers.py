"""Connections between peers, on loopback, among threads of this test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from netbench.trainers.communication.peers import HELLO, PeerLost, Peers, part_of

LARGE = 4_000_000
"""Bytes that no socket buffer takes at once."""


@pytest.fixture
def peers() -> Iterator[list[Peers]]:
    made = [Peers(rank, "127.0.0.1") for rank in range(3)]
    yield made
    for peer in made:
        peer.close()


def on_all(peers: list[Peers], work: Callable[[Peers], object]) -> list[object]:
    """Run `work` for all at once. Return its results, or the exceptions."""

    def kept(peer: Peers) -> object:
        try:
            return work(peer)
        except PeerLost as error:
            return error

    with ThreadPoolExecutor(len(peers)) as threads:
        return list(threads.map(kept, peers))


def addresses(peers: list[Peers]) -> dict[int, str]:
    return {peer.rank: peer.address for peer in peers}


def connect(peers: list[Peers], epoch: int = 1) -> None:
    assert on_all(peers, lambda peer: peer.connect(addresses(peers), epoch)) == [None] * len(peers)


def test_everybody_gets_what_everybody_sends_to_it(peers: list[Peers]) -> None:
    """Several tensors each way at once, of different lengths, more than the buffers hold."""
    connect(peers)

    def work(me: Peers) -> None:
        others = [peer.rank for peer in peers if peer is not me]
        mine = {
            rank: (torch.tensor([me.rank, rank]), torch.full((LARGE + rank,), float(me.rank)))
            for rank in others
        }
        found = {
            rank: (torch.empty(2, dtype=torch.int64), torch.empty(LARGE + me.rank))
            for rank in others
        }
        for _ in range(2):
            me.exchange(mine, found)
            for rank, (head, body) in found.items():
                assert head.tolist() == [rank, me.rank]
                assert bool((body == rank).all())

    assert on_all(peers, work) == [None] * 3


def test_a_peer_that_closes_is_noticed_by_all_that_wait_for_it(peers: list[Peers]) -> None:
    """In the middle of an exchange, which the third of them never comes to."""
    connect(peers)
    *two, third = peers

    def work(me: Peers) -> None:
        rank = third.rank
        me.exchange({rank: (torch.zeros(LARGE),)}, {rank: (torch.zeros(LARGE),)})

    closing = threading.Timer(0.1, third.close)
    closing.start()
    found = on_all(two, work)
    assert all(isinstance(error, PeerLost) for error in found), found


def test_remaining_peers_replace_their_connections(peers: list[Peers]) -> None:
    """A connection of an earlier epoch is refused."""
    connect(peers)
    first, second, third = peers
    third.close()
    host, port = first.address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as late:
        late.sendall(HELLO.pack(second.rank, 1))
        connect([first, second], epoch=2)
        assert late.recv(1) == b""
    second.exchange({0: (torch.tensor([5]),)}, {})
    found = torch.zeros(1, dtype=torch.int64)
    first.exchange({}, {1: (found,)})
    assert found.item() == 5


def test_a_peer_that_has_ended_is_lost(peers: list[Peers]) -> None:
    """Its address refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    with pytest.raises(PeerLost, match="refused"):
        peers[1].connect({0: address, 1: peers[1].address}, 1)


@given(st.integers(0, 200), st.sets(st.integers(0, 50), min_size=1))
def test_parts_cover_everything_once_and_nearly_evenly(total: int, members: set[int]) -> None:
    """Parts are in the order of ranks."""
    parts = [part_of(total, sorted(members), rank) for rank in sorted(members)]
    taken = [i for first, count in parts for i in range(first, first + count)]
    assert taken == list(range(total))
    assert max(count for _, count in parts) - min(count for _, count in parts) <= 1
