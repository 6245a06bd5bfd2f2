"""Rates of gloo's connections, on real sockets of processes on loopback."""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import time
from unittest import mock

import pytest
import torch

from netbench.errors import TestbedError
from netbench.plan.build import build_plan
from netbench.plan.model import Plan
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.trainers.communication import sockets
from netbench.trainers.communication.leaving import Acknowledged, OwnQueue
from netbench.trainers.communication.links import socket_bytes_per_s
from netbench.trainers.communication.sockets import (
    SO_MAX_PACING_RATE,
    limit_rates,
    open_connections,
    unacknowledged_bytes,
    wait_for_arrival,
)
from netbench.trainers.communication.world import TAG_PIPELINE, World
from netbench.trainers.systems import pipeline
from netbench.trainers.systems.registry import PacedTrainer, build_trainer
from tests.trainers.processes import on_processes

SIZE_BYTES = 2_000_000
RATE = 4_000_000
"""Bytes/s: the message takes half a second, and without a limit a few milliseconds."""

LOOPBACK_SEGMENT_BYTES = 65536

PACED = 0.5
"""Least part of a message that is paced: TCP does not pace the first ten segments."""


def send_round(world: World) -> tuple[float, float, int]:
    """Send to the next process, of which 0 limits what it sends to 1. Return when this process
    began to send, when the other message had come, and the number of connections that have the
    rate."""
    size, rank = world.size, world.rank
    before, after = (rank - 1) % size, (rank + 1) % size
    world.warm({before, after})
    limits: dict[int, dict[int, float]] = {0: {1: RATE}, 1: {0: math.inf}}
    limit_rates(world, limits.get(rank, {}))
    received = world.receive(torch.empty(SIZE_BYTES, dtype=torch.uint8), before, TAG_PIPELINE)
    started_s = time.monotonic()
    sent = world.send(torch.zeros(SIZE_BYTES, dtype=torch.uint8), after, TAG_PIPELINE)
    received.wait()
    received_s = time.monotonic()
    sent.wait()
    rates = [max_pacing_rate(fd) for fd in open_connections()]
    return started_s, received_s, rates.count(RATE)


def max_pacing_rate(fd: int) -> int:
    with socket.socket(fileno=os.dup(fd)) as one:
        option = one.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8)
    return int.from_bytes(option, "little")


def test_only_the_named_connection_is_limited() -> None:
    """Three send in a ring; the message from 0 to 1 takes its time at the rate."""
    (started_s, _, limited), (_, received_s, others), (_, _, more) = on_processes(3, send_round)
    assert received_s - started_s > PACED * SIZE_BYTES / RATE
    assert limited  # and perhaps that of the store, between the same two
    assert (others, more) == (0, 0)


def send_and_wait(world: World) -> tuple[float, tuple[int, int, int]]:
    """Send one message, limited, from 0 to 1. Return the seconds until it had arrived, and bytes
    that were not acknowledged when the kernel had it, when half was awaited, and then."""
    world.warm({1 - world.rank})
    limit_rates(world, {1 - world.rank: RATE if world.rank == 0 else math.inf})
    message = torch.zeros(SIZE_BYTES, dtype=torch.uint8)
    if world.rank:
        world.receive(message, 0, TAG_PIPELINE).wait()
        return 0.0, (0, 0, 0)
    started_s = time.monotonic()
    world.send(message, 1, TAG_PIPELINE).wait()
    left = [sum(map(unacknowledged_bytes, world.sockets[1]))]
    for but_for in (SIZE_BYTES / 2, 0.0):
        wait_for_arrival(world.sockets[1], RATE, but_for)
        left.append(sum(map(unacknowledged_bytes, world.sockets[1])))
    first, half, last = left
    return time.monotonic() - started_s, (first, half, last)


def test_a_send_can_be_awaited_until_it_has_arrived() -> None:
    """The kernel takes the message before it has sent it at the rate."""
    (took_s, (first, half, last)), _ = on_processes(2, send_and_wait)
    assert took_s > PACED * SIZE_BYTES / RATE
    assert first > SIZE_BYTES / 2 >= half > last
    assert last <= LOOPBACK_SEGMENT_BYTES


def name_a_stranger(world: World) -> str:
    """Limit a connection whose other end tells names that are none of this process's peers."""
    world.warm({1 - world.rank})
    strangers = mock.patch.object(sockets, "_names", return_value=["elsewhere/1"])
    with strangers, pytest.raises(TestbedError) as caught:
        limit_rates(world, {1 - world.rank: RATE})
    return str(caught.value)


def test_a_connection_that_is_not_found_is_an_error() -> None:
    """It would run without its limit."""
    for message in on_processes(2, name_a_stranger):
        assert "no connection to process" in message


def test_connections_are_those_that_have_another_end() -> None:
    """Both ends of one are seen, each as the other's far end; a listening socket is not."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as there,
        listener.accept()[0] as here,
    ):
        found = open_connections()
        assert found[here.fileno()] == found[there.fileno()][::-1]
        assert listener.fileno() not in found


def test_connections_of_stages_carry_what_a_host_does() -> None:
    """9.55 Gbit/s over the scale, where pipelines share NICs of 25; elsewhere, within a node, or
    behind a slower NIC, they have no limit of their own."""
    plan = planned("case1", "megatron-p8")
    assert socket_bytes_per_s(plan, 0, 8) == pytest.approx(9.55e9 / 8 / plan.scale)
    assert socket_bytes_per_s(plan, 0, 1) == math.inf
    slow = dataclasses.replace(plan.network, nic_bps=(5e9,) * 8)
    assert socket_bytes_per_s(dataclasses.replace(plan, network=slow), 0, 8) == math.inf
    assert socket_bytes_per_s(planned("case3", "megatron-p8"), 0, 8) == math.inf
    assert socket_bytes_per_s(planned("case1", "dtfm-scheduled"), 0, 8) == math.inf


def test_both_ends_of_a_connection_name_each_other() -> None:
    """They tell each other their addresses, even if only one direction is limited."""
    plan = planned("case1", "megatron-p8")
    uneven = dataclasses.replace(plan.network, nic_bps=(25e9, *(5e9,) * 7))
    plan = dataclasses.replace(plan, network=uneven)
    rates = {}
    for rank in (0, 8, 16):
        trainer = build_trainer(World(None, rank, 64), plan)
        assert isinstance(trainer, PacedTrainer)
        rates[rank] = trainer.rates
    assert rates[0] == {8: pytest.approx(9.55e9 / 8 / plan.scale)}
    assert rates[8] == {0: math.inf}
    assert rates[16] == {}


def test_sends_are_watched_where_others_fill_queues_and_buffers_hold_no_whole_message() -> None:
    """8 MiB: behind a NIC of 10 Gbit/s buffers hold 2.3 MB, inside a node everything. Over 1 ms at
    5 Gbit/s they hold 4.6 MB, but a node of one GPU has its queues for itself."""
    rates = {}
    for case in ("case1", "case2", "case3", "case5"):
        trainer = build_trainer(World(None, 0, 64), planned(case, "dtfm-scheduled"))
        assert isinstance(trainer, PacedTrainer)
        rates[case] = trainer.rates
    assert rates == {"case1": {}, "case2": {1: math.inf}, "case3": {}, "case5": {}}


def test_sends_wait_for_what_buffers_do_not_hold() -> None:
    """8 MiB over 1 ms at 5 Gbit/s leave through the rank's own queue until 4.6 MB are left; 10 ms
    at 2 Gbit/s hold 12 MB. Behind NICs acknowledgements tell."""
    leaving = {}
    for case in ("case2", "case3", "case5"):
        plan = planned(case, "dtfm-scheduled")
        with mock.patch.object(pipeline, "Outbox") as outbox:
            build_trainer(World(None, 0, 64), plan)
        (call,) = outbox.call_args_list
        leaving[case] = call.kwargs["leaving"]
        assert call.kwargs["blocking"] == (leaving[case] is not None)
    assert isinstance(leaving["case2"][0], Acknowledged)
    queue, unsent_bytes = leaving["case3"]
    assert isinstance(queue, OwnQueue)
    held_bytes = (2 << 20) + 2 * 5e9 / 8 * 2e-3
    scale = planned("case3", "dtfm-scheduled").scale
    assert unsent_bytes == pytest.approx(held_bytes / scale)
    assert leaving["case5"] is None


def planned(case: str, variant: str) -> Plan:
    return build_plan(load_scenario(case), variant, Setting(layers=24, batch=1024, seed=2022))
