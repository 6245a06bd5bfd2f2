"""Pipelines over plain sockets: how messages are shared, an exchange, and the table."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.pipeline_sockets import (
    MICRO_BATCHES,
    REGIONS,
    Peer,
    exchange,
    pipeline_network,
    run_rank,
    table,
)
from netbench.plan.schedules import BACKWARD, FORWARD, Exchange, Message

SIZE, PART = 1000, 300


@pytest.fixture
def open_until() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def neighbours(open_until: ExitStack, count: int, lasting_s: float) -> tuple[Peer, Peer]:
    """Two ranks with `count` connections each way: what each knows of the other."""
    pairs = [socket.socketpair() for _ in range(2 * count)]
    for end in (end for pair in pairs for end in pair):
        open_until.enter_context(end).setblocking(False)
    left, right = zip(*pairs, strict=True)
    return (
        Peer(left[:count], left[count:], lasting_s),
        Peer(right[count:], right[:count], lasting_s),
    )


def test_connections_take_the_parts_of_messages_in_turn(open_until: ExitStack) -> None:
    """Four parts over three connections: the next message begins with the second."""
    there, here = neighbours(open_until, 3, 0.0)
    there.enqueue(SIZE, PART)
    there.enqueue(SIZE, PART)
    assert list(there.queue) == [
        (0, 300), (1, 300), (2, 300), (0, 100), (1, 300), (2, 300), (0, 300), (1, 100),
    ]  # fmt: skip
    there.push()
    assert not there.queue
    assert [len(end.recv(SIZE)) for end in here.into] == [700, 700, 600]


def test_what_a_full_connection_does_not_take_stays_in_the_queue(open_until: ExitStack) -> None:
    there, here = neighbours(open_until, 1, 0.0)
    size = 1 << 22
    there.enqueue(size, size)
    there.push()
    ((_, left),) = there.queue
    received = 0
    while received < size:
        received += len(here.into[0].recv(1 << 20))
        there.push()
    assert 0 < left < size
    assert received == size


def test_an_exchange_ends_with_its_message_and_not_before_its_own_could_have_arrived(
    open_until: ExitStack,
) -> None:
    """The message of the other is there, and the next one of it stays where it is."""
    there, here = neighbours(open_until, 2, lasting_s=0.2)
    for _ in range(2):
        there.enqueue(SIZE, PART)
    there.push()
    step = Exchange(sends=(Message(BACKWARD, 1, 0),), receives=(Message(FORWARD, 0, 1),))
    with selectors.DefaultSelector() as selector:
        for end in here.into:
            selector.register(end, selectors.EVENT_READ, here)
        began_s = time.monotonic()
        exchange(step, {0: here}, selector, bytearray(SIZE), (SIZE, PART))
        took_s = time.monotonic() - began_s
    assert took_s >= 0.2
    assert (here.missing, list(here.queue)) == (0, [])
    assert sum(len(end.recv(2 * SIZE)) for end in there.into) == SIZE
    assert sum(len(end.recv(2 * SIZE)) for end in here.into) == SIZE


def test_the_first_two_stages_run_their_programs(
    open_until: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stages, two micro-batches: 0.12 s of passes for each, and the last forward and the first
    backward pass overlap with nothing."""
    monkeypatch.setattr("benchmarks.pipeline_sockets.REGIONS", REGIONS[:2])
    first, second = neighbours(open_until, 2, 0.0)
    start_s, found = time.monotonic() + 0.1, {}

    def run(stage: int, peer: Peer) -> None:
        found[stage] = run_rank(stage, {1 - stage: peer}, (2,), SIZE, start_s)

    threads = [
        threading.Thread(target=run, args=pair, daemon=True) for pair in ((0, first), (1, second))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [0, 1]
    assert 0.18 <= max(max(times_s) for times_s in found.values()) < 2


def test_the_network_is_that_of_the_stages() -> None:
    network = pipeline_network(16)
    assert network.num_nodes == len(REGIONS)
    assert network.link(3, 4).one_way_delay_s == 0.235  # Seoul to Frankfurt
    assert network.link(0, 1).bandwidth_bps == 2e9  # inside London
    assert network.tcp.sockets == 16


def test_the_table_has_a_row_per_series() -> None:
    text = table([(16, 1.0, [100.04] * len(MICRO_BATCHES))])
    assert text.splitlines()[-1] == "| 16 | 1 | 100.0 | 100.0 | 100.0 | 100.0 |"
