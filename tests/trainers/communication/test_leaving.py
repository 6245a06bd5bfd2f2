"""Bytes that leave through a queue at its rate."""

from __future__ import annotations

import time

import torch

from netbench.trainers.communication.communicator import Communicator, Inbox, Outbox
from netbench.trainers.communication.leaving import OwnQueue
from netbench.trainers.communication.world import TAG_PIPELINE, World
from tests.trainers.processes import on_processes

RATE = 1_000_000
"""Bytes/s: slow enough for the times of a test to be nothing beside those of a message."""

SIZE = 200_000


def test_bytes_leave_one_after_another_at_the_rate_of_the_queue() -> None:
    """An empty queue begins with what it is given; a full one continues."""
    own, began_s = OwnQueue(RATE), time.monotonic()
    own.wait(0)
    assert time.monotonic() - began_s < 0.05
    for _ in range(2):
        own.give(SIZE)
    given_s = time.monotonic()
    own.wait(SIZE)
    assert time.monotonic() - began_s >= 0.2
    own.wait(0)
    assert time.monotonic() - began_s >= 0.4
    own.give(SIZE)  # the queue was empty: what is idle is not made up for
    own.wait(0)
    assert time.monotonic() - given_s >= 0.6


def wait_for_queue(world: World, first_bytes: int | None, rest_later: bool) -> list[float]:
    """Rank 0: seconds until the operation of each of two sends was over, through one queue with
    room for a quarter of a message. Rank 1: nothing."""
    world.warm({0, 1})
    communicator = Communicator()
    if world.rank == 1:
        inbox = Inbox(world, 0, TAG_PIPELINE, SIZE, 2, first_bytes=first_bytes)
        inbox.open(2)
        for name in range(2):
            communicator.start([(name, inbox)], [])
        communicator.finish()
        return []
    outbox = Outbox(
        world,
        1,
        TAG_PIPELINE,
        blocking=True,
        first_bytes=first_bytes,
        rest_later=rest_later,
        leaving=(OwnQueue(RATE), SIZE / 4),
    )
    outbox.open()
    began_s, ended_s = time.monotonic(), []
    for _ in range(2):
        communicator.start([], [(outbox, torch.zeros(SIZE, dtype=torch.uint8))])
        communicator.finish()
        ended_s.append(time.monotonic() - began_s)
    return ended_s


def test_a_send_lasts_until_the_buffers_hold_what_has_not_left() -> None:
    """0.2 s of bytes each, of which 0.05 s may be left. What is sent later waits for its turn."""
    for first_bytes, rest_later in ((None, False), (SIZE * 3 // 4, False)):
        (first_s, second_s), _ = on_processes(2, wait_for_queue, first_bytes, rest_later)
        assert first_s >= 0.15
        assert second_s >= 0.35
    (first_s, second_s), _ = on_processes(2, wait_for_queue, SIZE * 3 // 4, True)
    assert first_s >= 0.1
    assert second_s >= 0.3
