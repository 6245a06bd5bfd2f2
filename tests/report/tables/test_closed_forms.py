"""Closed forms of collectives, compared with recurrences over messages and figures by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from netbench.plan.benchmark import OPS, CollectivePlan, first_nodes, uniform_network
from netbench.report.tables.collective import closed_form_s
from netbench.scenario import load_scenario

GOODPUT = 1448 / 1514
"""Goodput over rate at MTU 1500 (TCP with timestamps on Ethernet)."""

MIB = 1 << 20


def ideal(op: str, num_nodes: int, size: int, backend: str = "gloo", **network: Any) -> float:
    found = closed_form_s(
        CollectivePlan(
            op=op,
            num_nodes=num_nodes,
            payload_bytes=size,
            backend=backend,
            network=uniform_network(
                num_nodes, **{"one_way_delay_s": 0.005, "bandwidth_bps": 1e9} | network
            ),
            iterations=1,
            warmup_iterations=0,
        )
    )
    assert found is not None
    return found


def ring_by_messages(
    num_messages: int, tau_s: float, delay_s: float, shared_queue: bool = False
) -> float:
    """Every rank posts receive i and offers send i as soon as receive i - 2 has arrived.

    The word that receive i is posted takes the delay. In a shared queue it comes after the data
    that were there before it; what arrives at the same instant comes behind it.
    """
    offered: list[float] = []  # when message i may leave: the receiver's word has come
    left: list[float] = []  # when its last byte has left
    for i in range(num_messages):
        posted_s = left[i - 2] + delay_s if i >= 2 else 0.0
        queued = [left[j] for j in range(i) if offered[j] < posted_s - 1e-12]
        word_leaves_s = max([posted_s, *queued]) if shared_queue else posted_s
        offered.append(word_leaves_s + delay_s)
        left.append(max(offered[i], left[i - 1] if i else 0.0) + tau_s)
    return left[-1] + delay_s


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.005, 0.1])
@pytest.mark.parametrize("num_nodes", [2, 3, 4, 7])
@pytest.mark.parametrize("size", [1000, MIB, 40 * MIB])
@pytest.mark.parametrize("sharing", ["pair", "class", "nic"])
def test_a_ring_takes_the_sum_of_its_messages(
    delay_s: float, num_nodes: int, size: int, sharing: str
) -> None:
    """All-reduce in segments of at most 1 MiB, two or more per rank; all-gather in halves."""
    network: dict[str, Any] = {"one_way_delay_s": delay_s, "sharing": sharing}
    shared = num_nodes == 2 or sharing == "class"
    per_rank = max(2, -(-size // MIB // num_nodes))
    tau_s = size / per_rank / num_nodes * 8 / (1e9 * GOODPUT)
    once_s = ring_by_messages((num_nodes - 1) * per_rank, tau_s, delay_s, shared)
    assert ideal("all-reduce", num_nodes, size, **network) == pytest.approx(2 * once_s)
    half_s = size / num_nodes / 2 * 8 / (1e9 * GOODPUT)
    assert ideal("all-gather", num_nodes, size, **network) == pytest.approx(
        ring_by_messages(2 * (num_nodes - 1), half_s, delay_s, shared)
    )


@pytest.mark.parametrize(("size", "num_messages"), [(4 * MIB, 6), (16 * MIB, 14)])
def test_a_reduce_sends_more_segments_than_needed(size: int, num_messages: int) -> None:
    """4 ranks, 8 or 16 segments: the ring sends all but two, then a quarter goes to rank 0."""
    segment_s = size / (num_messages + 2) * 8 / (1e9 * GOODPUT)
    quarter_s = size / 4 * 8 / (1e9 * GOODPUT)
    expected_s = ring_by_messages(num_messages, segment_s, 0.005) + 2 * 0.005 + quarter_s
    assert ideal("reduce", 4, size) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("op", "sharing", "payloads", "delays"),
    [
        ("p2p", "pair", 1, 2),
        ("broadcast", "pair", 3, 4),  # 8 ranks: three levels, one rendezvous
        ("broadcast", "nic", 3 + 2 + 1, 4),  # the root sends three at a time, its first child two
        ("broadcast", "class", 3 + 2 + 1, 4),
    ],
)
def test_gloo_sends_whole_messages_down_a_tree(
    op: str, sharing: str, payloads: float, delays: float
) -> None:
    """Number of consecutive payloads on the longest path, and of one-way delays."""
    one_s = 8 * MIB * 8 / (1e9 * GOODPUT)
    assert ideal(op, 8, 8 * MIB, sharing=sharing) == pytest.approx(
        payloads * one_s + delays * 0.005
    )


@pytest.mark.parametrize(
    ("op", "payloads", "delays"),
    [
        ("p2p", 1, 1),
        ("all-reduce", 2 * 3 / 4, 6),
        ("broadcast", 1, 3),
        ("reduce", 1, 3),
        ("all-gather", 3 / 4, 3),
        ("reduce-scatter", 3 / 4, 3),
        ("central-ps", 2, 6),
        ("sharded-ps", 1 / 4 + 3 / 4, 4),
    ],
)
def test_nccl_pipelines(op: str, payloads: float, delays: float) -> None:
    """4 ranks: textbook rings and chains."""
    one_s = 8 * MIB * 8 / (1e9 * GOODPUT)
    found_s = ideal(op, 4, 8 * MIB, backend="nccl")
    assert found_s == pytest.approx(payloads * one_s + delays * 0.005)


def test_servers_take_the_sum_of_their_parts() -> None:
    """Central: the others are ready for the broadcast when the root is, which saves a delay."""
    together_s = ideal("reduce", 4, MIB) + ideal("broadcast", 4, MIB) - 0.005
    assert ideal("central-ps", 4, MIB) == pytest.approx(together_s)
    exchange_s = 2 * 0.005 + MIB / 4 * 8 / (1e9 * GOODPUT)
    assert ideal("sharded-ps", 4, MIB) == pytest.approx(exchange_s + ideal("all-gather", 4, MIB))


def test_an_all_to_all_shares_a_nic() -> None:
    """Three shards at once through one NIC take three times as long as on separate links."""
    shard_s = MIB / 4 * 8 / (1e9 * GOODPUT)
    gather_s = ideal("all-gather", 4, MIB, sharing="nic")
    exchange_s = ideal("sharded-ps", 4, MIB, sharing="nic") - gather_s
    assert exchange_s == pytest.approx(2 * 0.005 + 3 * shard_s)


@pytest.mark.parametrize("op", OPS)
def test_links_that_differ_have_no_closed_form(op: str) -> None:
    """Three nodes in two labs."""
    network = first_nodes(load_scenario("example-two-labs"), 3)
    plan = CollectivePlan(
        op=op,
        num_nodes=3,
        payload_bytes=MIB,
        backend="gloo",
        network=network,
        iterations=1,
        warmup_iterations=0,
    )
    assert closed_form_s(plan) is None


def test_regions_that_share_a_trunk_have_no_closed_form() -> None:
    """The rate of a pair would be too high. In one region there is no trunk."""
    network = uniform_network(4, one_way_delay_s=0.005, bandwidth_bps=1e9, sharing="trunk")
    two = dataclasses.replace(
        network, regions=("a", "b"), links=(network.links[0] * 2,) * 2, node_regions=(0, 0, 1, 1)
    )
    plan = CollectivePlan(
        op="all-reduce",
        num_nodes=4,
        payload_bytes=MIB,
        backend="gloo",
        network=two,
        iterations=1,
        warmup_iterations=0,
    )
    assert closed_form_s(plan) is None
    assert ideal("all-reduce", 4, MIB, sharing="trunk") == ideal("all-reduce", 4, MIB)
