"""Collectives take what their algorithm takes on paper, and more where the network is worse."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from netbench.plan.benchmark import CollectivePlan, uniform_network
from netbench.scenario.model import Link, Network
from netbench.simulator import collectives
from netbench.simulator.collectives import COLLECTIVES, simulate_collective, simulate_parts
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, TaskKind, TaskTimeline
from netbench.transport.profile import TransportProfile, load_transport

FREE = load_transport("nccl").model_copy(
    update={
        "channels": 1,
        "host_bps": math.inf,
        "first_window_segments": 10**9,
        "max_window_bytes": math.inf,
        "sockets": 1,
        "chain_overhead": 0.0,
    }
)
MIB = 1 << 20
GOODPUT = (1500 - 52) / (1500 + 14)  # payload over what a 1500-byte MTU puts on the wire

SHAPES = [  # nodes, one-way delay, rate, bytes
    (2, 5e-3, 1e9, 64 * MIB),
    (4, 1e-3, 1e9, 256 * MIB),
    (8, 1e-3, 5e9, 300_000_000),
    (8, 20e-3, 1e9, 64 * MIB),
    (8, 50e-3, 300e6, 8 * MIB),
    (16, 10e-3, 2e9, 128 * MIB),
    (13, 0.5e-3, 10e9, 512 * MIB),
]
every_shape = pytest.mark.parametrize(("n", "d", "rate", "size"), SHAPES)


def run(
    network: Network,
    op: str,
    size: float | NDArray[np.float64],
    *,
    members: NDArray[np.int64] | None = None,
    node_of_rank: NDArray[np.int64] | None = None,
    backend: str = "nccl",
    transport: TransportProfile = FREE,
    late_s: float | NDArray[np.float64] = 0.0,
) -> tuple[NDArray[np.float64], TaskTimeline]:
    """Return when each member is done, and the timeline. late_s: when each member joins."""
    ranks = np.arange(network.num_nodes) if node_of_rank is None else node_of_rank
    members = np.arange(len(ranks))[None, :] if members is None else members
    graph = Graph(Fabric(network, ranks, transport))
    gate = graph.work(TaskKind.MARK, members)
    start = graph.work(TaskKind.MARK, 0)
    graph.edge(start, gate, late_s)
    done = COLLECTIVES[backend][op](graph, members, size, gate)
    timeline = graph.run()
    assert np.isfinite(timeline.end_s).all()
    return timeline.end_s[done], timeline


def uniform(n: int, d: float, rate: float, sharing: str = "pair") -> Network:
    return uniform_network(n, one_way_delay_s=d, bandwidth_bps=rate, sharing=sharing)


def regions(delays_s: list[list[float]], node_regions: list[int], rate: float = 1e9) -> Network:
    return Network(
        regions=tuple(f"r{i}" for i in range(len(delays_s))),
        links=tuple(
            tuple(Link(one_way_delay_s=delay_s, bandwidth_bps=rate) for delay_s in row)
            for row in delays_s
        ),
        node_regions=tuple(node_regions),
        sharing="pair",
        nic_bps=(math.inf,) * len(node_regions),
    )


def wire_s(size: float, rate: float) -> float:
    return size * 8 / (rate * GOODPUT)


def nccl_ring_s(n: int, d: float, rate: float, size: float, steps: int) -> float:
    """Passes of at most 4 MiB per rank; in a pass a rank sends the halves of its part as the
    halves before come, and the next pass begins when the last half has come."""
    passes = max(1, math.ceil(size / n / (4 * MIB)))
    tau = wire_s(size / n / passes, rate)
    return passes * ((steps - 1) * max(tau, tau / 2 + d) + tau + d)


@every_shape
@pytest.mark.parametrize("op", ["all-reduce", "all-gather", "reduce-scatter"])
def test_nccl_rings(op: str, n: int, d: float, rate: float, size: int) -> None:
    """Every member passes halves of an n-th on, once round, or twice for an all-reduce."""
    steps = 2 * (n - 1) if op == "all-reduce" else n - 1
    done, _ = run(uniform(n, d, rate), op, size)
    assert done.max() == pytest.approx(nccl_ring_s(n, d, rate, size, steps), rel=0.01)
    assert np.ptp(done) < 1e-9  # nobody is first in a ring of equals


@every_shape
@pytest.mark.parametrize(("op", "last"), [("broadcast", -1), ("reduce", 0)])
def test_a_chain_takes_the_message_once_and_a_slice_per_hop(
    op: str, last: int, n: int, d: float, rate: float, size: int
) -> None:
    done, _ = run(uniform(n, d, rate), op, size)
    ideal_s = (n - 1) * d + wire_s(size, rate) + (n - 2) * wire_s(MIB, rate)
    assert done[0, last] == pytest.approx(ideal_s, rel=0.02)
    assert done.max() == done[0, last]


@pytest.mark.parametrize("n", [4, 8, 13, 16])
@pytest.mark.parametrize(("d", "rate"), [(1e-3, 1e9), (20e-3, 1e9), (5e-3, 10e9)])
def test_a_double_tree_sends_twice_the_bytes_and_waits_for_its_depth(
    n: int, d: float, rate: float
) -> None:
    """An inner member sends half up and twice half down, and half up as a leaf of the other tree:
    2 S through its NIC, in 1 MiB slices that go up and down log2(n) levels."""
    size = 512 * MIB
    done, _ = run(uniform(n, d, rate, "nic"), "tree-all-reduce", size)
    levels = 2 * math.ceil(math.log2(n))
    ideal_s = wire_s(2 * size, rate) + levels * (d + wire_s(MIB, rate))
    assert done.max() == pytest.approx(ideal_s, rel=0.1)


@every_shape
@pytest.mark.parametrize("sharing", ["pair", "nic", "class"])
def test_all_to_all_fills_links_or_nics(
    sharing: str, n: int, d: float, rate: float, size: int
) -> None:
    flows = 1 if sharing == "pair" else n - 1
    part_s = wire_s(size / n, rate / flows)
    done, _ = run(uniform(n, d, rate, sharing), "all-to-all", size)
    assert done.max() == pytest.approx(d + part_s, rel=0.01)
    done, _ = run(uniform(n, d, rate, sharing), "all-to-all", size, backend="gloo")
    assert done.max() == pytest.approx(2 * d + part_s, rel=0.01)


@every_shape
def test_parameter_servers_are_made_of_the_others(n: int, d: float, rate: float, size: int) -> None:
    def last_s(backend: str, op: str) -> float:
        return float(run(uniform(n, d, rate), op, size, backend=backend)[0].max())

    for backend in COLLECTIVES:
        parts = last_s(backend, "reduce") + last_s(backend, "broadcast")
        # The root has the sum last, and all others are ready for its parameters: gloo's root then
        # need not wait to hear so.
        heard_s = d if backend == "gloo" else 0.0
        assert last_s(backend, "central-ps") == pytest.approx(parts - heard_s, rel=0.02)
        parts = last_s(backend, "all-to-all") + last_s(backend, "all-gather")
        assert last_s(backend, "sharded-ps") == pytest.approx(parts, rel=0.02)


@pytest.mark.parametrize(("backend", "messages"), [("nccl", 1), ("gloo", 2)])
def test_a_transfer_waits_for_its_receiver_in_gloo_only(backend: str, messages: int) -> None:
    network = uniform(2, 10e-3, 1e9)
    done, _ = run(network, "p2p", 64 * MIB, backend=backend)
    assert done[0, 1] == pytest.approx(wire_s(64 * MIB, 1e9) + messages * 10e-3)
    late = np.array([[0.0, 0.1]])
    done, _ = run(network, "p2p", 64 * MIB, backend=backend, late_s=late)
    begun_s = 0.11 if backend == "gloo" else 0.0
    assert done[0, 1] == pytest.approx(begun_s + wire_s(64 * MIB, 1e9) + 10e-3)


def gloo_ring_s(d: float, rate: float, messages: int, size: float) -> float:
    """Two messages under way: the link is always busy, or idle while a pair comes and is asked
    for."""
    tau = wire_s(size, rate)
    pairs = math.ceil(messages / 2)
    idle_s = pairs * (2 * d + tau) + (tau if messages % 2 == 0 else 0.0)
    return max(2 * d + messages * tau, idle_s)


def gloo_parts(n: int, size: int) -> int:
    """Messages of a member's part: of at most 1 MiB, and two or more."""
    return max(2, math.ceil(math.ceil(size / MIB) / n))


@every_shape
def test_gloo_rings(n: int, d: float, rate: float, size: int) -> None:
    """Two messages under way; a reduce ends with all parts sent to the root."""
    network, parts = uniform(n, d, rate), gloo_parts(n, size)
    message = size / n / parts
    pass_s = gloo_ring_s(d, rate, parts * (n - 1), message)
    for op in ("all-reduce", "reduce-scatter"):  # torch has no reduce-scatter but an all-reduce
        done, _ = run(network, op, size, backend="gloo")
        assert done.max() == pytest.approx(2 * pass_s, rel=0.02)
    done, _ = run(network, "all-gather", size, backend="gloo")
    assert done.max() == pytest.approx(gloo_ring_s(d, rate, 2 * (n - 1), size / n / 2), rel=0.01)
    done, _ = run(network, "reduce", size, backend="gloo")
    gathered_s = 2 * d + wire_s(size / n, rate)
    ring_s = gloo_ring_s(d, rate, parts * n - 2, message)
    assert done[0, 0] == pytest.approx(ring_s + gathered_s, rel=0.02)


def test_the_receivers_of_a_gloo_ring_copy_every_message_after_the_wire() -> None:
    """A host half as fast as in `host`: two messages are under way, and the sender may post the
    third when the first is copied."""
    n, d, rate, size = 4, 5e-3, 1e9, 64 * MIB
    per_member = gloo_parts(n, size)
    messages, message = per_member * (n - 1), size / n / per_member
    tau, copy_s = wire_s(message, rate), 8 * message / 2e9
    period_s = max(2 * tau, 2 * d + tau + copy_s)
    ring_s = (messages / 2 - 1) * period_s + 2 * d + 2 * tau + copy_s
    host = FREE.model_copy(update={"host_bps": 2e9})
    done, _ = run(uniform(n, d, rate), "all-reduce", size, backend="gloo", transport=host)
    assert done.max() == pytest.approx(2 * ring_s, rel=0.01)


def test_tensors_one_after_another_take_the_sum_of_their_all_reduces() -> None:
    """Two long ones in rings, two short ones in trees."""
    n, network = 4, uniform(4, 5e-3, 1e9)
    sizes = [3e6, 1e6, 4e3, 4e3]
    alone = [
        run(network, "all-reduce" if size > 1e5 else "tree-all-reduce", size)[0].max()
        for size in sizes
    ]
    graph = Graph(Fabric(network, np.arange(n), FREE))
    members = np.arange(n)[None, :]
    gate = graph.work(TaskKind.MARK, members)
    done = collectives.all_reduce_each(graph, members, sizes, gate)
    assert graph.run().end_s[done].max() == pytest.approx(sum(alone), rel=0.01)


@pytest.mark.parametrize("op", ["all-reduce", "central-ps", "sharded-ps"])
def test_a_collective_in_parts_is_a_call_per_member(op: str) -> None:
    """Without delay and overhead, all parts pass every link of the chain to and from a central
    server. A shard's chain leaves out one link of the ring, so that links carry n - 1 of n parts
    there and back, as for all-reduce."""
    n, size = 4, 64 * MIB
    network = uniform(n, 0.0, 1e9)
    plan = CollectivePlan(
        op=op, num_nodes=n, payload_bytes=size, backend="nccl", network=network, iterations=1,
        warmup_iterations=0,
    )  # fmt: skip
    expected_s = 2 * wire_s(size, 1e9) * (1 if op == "central-ps" else (n - 1) / n)
    nccl = load_transport("nccl").model_copy(update={"chain_overhead": 0.0})
    assert simulate_parts(plan, nccl) == pytest.approx(expected_s, rel=0.12)


@pytest.mark.parametrize(("mib", "beside_bytes"), [(16, 0.3 * 16 * MIB), (256, 30e6)])
def test_a_chain_that_is_timed_alone_moves_more_than_its_message(
    mib: int, beside_bytes: float
) -> None:
    """30% more, at most 30 MB; in a graph of other things it moves the message only."""
    nccl = FREE.model_copy(update={"chain_overhead": 0.3, "chain_overhead_bytes": 30_000_000})
    network, size = uniform(3, 0.0, 1e9), mib * MIB
    plan = CollectivePlan(
        op="broadcast", num_nodes=3, payload_bytes=size, backend="nccl", network=network,
        iterations=1, warmup_iterations=0,
    )  # fmt: skip
    alone_s = simulate_collective(plan, nccl) - simulate_collective(plan, FREE)
    assert alone_s == pytest.approx(wire_s(beside_bytes, 1e9), rel=0.1)
    times_s = [run(network, "broadcast", size, transport=each)[0].max() for each in (nccl, FREE)]
    assert times_s[0] == times_s[1]


def test_a_host_carries_what_it_sends_and_receives_together() -> None:
    """Both directions of a ring at 1 Gbit/s need 2 Gbit/s of payload per host; with half of that
    it takes twice as long, and less than a NIC needs changes nothing."""
    network = uniform(4, 0.0, 1e9)
    times_s = [
        run(dataclasses.replace(network, host_bps=(limit,) * 4), "all-reduce", 64 * MIB)[0].max()
        for limit in (1e9 * GOODPUT, 2e9 * GOODPUT)
    ]
    free_s = run(network, "all-reduce", 64 * MIB)[0].max()
    assert times_s == pytest.approx([2 * free_s, free_s], rel=0.02)


@pytest.mark.parametrize(("n", "levels"), [(2, 1), (4, 2), (8, 3), (16, 4)])
def test_gloo_broadcasts_whole_messages_down_a_binomial_tree(n: int, levels: int) -> None:
    """Only the root waits for announcements: the others have announced themselves at the start."""
    done, _ = run(uniform(n, 10e-3, 1e9), "broadcast", 64 * MIB, backend="gloo")
    assert done.max() == pytest.approx(10e-3 + levels * (10e-3 + wire_s(64 * MIB, 1e9)))


def gloo_pass_by_hand(
    size: float,
    messages: int,
    there_s: NDArray[np.float64],
    back_s: NDArray[np.float64],
    tau: float,
) -> float:
    """gloo's loop, member by member: waits for receive and send i - 2, then posts receive and send
    i. Member p sends to p + 1, over there_s[p]; notifications come over back_s[p]."""
    n = len(there_s)
    sent = np.zeros((messages, n))
    received = np.zeros((messages, n))
    for i in range(messages):
        posted = np.zeros(n) if i < 2 else np.maximum(sent[i - 2], received[i - 2])
        for p in range(n):
            asked = posted[(p + 1) % n] + back_s[p]
            free = sent[i - 1, p] if i else 0.0
            sent[i, p] = max(posted[p], asked, free) + tau
        received[i] = np.roll(sent[i] + there_s, 1)
    return float(received[-1].max())


def nccl_by_hand(passes: int, steps: int, delay_s: NDArray[np.float64], half_s: float) -> float:
    """Every pass, step and half by itself. Member p sends to p + 1, over delay_s[p]."""
    n = len(delay_s)
    free, begun = np.zeros(n), np.zeros(n)
    for _ in range(passes):
        came = np.zeros((2, n))
        for step in range(steps):
            ready = np.stack([begun, begun]) if step == 0 else came
            came = np.zeros((2, n))
            for half in range(2):
                free = np.maximum(free, ready[half]) + half_s
                came[half] = np.roll(free + delay_s, 1)
        begun = came[1]
    return float(begun.max())


FAR = [[1e-3, 30e-3, 60e-3], [35e-3, 1e-3, 20e-3], [55e-3, 25e-3, 1e-3]]


@pytest.mark.parametrize("n", [6, 12, 24])
def test_rings_over_unequal_links_agree_with_the_loops_of_the_libraries(n: int) -> None:
    network = regions(FAR, [i * 3 // n for i in range(n)])
    ranks = np.arange(n)
    one_way_s = network.one_way_delay_s()
    delay_s = one_way_s[ranks, (ranks + 1) % n]
    size = n * 24 * MIB  # six passes of NCCL
    done, _ = run(network, "all-gather", size)
    by_hand = nccl_by_hand(6, n - 1, delay_s, wire_s(2 * MIB, 1e9))
    assert done.max() == pytest.approx(by_hand, rel=0.05)
    done, _ = run(network, "all-gather", size, backend="gloo")
    back_s = one_way_s[(ranks + 1) % n, ranks]
    half = size / n / 2
    by_hand = gloo_pass_by_hand(size, 2 * (n - 1), delay_s, back_s, wire_s(half, 1e9))
    assert done.max() == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("n", [16, 32, 64])
@pytest.mark.parametrize("d", [0.0, 1e-3, 17e-3, 100e-3])
@pytest.mark.parametrize("op", ["all-reduce", "all-gather"])
def test_a_long_ring_in_merged_steps_takes_as_long(
    op: str, d: float, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, size = uniform(n, d, 1e9), n * 4 * MIB
    exact, steps = run(network, op, size)
    monkeypatch.setattr(collectives, "MAX_RING", 1)
    merged, fewer = run(network, op, size)
    if n > 24:
        assert len(fewer.kind) < len(steps.kind)
    assert merged.max() == pytest.approx(exact.max(), rel=0.03)


def test_a_long_ring_across_regions_in_merged_steps_takes_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = regions(FAR, [i * 3 // 48 for i in range(48)])
    exact, _ = run(network, "all-reduce", 48 * MIB)
    monkeypatch.setattr(collectives, "MAX_RING", 1)
    merged, _ = run(network, "all-reduce", 48 * MIB)
    assert merged.max() == pytest.approx(exact.max(), rel=0.03)


def test_the_order_of_a_ring_matters() -> None:
    """Eight nodes in two regions: a good order crosses twice, a bad one at every hop."""
    network = regions([[1e-3, 40e-3], [40e-3, 1e-3]], [0] * 4 + [1] * 4)
    good, bad = np.arange(8)[None, :], np.array([[0, 4, 1, 5, 2, 6, 3, 7]])
    for op in ("all-reduce", "all-gather", "broadcast", "reduce"):
        short, _ = run(network, op, 8 * MIB, members=good)
        long, _ = run(network, op, 8 * MIB, members=bad)
        assert long.max() > 1.3 * short.max()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("op", ["all-reduce", "broadcast", "all-to-all"])
def test_two_groups_on_the_same_nics_take_twice_as_long(backend: str, op: str) -> None:
    network = uniform(4, 0.0, 1e9, "nic")
    nodes = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    one = np.arange(4)[None, :]
    two = np.arange(8).reshape(2, 4)
    alone, _ = run(network, op, 64 * MIB, members=one, node_of_rank=nodes, backend=backend)
    both, _ = run(network, op, 64 * MIB, members=two, node_of_rank=nodes, backend=backend)
    assert both.max() == pytest.approx(2 * alone.max(), rel=0.01)


OPS = [(backend, op) for backend, ops in COLLECTIVES.items() for op in ops if op != "p2p"]
every_op = pytest.mark.parametrize(("backend", "op"), OPS)


@every_op
def test_groups_apart_do_not_disturb_each_other(backend: str, op: str) -> None:
    network = uniform(8, 5e-3, 1e9)
    sizes = np.array([80.0, 80.0]) * MIB
    both, _ = run(network, op, sizes, members=np.arange(8).reshape(2, 4), backend=backend)
    alone, _ = run(network, op, 80 * MIB, members=np.arange(4)[None, :], backend=backend)
    assert both == pytest.approx(np.repeat(alone, 2, axis=0))


@every_op
def test_groups_have_sizes_of_their_own(backend: str, op: str) -> None:
    network = uniform(8, 0.0, 1e9)
    sizes = np.array([300.0, 100.0]) * MIB
    done, _ = run(network, op, sizes, members=np.arange(8).reshape(2, 4), backend=backend)
    assert done[0].max() == pytest.approx(3 * done[1].max(), rel=0.03)


@every_op
def test_all_bytes_are_moved(backend: str, op: str) -> None:
    """Payload on the network, in units of S, for 8 members."""
    n, size = 8, 200 * MIB
    parts = gloo_parts(n, size)
    reduced = (parts * n - 2) / parts + (n - 1) / n  # gloo: a ring of its own, and a gather
    units = {
        "all-reduce": 2 * (n - 1),
        "tree-all-reduce": 2 * (n - 1),
        "all-gather": n - 1,
        "reduce-scatter": 2 * (n - 1) if backend == "gloo" else n - 1,
        "all-to-all": n - 1,
        "broadcast": n - 1,
        "reduce": reduced if backend == "gloo" else n - 1,
        "central-ps": (reduced if backend == "gloo" else n - 1) + n - 1,
        "sharded-ps": 2 * (n - 1),
        "butterfly": 2 * (n - 1),
    }
    _, timeline = run(uniform(n, 1e-3, 1e9), op, size, backend=backend)
    moved = timeline.amount[timeline.path >= 0].sum()
    assert moved == pytest.approx(units[op] * size)


@every_op
def test_a_collective_starts_when_its_members_do(backend: str, op: str) -> None:
    network = uniform(4, 5e-3, 1e9)
    done, _ = run(network, op, 32 * MIB, backend=backend)
    later, _ = run(network, op, 32 * MIB, backend=backend, late_s=1.5)
    assert later == pytest.approx(done + 1.5)
    late = np.array([[0.0, 0.0, 1.5, 0.0]])
    one, _ = run(network, op, 32 * MIB, backend=backend, late_s=late)
    assert one[0, 2] > 1.5
    assert one.max() <= later.max() * 1.01  # the two trees may get into each other's way
    if op not in ("broadcast", "reduce"):  # where somebody needs nothing of the late one
        assert one.min() > 1.5


@every_op
def test_runs_repeat_bit_by_bit(backend: str, op: str) -> None:
    network = regions(FAR, [0, 0, 1, 1, 1, 2, 2])
    first, second = (
        run(network, op, 50 * MIB, backend=backend, transport=load_transport("nccl"))[1]
        for _ in range(2)
    )
    assert first.start_s.tobytes() == second.start_s.tobytes()
    assert first.end_s.tobytes() == second.end_s.tobytes()


@every_op
def test_one_member_has_nothing_to_do(backend: str, op: str) -> None:
    done, _ = run(uniform(2, 5e-3, 1e9), op, MIB, members=np.array([[0], [1]]), backend=backend)
    assert (done == 0).all()


@pytest.mark.parametrize("op", ["all-reduce", "broadcast"])
def test_a_host_that_is_slower_than_its_links_sets_the_pace(op: str) -> None:
    slow = FREE.model_copy(update={"host_bps": 1e9 * GOODPUT})
    capped, _ = run(uniform(8, 5e-3, 10e9), op, 64 * MIB, transport=slow)
    linked, _ = run(uniform(8, 5e-3, 1e9), op, 64 * MIB)
    assert capped == pytest.approx(linked)


def slow_start_s(size: float, window: float, rtt: float, bytes_per_s: float) -> float:
    """Seconds until the last byte leaves: doubled windows, one per round trip, until they fill
    it."""
    spent = 0.0
    while window < rtt * bytes_per_s and size > window:
        size, window, spent = size - window, 2 * window, spent + rtt
    return spent + size / bytes_per_s


@pytest.mark.parametrize("sockets", [1, 16])
@pytest.mark.parametrize(("d", "rate"), [(1e-3, 1e9), (10e-3, 1e9), (50e-3, 5e9)])
def test_new_connections_start_slowly(sockets: int, d: float, rate: float) -> None:
    transport = FREE.model_copy(update={"first_window_segments": 10, "sockets": sockets})
    first, bytes_per_s = 10 * 1448 * sockets, rate * GOODPUT / 8
    done, _ = run(uniform(2, d, rate), "p2p", 64 * MIB, transport=transport)
    expected = slow_start_s(64 * MIB, first, 2 * d, bytes_per_s) + d
    assert done[0, 1] == pytest.approx(expected, rel=0.01)
    chain, _ = run(uniform(4, d, rate), "broadcast", 64 * MIB, transport=transport)
    open_s = run(uniform(4, d, rate), "broadcast", 64 * MIB)[0].max()
    lost_s = expected - d - 64 * MIB / bytes_per_s
    assert open_s + 0.9 * lost_s < chain.max() < open_s + 3.1 * lost_s  # of one hop to all three


def test_without_a_round_trip_idleness_costs_nothing() -> None:
    """Two steps of half the bytes, on connections that time out at once."""
    impatient = FREE.model_copy(update={"retransmission_s": 0.0})
    done, _ = run(uniform(2, 0.0, 1e9), "all-reduce", 1e6, transport=impatient)
    assert done == pytest.approx(np.full((1, 2), 8 * 1e6 / (1e9 * GOODPUT)), rel=1e-6)


def test_a_window_per_round_trip_is_all_that_a_socket_carries() -> None:
    transport = FREE.model_copy(update={"max_window_bytes": 3e6, "sockets": 2})
    done, _ = run(uniform(2, 50e-3, 10e9), "p2p", 600e6, transport=transport)
    assert done[0, 1] == pytest.approx(600e6 / (2 * 3e6) * 0.1 + 50e-3)
