"""Averaging in lock-step between threads: bytes, seconds of the CPU, and who waits for whom."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from netbench.trainers.communication import lock_step
from netbench.trainers.communication.lock_step import (
    AHEAD_PIECES,
    PIECE_PARAMETERS,
    HostCosts,
    Kind,
    LockStep,
    Share,
    largest_payload_bytes,
)
from netbench.trainers.communication.peers import PeerLost
from netbench.trainers.communication.streams import Streams

DEADLINE_S = 60.0
SCALE = 64.0
COSTS = HostCosts(add_s=3e-9, convert_s=1e-9)


class Counted(Streams):
    """Streams that count what a peer sends, by peer and kind."""

    def __init__(self, connections: dict[int, socket.socket]) -> None:
        super().__init__(connections, largest_payload_bytes(SCALE))
        self.messages: Counter[tuple[int, int]] = Counter()
        self.payload_bytes: Counter[int] = Counter()

    def send(
        self, peer: int, kind: int, index: int = 0, *, value: float = 0.0, payload_bytes: int = 0
    ) -> None:
        self.messages[peer, kind] += 1
        self.payload_bytes[peer] += payload_bytes
        super().send(peer, kind, index, value=value, payload_bytes=payload_bytes)


Connect = Callable[[int], list[Counted]]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect peers by pairs of sockets."""
    with ExitStack() as opened:

        def make(count: int) -> list[Counted]:
            ends: list[dict[int, socket.socket]] = [{} for _ in range(count)]
            for a, b in itertools.combinations(range(count), 2):
                ends[a][b], ends[b][a] = (opened.enter_context(s) for s in socket.socketpair())
                for end in (ends[a][b], ends[b][a]):
                    end.setblocking(False)
            return [Counted(each) for each in ends]

        yield make


def average(streams: Sequence[Counted], parameters: float) -> None:
    """Run one averaging of all peers, each in a thread."""
    members = range(len(streams))

    def run(rank: int) -> None:
        share = Share(rank=rank, members=members, parameters=parameters, scale=SCALE)
        LockStep(streams[rank], share, COSTS).run()

    with ThreadPoolExecutor(len(streams)) as threads:
        for done in [threads.submit(run, rank) for rank in members]:
            done.result(DEADLINE_S)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_pair_carries_a_part_and_an_average_each_way(connect: Connect, count: int) -> None:
    """Four bytes per parameter of a part in fp16, over the scale; 2.5 pieces are three."""
    streams = connect(count)
    average(streams, 2.5 * PIECE_PARAMETERS)
    for rank, sent in enumerate(streams):
        others = [peer for peer in range(count) if peer != rank]
        expected = {(peer, kind): 3 for peer in others for kind in (Kind.PIECE, Kind.AVERAGE)}
        assert sent.messages == expected
        part_bytes = 2 * 2.5 * PIECE_PARAMETERS / SCALE
        assert set(sent.payload_bytes.values()) == {round(2 * part_bytes)}


def test_the_cpu_adds_all_pieces_and_converts_them_four_times(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer adds n parts; it serialises and deserialises n - 1 of each kind."""
    spent: defaultdict[int, float] = defaultdict(float)

    def compute(seconds: float) -> None:
        spent[threading.get_ident()] += seconds

    monkeypatch.setattr(lock_step, "compute", compute)
    count, parameters = 4, 3.0 * PIECE_PARAMETERS
    average(connect(count), parameters)
    expected_s = parameters * (count * COSTS.add_s + 4 * (count - 1) * COSTS.convert_s)
    assert list(spent.values()) == pytest.approx([expected_s] * count)


def test_nobody_is_far_ahead_of_a_peer_that_sends_nothing(connect: Connect) -> None:
    """Its pieces are missing from all sums, so no average comes back."""
    streams = connect(3)
    share = [
        Share(rank=rank, members=range(3), parameters=40.0 * PIECE_PARAMETERS, scale=SCALE)
        for rank in range(3)
    ]
    with ThreadPoolExecutor(2) as threads:
        running = [
            threads.submit(LockStep(streams[rank], share[rank], COSTS).run) for rank in (0, 1)
        ]
        expected = {(peer, Kind.PIECE): AHEAD_PIECES for peer in (1, 2)}
        deadline_s = time.monotonic() + DEADLINE_S
        while streams[0].messages != expected and time.monotonic() < deadline_s:
            threading.Event().wait(0.01)
        assert streams[0].messages == expected
        assert not any(done.done() for done in running)
        streams[2]._connections[0].close()
        streams[2]._connections[1].close()
        for done in running:
            with pytest.raises(PeerLost):
                done.result(DEADLINE_S)


def test_what_a_peer_sends_for_the_next_averaging_is_kept(connect: Connect) -> None:
    """The third is still at work when the first is done, and asks it to join again."""
    streams = connect(3)
    costs = (COSTS, COSTS, HostCosts(add_s=COSTS.add_s, convert_s=2e-7))

    def run(rank: int) -> list[tuple[int, int]]:
        share = Share(rank=rank, members=range(3), parameters=PIECE_PARAMETERS, scale=SCALE)
        found = LockStep(streams[rank], share, costs[rank]).run()
        if rank == 0:
            streams[0].send(2, Kind.JOIN)
        while rank == 2 and not found:
            found = streams[2].poll(DEADLINE_S)
        return [(message.peer, message.kind) for message in found]

    with ThreadPoolExecutor(3) as threads:
        found = [done.result(DEADLINE_S) for done in [threads.submit(run, r) for r in range(3)]]
    assert found == [[], [], [(0, Kind.JOIN)]]
