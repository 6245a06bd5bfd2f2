"""Point-to-point transfers on loopback processes."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future
from typing import cast

import pytest
import torch

from netbench.trainers.communication.communicator import (
    MAX_MESSAGES_AHEAD,
    Communicator,
    Inbox,
    Outbox,
    OverlappedCommunicator,
    Receipt,
    messages_ahead,
)
from netbench.trainers.communication.leaving import Leaving, OwnQueue
from netbench.trainers.communication.world import TAG_COLLECTIVE, TAG_PIPELINE, World
from tests.trainers.processes import computed, on_processes

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
    cuts: tuple[int, ...] = (),
    num_late: int = 0,
) -> list[list[int]]:
    """Rank 0 sends numbered messages, some at once, in two iterations; rank 1 returns what it took,
    all of an operation's after all of them came."""
    world.warm({0, 1})
    communicator, taken = kind(), []
    # In pieces a message is a little shorter, as overheads are taken off.
    size = SIZE - 7 if cuts else SIZE
    outbox = Outbox(
        world, 1, TAG_PIPELINE, blocking=num_late > 0, size=size, cuts=cuts, num_late=num_late
    )
    inbox = Inbox(world, 0, TAG_PIPELINE, size, num_ahead, cuts=cuts)
    for iteration in range(2):
        if world.rank == 0:
            outbox.open()
            messages = [torch.full((SIZE,), 10 * iteration + i).byte() for i in range(COUNT)]
            for i in range(0, COUNT, at_once):
                communicator.start([], [(outbox, computed(m)) for m in messages[i : i + at_once]])
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
        for cuts, num_late in (((), 0), ((1000,), 0), ((3000,), 1), ((1000, 3000), 1)):
            late = num_late if num_ahead else 0
            found = on_processes(2, pass_messages, num_ahead, at_once, kind, cuts, late)[1]
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
            communicator.start([], [(outbox, computed(torch.zeros(SIZE, dtype=torch.uint8)))])
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


def exchange_before_computing(world: World) -> list[bool]:
    """Rank 0: whether its exchange was over when it had its message, and when it had sent too."""
    world.warm({0, 1})
    if world.rank == 1:
        world.send(torch.zeros(SIZE, dtype=torch.uint8), 0, TAG_PIPELINE).wait()
        world.receive(torch.empty(SIZE, dtype=torch.uint8), 0, TAG_PIPELINE).wait()
        return []
    communicator, output = OverlappedCommunicator(), Future[torch.Tensor]()
    inbox, outbox = Inbox(world, 1, TAG_PIPELINE, SIZE, 0), Outbox(world, 1, TAG_PIPELINE)
    inbox.open(1)
    communicator.start([("name", inbox)], [(outbox, output)])
    message = communicator.take("name")
    ended = [threading.Thread(target=communicator.finish, daemon=True) for _ in range(2)]
    ended[0].start()
    ended[0].join(LATE_S)
    over = [not ended[0].is_alive()]
    output.set_result(message)
    ended[1].start()
    ended[1].join(PATIENCE_S)
    return [*over, not ended[1].is_alive()]


def test_an_exchange_receives_before_its_send_is_computed() -> None:
    """Work waits for its own message only, so it may make what the exchange sends."""
    assert on_processes(2, exchange_before_computing)[0] == [False, True]


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


class NotingWorld:
    """Does what it is asked at once, and notes it with its bytes."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, int]] = []

    def send(self, tensor: torch.Tensor, process: int, tag: int) -> NotingWorld:
        self.noted.append(("send", tensor.nbytes))
        return self

    def receive(self, tensor: torch.Tensor, process: int, tag: int) -> NotingWorld:
        self.noted.append(("receive", tensor.nbytes))
        return self

    def wait(self) -> None:
        pass


def slow_outbox(world: NotingWorld, leaving: Leaving | None) -> Outbox:
    """Return one that sends pieces of 1, 2 and 3 kB, the last late."""
    return Outbox(
        cast(World, world),
        1,
        TAG_PIPELINE,
        blocking=True,
        cuts=(1000, 3000),
        num_late=1,
        leaving=None if leaving is None else (leaving, 3000),
    )


def noted_with(leaving: Leaving | None) -> list[tuple[str, int]]:
    """Return what is done for a send in pieces and a receive that follows."""
    world, communicator = NotingWorld(), Communicator()
    outbox = slow_outbox(world, leaving)
    inbox = Inbox(cast(World, world), 2, TAG_PIPELINE, SIZE, 0)
    inbox.open(1)
    message = computed(torch.zeros(6000, dtype=torch.uint8))
    communicator.start([], [(outbox, message)], 0.0, [inbox])
    communicator.finish()
    return world.noted


def test_a_receive_is_announced_before_the_bytes_that_may_be_left() -> None:
    """Ranks that do not count what leaves announce it before all bytes."""
    announced, early = ("receive", SIZE), [("send", 1000), ("send", 2000)]
    assert noted_with(OwnQueue(1e9)) == [*early, announced, ("send", 3000)]
    assert noted_with(None) == [announced, *early, ("send", 3000)]


def test_beside_a_receive_the_next_one_is_announced_if_both_are_done_in_time() -> None:
    """An exchange ends with its last message; so what follows may not be announced before."""
    for taken, announced in ((True, [("receive", SIZE)]), (False, [])):
        world, communicator = NotingWorld(), Communicator()
        inboxes = [Inbox(cast(World, world), peer, TAG_PIPELINE, SIZE, 0) for peer in (2, 3)]
        for inbox in inboxes:
            inbox.open(1)
        message = computed(torch.zeros(6000, dtype=torch.uint8))
        sends = [(slow_outbox(world, OwnQueue(1e9)), message)]
        communicator.start([("first", inboxes[0])], sends, 0.0, [inboxes[1]])
        if taken:
            communicator.take("first")
        communicator.finish()
        early = [("receive", SIZE), ("send", 1000), ("send", 2000)]
        assert world.noted == [*early, *announced, ("send", 3000)]


def test_all_who_wait_for_a_message_learn_that_it_is_lost() -> None:
    """Rank and communicator both wait; the receive fails once."""

    class Lost:
        fails = iter([OSError("lost")])

        def finish(self) -> torch.Tensor:
            raise next(self.fails)

    receipt = Receipt(cast(Inbox, Lost()), 0.0)
    for _ in range(2):
        with pytest.raises(OSError, match="lost"):
            receipt.take()


def hold_back(world: World, num_ahead: int, cuts: tuple[int, ...]) -> list[float]:
    """Rank 0: when each piece was through. Rank 1: when each message's turn came."""
    world.warm({0, 1})
    moments = []
    if world.rank == 0:
        pieces = [*torch.tensor_split(torch.zeros(SIZE, dtype=torch.uint8), cuts)] * COUNT
        works = [world.send(piece, 1, TAG_PIPELINE) for piece in pieces]
        for i, work in enumerate(works):
            if i == num_ahead:
                world.send(torch.empty(1), 1, TAG_COLLECTIVE).wait()
            work.wait()
            moments.append(time.monotonic())
    else:
        inbox = Inbox(world, 0, TAG_PIPELINE, SIZE, num_ahead, cuts=cuts)
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
        for cuts in ((), (1000,), (1000, 3000)):
            through, turns = on_processes(2, hold_back, num_ahead, cuts)
            of_pieces = [turn for turn in turns for _ in range(len(cuts) + 1)]
            assert all(t >= turn for t, turn in zip(through[num_ahead:], of_pieces, strict=False))
            assert all(t <= turns[0] for t in through[:num_ahead])
