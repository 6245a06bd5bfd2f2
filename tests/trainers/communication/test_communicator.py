"""Point-to-point transfers on loopback processes."""

from __future__ import annotations

import math
import threading
import time
from typing import cast

import pytest
import torch

from netbench.trainers.communication.communicator import (
    MAX_MESSAGES_AHEAD,
    Communicator,
    Inbox,
    Outbox,
    OverlappedCommunicator,
    messages_ahead,
)
from netbench.trainers.communication.world import TAG_COLLECTIVE, TAG_PIPELINE, World
from tests.trainers.processes import on_processes

SIZE, COUNT = 4096, 6

PATIENCE_S = 30.0


def test_both_ends_of_a_path_hold_whole_messages() -> None:
    """floor(2E / S): none on a short path, several on a long one, and a bound."""
    assert messages_ahead(10.0, 4.0) == 0
    assert messages_ahead(10.0, 5.0) == 1
    assert messages_ahead(10.0, 12.5) == 2
    assert messages_ahead(1.0, 1e9) == messages_ahead(1.0, math.inf) == MAX_MESSAGES_AHEAD


def pass_messages(
    world: World,
    num_ahead: int,
    at_once: int,
    kind: type[Communicator] | type[OverlappedCommunicator],
    first_bytes: int | None = None,
    rest_later: bool = False,
) -> list[list[int]]:
    """Rank 0 sends numbered messages, some at once, in two iterations; rank 1 returns what it took,
    all of an operation's after all of them came."""
    world.warm({0, 1})
    communicator, taken = kind(), []
    # In pieces a message is a little shorter, as overheads are taken off.
    size = SIZE if first_bytes is None else SIZE - 7
    outbox = Outbox(
        world,
        1,
        TAG_PIPELINE,
        blocking=rest_later,
        size=size,
        first_bytes=first_bytes,
        rest_later=rest_later,
    )
    inbox = Inbox(world, 0, TAG_PIPELINE, size, num_ahead, first_bytes=first_bytes)
    for iteration in range(2):
        if world.rank == 0:
            outbox.open()
            messages = [torch.full((SIZE,), 10 * iteration + i).byte() for i in range(COUNT)]
            for i in range(0, COUNT, at_once):
                communicator.start([], [(outbox, m) for m in messages[i : i + at_once]])
            communicator.finish()
            world.receive(torch.empty(1), 1, TAG_COLLECTIVE).wait()
        else:
            inbox.open(COUNT)
            for i in range(0, COUNT, at_once):
                communicator.start([(i + k, inbox) for k in range(at_once)], [])
                communicator.finish()
                found = [communicator.take(i + k) for k in range(at_once)]
                assert {message.numel() for message in found} == {size}
                taken += [sorted(set(message.tolist())) for message in found]
            world.send(torch.empty(1), 0, TAG_COLLECTIVE).wait()
    return taken


@pytest.mark.parametrize("kind", [Communicator, OverlappedCommunicator])
@pytest.mark.parametrize("at_once", [1, 2])
def test_messages_arrive_whole_and_in_order_however_many_run_ahead(
    at_once: int, kind: type[Communicator] | type[OverlappedCommunicator]
) -> None:
    """Buffers are reused, but never one whose message is still to be taken. Two at once come where
    two stages exchange activations and gradients of several chunks."""
    expected = [[10 * iteration + i] for iteration in range(2) for i in range(COUNT)]
    for num_ahead in (0, 1, 3, 10):
        for cut in ((None, False), (1000, False), (3000, num_ahead > 0)):
            found = on_processes(2, pass_messages, num_ahead, at_once, kind, *cut)[1]
            assert found == expected


def wait_for_sends(world: World) -> list[float]:
    """Rank 0: when each blocking send was through. Rank 1: when it asked for its message."""
    world.warm({0, 1})
    communicator, moments = Communicator(), []
    outbox = Outbox(world, 1, TAG_PIPELINE, blocking=True)
    inbox = Inbox(world, 0, TAG_PIPELINE, SIZE, 0)
    inbox.open(COUNT)
    for _ in range(COUNT):
        if world.rank == 0:
            communicator.start([], [(outbox, torch.zeros(SIZE, dtype=torch.uint8))])
            world.send(torch.empty(1), 1, TAG_COLLECTIVE).wait()
            communicator.finish()
            moments.append(time.monotonic())
        else:
            world.receive(torch.empty(1), 0, TAG_COLLECTIVE).wait()
            moments.append(time.monotonic())
            inbox.start()
            inbox.finish()
    return moments


def test_an_operation_lasts_until_its_blocking_sends_are_through() -> None:
    """Not before the receiver has asked for them, which it does after they were started."""
    done, asked = on_processes(2, wait_for_sends)
    assert len(done) == COUNT
    assert all(d >= a for d, a in zip(done, asked, strict=True))


LATE_S = 0.05
"""Least time of a transfer, seconds."""


def compute_meanwhile(world: World) -> list[float]:
    """Rank 1: seconds until a receive was started, and until its message was there."""
    world.warm({0, 1})
    if world.rank == 0:
        world.send(torch.zeros(SIZE, dtype=torch.uint8), 1, TAG_PIPELINE).wait()
        return []
    communicator = OverlappedCommunicator()
    inbox = Inbox(world, 0, TAG_PIPELINE, SIZE, 0)
    inbox.open(1)
    began_s = time.monotonic()
    for name in range(2):  # the second never comes
        communicator.start([(name, inbox)], [], 10 * LATE_S)
    started_s = time.monotonic()
    communicator.take(0)
    return [started_s - began_s, time.monotonic() - began_s]


def test_transfers_run_beside_computation_and_take_their_time() -> None:
    """To start one waits for nothing, and to take its message for at least its seconds."""
    _, (started_s, taken_s) = on_processes(2, compute_meanwhile)
    assert started_s < 10 * LATE_S <= taken_s


def test_what_nothing_uses_any_more_ends_its_thread() -> None:
    """A rank prepares many plans, one after the other."""
    before = set(threading.enumerate())
    overlapped = OverlappedCommunicator()
    (thread,) = set(threading.enumerate()) - before
    del overlapped
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_what_fails_beside_computation_is_raised_to_whoever_waits() -> None:
    class Broken:
        def start(self) -> None:
            raise OSError("lost")

    communicator, broken = OverlappedCommunicator(), Broken()
    communicator.start([("name", cast(Inbox, broken))], [])
    with pytest.raises(OSError, match="lost"):
        communicator.take("name")
    with pytest.raises(OSError, match="lost"):
        communicator.finish()


def hold_back(world: World, num_ahead: int, first_bytes: int | None) -> list[float]:
    """Rank 0: when each piece was through. Rank 1: when each message's turn came."""
    world.warm({0, 1})
    moments = []
    if world.rank == 0:
        sizes = [SIZE] if first_bytes is None else [first_bytes, SIZE - first_bytes]
        pieces = [torch.zeros(size, dtype=torch.uint8) for size in sizes] * COUNT
        works = [world.send(piece, 1, TAG_PIPELINE) for piece in pieces]
        for i, work in enumerate(works):
            if i == num_ahead:
                world.send(torch.empty(1), 1, TAG_COLLECTIVE).wait()
            work.wait()
            moments.append(time.monotonic())
    else:
        inbox = Inbox(world, 0, TAG_PIPELINE, SIZE, num_ahead, first_bytes=first_bytes)
        inbox.open(COUNT)
        # No turn comes before the messages ahead are through.
        world.receive(torch.empty(1), 0, TAG_COLLECTIVE).wait()
        for _ in range(COUNT):
            moments.append(time.monotonic())
            inbox.start()
            inbox.finish()
    return moments


def test_messages_beyond_those_ahead_wait_for_the_receivers_turn() -> None:
    """The first pass while the receiver does nothing; others not before their message's turn."""
    for num_ahead in (0, 1, 3):
        for pieces, first_bytes in ((1, None), (2, 1000)):
            through, turns = on_processes(2, hold_back, num_ahead, first_bytes)
            of_pieces = [turn for turn in turns for _ in range(pieces)]
            assert all(t >= turn for t, turn in zip(through[num_ahead:], of_pieces, strict=False))
            assert all(t <= turns[0] for t in through[:num_ahead])
