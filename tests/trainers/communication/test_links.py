"""Buffers of a path, and the payload of a scaled transfer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from netbench.plan.model import Plan, Transport, emulated_transport
from netbench.scenario.model import Link
from netbench.simulator.fabric import Fabric
from netbench.trainers.communication.links import (
    ahead_bytes,
    copy_s,
    own_queue,
    pace_s,
    passage_s,
    payload_bytes,
)
from netbench.transport.profile import load_transport


def test_a_path_buffers_the_fifo_and_twice_the_bandwidth_delay_product(
    plan_of: Callable[..., Plan],
) -> None:
    """5 Gbit/s, 1 ms one way: 1 MiB + 2 x 1.25 MB."""
    plan = plan_of(link=Link(one_way_delay_s=1e-3, bandwidth_bps=5e9))
    assert ahead_bytes(plan, 0, 1) == pytest.approx((1 << 20) + 2.5e6)


def test_a_nic_bounds_the_rate_that_a_path_can_fill(plan_of: Callable[..., Plan]) -> None:
    """A link without a rate of its own behind a 1 Gbit/s NIC, 10 ms round trip."""
    plan = plan_of(link=Link(one_way_delay_s=5e-3, bandwidth_bps=float("inf")))
    capped = replace(plan, network=replace(plan.network, nic_bps=(1e9,) * 4))
    assert ahead_bytes(capped, 0, 1) == pytest.approx((1 << 20) + 2 * 1e9 / 8 * 10e-3)
    assert ahead_bytes(plan, 0, 1) == 1 << 20


def test_a_path_buffers_as_much_as_in_the_simulator(plan_of: Callable[..., Plan]) -> None:
    """Inside a node without a limit."""
    link = Link(one_way_delay_s=1e-3, bandwidth_bps=5e9)
    plan = plan_of(transport=emulated_transport(), link=link)
    plan = replace(plan, device_nodes=(0, 0, 1, 1))
    fabric = Fabric(plan.network, np.array(plan.device_nodes), load_transport("nccl"))
    for src, dst in ((0, 1), (0, 2), (3, 1)):
        (simulated,) = fabric.buffered_bytes(np.array([src]), np.array([dst]))
        assert ahead_bytes(plan, src, dst) == pytest.approx(simulated, rel=0.05)
    assert ahead_bytes(plan, 0, 1) == math.inf


def test_a_process_alone_on_its_node_has_the_queues_of_its_links_for_itself(
    plan_of: Callable[..., Plan],
) -> None:
    """A receiver's NIC is a queue that others fill, too, but only matters if it is slower."""
    plan = plan_of(link=Link(one_way_delay_s=1e-3, bandwidth_bps=5e9))
    assert all(own_queue(plan, process, (process + 1) % 4) for process in range(4))
    together = replace(plan, device_nodes=(0, 0, 1, 2))
    assert [bool(own_queue(together, process, 3)) for process in range(3)] == [False, False, True]
    for nic_bps, is_own in ((10e9, True), (5e9, False), (1e9, False)):
        nic = replace(plan.network, sharing="class-nic", nic_bps=(nic_bps,) * 4)
        assert bool(own_queue(replace(plan, network=nic), 0, 1)) == is_own


def test_equal_links_of_a_node_are_one_queue_if_they_share_a_class(
    plan_of: Callable[..., Plan],
) -> None:
    link = Link(one_way_delay_s=1e-3, bandwidth_bps=5e9)
    for sharing, queues in (("class", 1), ("pair", 2)):
        plan = plan_of(link=link)
        plan = replace(plan, network=replace(plan.network, sharing=sharing))
        assert len({own_queue(plan, 0, process) for process in (1, 2)}) == queues
        assert own_queue(plan, 1, 0) != own_queue(plan, 0, 1)


def test_a_message_is_copied_as_fast_as_in_the_simulator(plan_of: Callable[..., Plan]) -> None:
    """The time is its size over the host rate in NCCL's profile; inside a node it is 0."""
    plan = plan_of(activation_bytes=8 << 20)
    plan = replace(plan, device_nodes=(0, 1, 1, 1))
    fabric = Fabric(plan.network, np.array(plan.device_nodes), load_transport("nccl"))
    for src, dst in ((0, 1), (1, 2)):
        (simulated_s,) = fabric.copy_s(np.array([src]), np.array([dst]), plan.activation_bytes)
        assert copy_s(plan, src, dst) == pytest.approx(simulated_s)
    assert copy_s(plan, 0, 1) == pytest.approx(7.027e-3, rel=1e-3)
    assert copy_s(plan, 1, 2) == 0


def test_a_message_crosses_an_idle_path_as_in_the_simulator(plan_of: Callable[..., Plan]) -> None:
    """But for 0.7% of headers in jumbo frames: 8 MiB at 1 Gbit/s, and 20 ms. Inside a node it takes
    no time."""
    plan = plan_of(activation_bytes=8 << 20, link=Link(one_way_delay_s=0.02, bandwidth_bps=1e9))
    jumbo = replace(plan.network, mtu_bytes=9001)
    plan = replace(plan, device_nodes=(0, 1, 1, 1), network=jumbo)
    fabric = Fabric(plan.network, np.array(plan.device_nodes), load_transport("nccl"))
    ends = np.array([0]), np.array([1])
    (leaves_s,) = fabric.serialisation_s(*ends, plan.activation_bytes)
    (delay_s,) = fabric.one_way_delay_s(*ends)
    assert passage_s(plan, 0, 1) == pytest.approx(8.388608 * 8e-3 + 0.02)
    assert leaves_s + delay_s == pytest.approx(passage_s(plan, 0, 1), rel=0.007)
    assert passage_s(plan, 1, 2) == 0


def test_a_scaled_transfer_is_shortened_by_what_gloo_adds_to_each_message(
    plan_of: Callable[..., Plan],
) -> None:
    """Two preambles of 48 bytes and a frame's headers: 162 bytes, at most all but one byte."""
    whole, scaled = plan_of(scale=1.0), plan_of(scale=1000.0)
    assert payload_bytes(whole, 8 << 20) == 8 << 20
    assert payload_bytes(scaled, 8 << 20) == 8389 - 162
    assert payload_bytes(scaled, 8 << 20, num_messages=4) == 8389 - 4 * 162
    assert payload_bytes(scaled, 1000, num_messages=3) == 3
    assert payload_bytes(scaled, 0) == 0


def test_a_plan_may_add_a_window_to_what_a_path_buffers(plan_of: Callable[..., Plan]) -> None:
    """The simulator's window per connection. Plans recorded without the field have none."""
    plan = plan_of(link=Link(one_way_delay_s=1e-3, bandwidth_bps=5e9))
    wider = replace(plan, transport=Transport(window_bytes=1 << 20))
    assert ahead_bytes(wider, 0, 1) == ahead_bytes(plan, 0, 1) + (1 << 20)


def test_new_plans_embed_the_profiles() -> None:
    """Plans that were recorded without the fields had no window and short chains."""
    transport = emulated_transport()
    assert transport == Transport(window_bytes=1 << 20, max_slices=128)
    nccl, gloo = load_transport("nccl"), load_transport("gloo")
    assert nccl.emulation is not None
    assert (transport.fifo_bytes, transport.chunk_bytes, transport.max_slices) == (
        nccl.fifo_bytes,
        nccl.emulation.slice_bytes,
        nccl.emulation.max_slices,
    )
    assert transport.overhead_bytes == gloo.overhead_bytes + 52 + 14


def test_channels_pace_a_collective_where_the_network_is_faster(
    plan_of: Callable[..., Plan],
) -> None:
    """Two of 9.55 Gbit/s behind a NIC of 25 Gbit/s, as in the simulator; not behind 10 Gbit/s."""
    plan = plan_of(link=Link(one_way_delay_s=5e-5, bandwidth_bps=float("inf")), scale=1000.0)
    fast = replace(plan, network=replace(plan.network, nic_bps=(25e9,) * 4))
    assert pace_s(fast, 0, 1) == pytest.approx(8 * 1000 / 19.1e9)
    assert pace_s(replace(fast, device_nodes=(0, 0, 1, 1)), 0, 1) == 0.0
    assert pace_s(replace(fast, compute="cpu"), 0, 1) == 0.0
    slow = replace(plan, network=replace(plan.network, nic_bps=(10e9,) * 4))
    assert pace_s(slow, 0, 1) == 0.0
