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

from netbench.errors import TestbedError
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.peer_transfers import PeerTransfers
from netbench.trainers.communication.peers import (
    HELLO,
    PeerLost,
    Peers,
    RoundOutcome,
    agree,
    part_of,
)
from netbench.trainers.communication.rings import ring_all_reduce
from netbench.trainers.communication.slices import sliced
from netbench.trainers.communication.streams import Streams
from netbench.trainers.communication.world import World

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


def ring(me: Peers, vector: torch.Tensor) -> torch.Tensor:
    """The sum over three peers, by an all-reduce in a ring."""
    transfers = PeerTransfers(me.connections)
    try:
        group = Group.of(World(transfers, me.rank, 3), range(3), ahead_bytes=1)
        ring_all_reduce(group, vector, sliced(6, group.size))
    except PeerLost:
        me.close()  # so that the others notice
        raise
    finally:
        if not me.connections:
            transfers.close()
    return vector


def test_a_ring_of_peers_sums(peers: list[Peers]) -> None:
    connect(peers)
    found = on_all(peers, lambda me: ring(me, torch.full((LARGE // 4,), float(1 + me.rank))))
    for vector in found:
        assert isinstance(vector, torch.Tensor)
        assert torch.equal(vector, torch.full((LARGE // 4,), 6.0))


def test_a_ring_breaks_for_all_if_one_is_lost(peers: list[Peers]) -> None:
    """One of them only waits for a neighbour of the lost one."""
    connect(peers)

    def work(me: Peers) -> object:
        if me.rank == 2:
            me.close()
            return None
        return ring(me, torch.ones(LARGE // 4))

    assert [type(found) for found in on_all(peers, work)] == [PeerLost, PeerLost, type(None)]


def test_streams_that_survive_go_on_without_a_peer(peers: list[Peers]) -> None:
    """Messages that it had sent before still arrive."""
    connect(peers)
    streams = {peer.rank: Streams(peer.connections, 0, survives=True) for peer in peers}
    streams[2].send(0, 1, value=5.0)
    peers[2].close()
    streams[1].send(0, 1, value=7.0)
    heard: list[float] = []
    while len(heard) < 2 or streams[0].lost != {2}:
        heard += [message.value for message in streams[0].poll(10.0)]
    assert sorted(heard) == [5.0, 7.0]
    streams[0].send(2, 1)  # to nobody
    streams[0].send(1, 1, value=9.0)
    assert [message.value for message in streams[1].poll(10.0) if message.peer == 0] == [9.0]


def test_a_round_is_attempted_until_it_is_accepted() -> None:
    """The second time it is complete here, and not elsewhere."""
    attempts: list[RoundOutcome | None] = []
    decided: list[bool] = []
    closed: list[int] = []

    def attempt(anew: RoundOutcome | None) -> None:
        attempts.append(anew)
        if len(attempts) == 1:
            raise PeerLost("rank 1")

    def decide(complete: bool) -> RoundOutcome:
        decided.append(complete)
        return RoundOutcome(members={0: "a"}, again=len(decided) < 3, epoch=len(decided))

    outcome = agree(attempt, lambda: closed.append(len(attempts)), decide)
    assert decided == [False, True, True]
    assert [anew and anew.epoch for anew in attempts] == [None, 1, 2]
    assert closed == [1]
    assert outcome is not None
    assert outcome.epoch == 3


def test_without_a_controller_a_lost_peer_is_an_error() -> None:
    def attempt(anew: RoundOutcome | None) -> None:
        raise PeerLost("rank 1 has gone")

    with pytest.raises(TestbedError, match="a peer was lost: rank 1 has gone"):
        agree(attempt, lambda: None, None)
