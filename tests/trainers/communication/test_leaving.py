"""Bytes that leave through a queue at its rate."""

from __future__ import annotations

import time

import torch

from netbench.trainers.communication.communicator import Communicator, Inbox, Outbox
from netbench.trainers.communication.leaving import OwnQueue
from netbench.trainers.communication.world import TAG_PIPELINE, World
from tests.trainers.processes import computed, on_processes

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


def wait_for_queue(world: World, cuts: tuple[int, ...], num_late: int) -> list[float]:
    """Rank 0: seconds until the operation of each of two sends was over, through one queue with
    room for a quarter of a message. Rank 1: nothing."""
    world.warm({0, 1})
    communicator = Communicator()
    if world.rank == 1:
        inbox = Inbox(world, 0, TAG_PIPELINE, SIZE, 2, cuts=cuts)
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
        cuts=cuts,
        num_late=num_late,
        leaving=(OwnQueue(RATE), SIZE / 4),
    )
    outbox.open()
    began_s, ended_s = time.monotonic(), []
    for _ in range(2):
        communicator.start([], [(outbox, computed(torch.zeros(SIZE, dtype=torch.uint8)))])
        communicator.finish()
        ended_s.append(time.monotonic() - began_s)
    return ended_s


def test_a_send_lasts_until_the_buffers_hold_what_has_not_left() -> None:
    """0.2 s of bytes each, of which 0.05 s may be left, in how many pieces they go."""
    for cuts, num_late in (((), 0), ((SIZE * 3 // 4,), 0), ((SIZE // 4, SIZE * 3 // 4), 1)):
        (first_s, second_s), _ = on_processes(2, wait_for_queue, cuts, num_late)
        assert first_s >= 0.15
        assert second_s >= 0.35
