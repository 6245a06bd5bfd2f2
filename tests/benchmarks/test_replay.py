"""The replay against closed forms."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from benchmarks import replay as replay_module
from benchmarks.replay import CHOSEN, Channel, Flow, Process, Resource, Timeline, World, replay
from netbench.plan.build import build_plan
from netbench.plan.model import Plan
from netbench.scenario.load import load_scenario
from netbench.trainers import collectives
from netbench.trainers.communicator import messages_ahead
from netbench.trainers.links import ahead_bytes

RATE = 1e6  # bytes/s
DELAY_S = 0.01
STAGES, MICRO_BATCHES, ROUNDS = 8, 64, 2


def arrivals(num_ahead: float, num_messages: int, turn_s: float) -> list[float]:
    """When messages of 1 s, all sent at 0, are received; the first one's turn is at `turn_s`."""
    timeline, ends = Timeline(), []
    channel = Channel(timeline, (Resource(RATE),), DELAY_S, num_ahead)

    def receiver() -> Process:
        yield turn_s
        for _ in range(num_messages):
            yield channel.receive()
            ends.append(timeline.now_s)

    for _ in range(num_messages):
        channel.send(RATE)
    timeline.start(receiver())
    timeline.run()
    return ends


def test_flows_share_a_resource_equally() -> None:
    """Two flows of 1 s and 2 s alone end after 2 s and 3 s together."""
    timeline, link, ends = Timeline(), Resource(RATE), []
    for size in (RATE, 2 * RATE):
        Flow(timeline, size, (link,), lambda: ends.append(timeline.now_s))
    timeline.run()
    assert ends == pytest.approx([2.0, 3.0])


def test_nothing_flows_before_its_turn_when_nothing_may_run_ahead() -> None:
    """Each message costs a delay to be asked for, its bytes, and a delay to come."""
    each_s = DELAY_S + 1.0 + DELAY_S
    assert arrivals(0, 2, turn_s=5.0) == pytest.approx([5.0 + each_s, 5.0 + 2 * each_s])


def test_a_message_ahead_waits_at_the_receiver() -> None:
    """The second flows once the sender has heard that the first one's turn has come, and the
    third while the second is on its way."""
    assert arrivals(1, 3, turn_s=5.0) == pytest.approx(
        [5.0, 5.0 + DELAY_S + 1.0 + DELAY_S, 5.0 + DELAY_S + 2.0 + DELAY_S]
    )


def test_the_trainers_accept_as_many_messages_ahead() -> None:
    """Two implementations, all neighbours of a random placement in two scenarios."""
    assert replay_module.MAX_SLICES == collectives.MAX_SLICES
    counts = set()
    for case in ("case1", "case3"):
        plan = build_plan(load_scenario(case), "dtfm-random", 24, 1024, 2022, 2, 1, scale=1.0)
        world, devices = World(plan, CHOSEN), plan.placement
        for src, dst in pairwise(range(plan.layout.num_ranks)):
            buffer_bytes = ahead_bytes(plan, devices[src], devices[dst])
            expected = messages_ahead(plan.activation_bytes, buffer_bytes)
            assert world.num_ahead(src, dst) == expected
            counts.add(expected)
    assert counts == {0, 1}


def plan_without_network(variant: str) -> Plan:
    """Case 3 at L24 B1024 with messages too small to matter."""
    plan = build_plan(load_scenario("case3"), variant, 24, 1024, 2022, 2, 1, scale=1.0)
    link = dataclasses.replace(plan.network.links[0][0], one_way_delay_s=0.0, bandwidth_bps=1e15)
    network = dataclasses.replace(plan.network, links=((link, link), (link, link)))
    return dataclasses.replace(plan, network=network)


def test_gpipe_without_a_network_fills_and_drains_every_phase() -> None:
    """Rounds x (micro-batches + stages - 1) x (forward + backward), then the slowest update."""
    plan = plan_without_network("dtfm-scheduled")
    assert (plan.num_rounds, plan.num_micro_batches) == (ROUNDS, MICRO_BATCHES)
    work = plan.stages[0]
    slots_s = ROUNDS * (MICRO_BATCHES + STAGES - 1) * (work.forward_s + work.backward_s)
    assert replay(plan) == pytest.approx(slots_s + work.optimizer_s, rel=1e-4)


def test_1f1b_without_a_network_fills_and_drains_once() -> None:
    """(micro-batches + stages - 1) x (forward + backward), and the update."""
    plan = plan_without_network("megatron-p8")
    work = plan.stages[0]
    slots_s = (plan.num_micro_batches + STAGES - 1) * (work.forward_s + work.backward_s)
    assert replay(plan) == pytest.approx(slots_s + work.optimizer_s, rel=1e-4)


def test_one_communicator_serialises_receive_and_compute() -> None:
    """A phase under rendezvous: p F + (p - 1)(T + d) until the last stage has its first micro-batch
    done, then n - 1 more, each asked for, received and computed by a middle stage. A barrier of 64
    takes 6 d."""
    delay_s, plan = 1e-3, plan_without_network("dtfm-scheduled")
    link = plan.network.links[0][0]
    link = dataclasses.replace(link, bandwidth_bps=10e9, one_way_delay_s=delay_s)
    network = dataclasses.replace(plan.network, links=((link, link), (link, link)))
    plan = dataclasses.replace(plan, network=network)
    once_s, twice_s = (
        replay(dataclasses.replace(plan, num_rounds=rounds), "rendezvous") for rounds in (1, 2)
    )
    goodput = 10e9 / 8 * 8949 / 9015
    transfer_s = plan.activation_bytes / goodput
    work = plan.stages[0]
    compute_s = work.forward_s + work.backward_s
    fill_s = STAGES * compute_s + 2 * (STAGES - 1) * (transfer_s + delay_s)
    steady_s = (MICRO_BATCHES - 1) * (compute_s + 2 * (transfer_s + 2 * delay_s))
    assert twice_s - once_s == pytest.approx(fill_s + steady_s + 6 * delay_s, rel=1e-6)
    # Then two chains of 7 hops, in 32 slices, and the update between them.
    chain_s = (1 + 6 / 32) * work.gradient_bytes / goodput + 7 * delay_s
    synchronise_s = 2 * chain_s + work.optimizer_s
    assert 2 * once_s - twice_s == pytest.approx(synchronise_s, rel=1e-6)
