"""Collective operations: their table, and closed forms on a uniform network, without losses.

d is the one-way delay. A message of m bytes takes tau = m / goodput on its sender's link; goodput
is rate x (MTU - 52) / (MTU + 14). Windows never limit, and computing is free.

gloo (`gloo/{allreduce,reduce,broadcast,allgather,alltoall}.cc`): a message leaves when its receiver
has announced that it is ready. A message that both ends start at once takes 2 d + tau; a ring has
two in flight. NCCL (ring, chain; its documentation): the buffers of receivers are ready, so a
message takes d + tau; broadcast and reduce forward small slices as they arrive.
docs/collectives.md compares them with measurements.
"""

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from netbench.network.shaping.segments import goodput_ratio
from netbench.plan.benchmark import CollectivePlan
from netbench.plan.collectives import COLLECTIVES
from netbench.plan.experiment import experiment_from_json
from netbench.records import Run
from netbench.report.tables.grid import Grid
from netbench.scenario.model import Link
from netbench.scenario.sharing import destination_groups, joint_bps, num_routers
from netbench.transport.profile import load_transport
from netbench.units import format_bandwidth, format_bytes, format_time

HEAD = (
    "op", "size", "n", "median", "min", "max", "closed form", "algorithm bandwidth",
    "bus bandwidth",
)  # fmt: skip

DIGITS = 4
"""Significant digits: virtual time repeats to 0.1% between boots."""


def collective_grid(run: Run) -> Grid:
    """A row per plan of the run, without warm-ups."""
    rows = []
    for key, data in run.plans.items():
        plan = experiment_from_json(json.dumps(data))
        times_s = [r.iteration_s for r in run.records if r.plan_hash == key and not r.warmup]
        if isinstance(plan, CollectivePlan) and times_s:
            rows.append(_row(plan, times_s))
    return Grid(head=HEAD, rows=tuple(rows), num_labels=2)


def _row(plan: CollectivePlan, times_s: list[float]) -> tuple[str, ...]:
    median_s, on_paper_s = statistics.median(times_s), closed_form_s(plan)
    algorithm_bps = plan.payload_bytes * 8 / median_s
    bus_bps = algorithm_bps * COLLECTIVES[plan.op].bus_factor(plan.num_nodes)
    return (
        plan.op,
        format_bytes(plan.payload_bytes),
        str(len(times_s)),
        format_time(median_s, DIGITS),
        format_time(min(times_s), DIGITS),
        format_time(max(times_s), DIGITS),
        "-" if on_paper_s is None else format_time(on_paper_s, DIGITS),
        format_bandwidth(algorithm_bps, DIGITS),
        format_bandwidth(bus_bps, DIGITS),
    )


def closed_form_s(plan: CollectivePlan) -> float | None:
    """Seconds of one iteration at full size.

    None if links differ, if regions share a trunk, or for a collective without a closed form.
    """
    if num_routers(plan.network):
        return None
    links = {
        plan.network.link(src, dst)
        for src in range(plan.num_nodes)
        for dst in range(plan.num_nodes)
        if src != dst
    }
    if len(links) > 1 or len(set(plan.network.nic_bps)) > 1:
        return None
    form = {"gloo": _GLOO, "nccl": _NCCL}[plan.backend].get(plan.op)
    return form and form(_Uniform(plan, links.pop()))


@dataclass(frozen=True, slots=True)
class _Uniform:
    """A plan on equal links."""

    plan: CollectivePlan
    link: Link

    @property
    def n(self) -> int:
        return self.plan.num_nodes

    @property
    def d(self) -> float:
        return self.link.one_way_delay_s

    @property
    def size(self) -> int:
        return self.plan.payload_bytes

    def tau(self, size_bytes: float, num_flows: int = 1) -> float:
        """Seconds of a message while its sender sends to `num_flows` different nodes."""
        network, flows = self.plan.network, [(0, node) for node in range(1, num_flows + 1)]
        rate_bps = joint_bps(network, flows) / num_flows
        return size_bytes * 8 / (rate_bps * goodput_ratio(network.mtu_bytes))

    def ring(self, num_messages: int, message_bytes: float) -> float:
        """gloo: every rank sends and receives `num_messages`, two at a time.

        A pair of messages takes two taus, or a round trip and a tau: a receiver announces that it
        is ready when the message before last has arrived. The announcement shares a queue with data
        in a ring of two, and if all destinations share one. Then it waits for the second message
        to leave.
        """
        d, tau = self.d, self.tau(message_bytes)
        shared_queue = len(destination_groups(self.plan.network, 0)) == 1
        pair_s = max(2 * tau + (d if shared_queue else 0.0), 2 * d + tau)
        pairs_before, in_last_pair = (num_messages - 1) // 2, 2 - num_messages % 2
        return pairs_before * pair_s + 2 * d + in_last_pair * tau


def _gloo_segments(size_bytes: int, n: int) -> int:
    """Number of messages of the payload: a multiple of n, at least two per rank."""
    wanted = max(math.ceil(size_bytes / load_transport("gloo").segment_bytes), 2 * n)
    return math.ceil(wanted / n) * n


def _gloo_all_reduce(on: _Uniform) -> float:
    """Ring reduce-scatter, then ring all-gather."""
    num_segments = _gloo_segments(on.size, on.n)
    return 2 * on.ring(num_segments - num_segments // on.n, on.size / num_segments)


def _gloo_reduce(on: _Uniform) -> float:
    """Ring reduce-scatter, then every rank sends its chunk to the root.

    The ring sends all segments but two, even if chunks have more than two and fewer are needed
    (seen in `gloo/reduce.cc`, and measured).
    """
    num_segments = _gloo_segments(on.size, on.n)
    ring_s = on.ring(num_segments - 2, on.size / num_segments)
    return ring_s + 2 * on.d + on.tau(on.size / on.n)


def _gloo_broadcast(on: _Uniform) -> float:
    """A binomial tree of whole messages; a rank sends to all its children at once.

    The parent of rank r is r without its highest bit. Only the root waits for a receiver.
    """

    def children(rank: int) -> list[int]:
        powers = (1 << k for k in range(rank.bit_length(), (on.n - 1).bit_length()))
        return [rank + power for power in powers if rank + power < on.n]

    def last_s(rank: int) -> float:
        below = children(rank)
        if not below:
            return 0.0
        return on.d + on.tau(on.size, len(below)) + max(map(last_s, below))

    return on.d + last_s(0)


def _gloo_all_gather(on: _Uniform) -> float:
    """A ring; the part of every rank is sent in two halves."""
    return on.ring(2 * (on.n - 1), on.size / on.n / 2)


_GLOO: dict[str, Callable[[_Uniform], float]] = {
    "p2p": lambda on: 2 * on.d + on.tau(on.size),
    "all-reduce": _gloo_all_reduce,
    "broadcast": _gloo_broadcast,
    "reduce": _gloo_reduce,
    "all-gather": _gloo_all_gather,
    "reduce-scatter": _gloo_all_reduce,
    # The others are ready for the broadcast before the root has the sum.
    "central-ps": lambda on: _gloo_reduce(on) + _gloo_broadcast(on) - on.d,
    "sharded-ps": lambda on: 2 * on.d + on.tau(on.size / on.n, on.n - 1) + _gloo_all_gather(on),
}


def _nccl_ring(on: _Uniform) -> float:
    """n - 1 steps of one n-th."""
    return (on.n - 1) * (on.d + on.tau(on.size / on.n))


def _nccl_chain(on: _Uniform) -> float:
    """A chain through all ranks, in small slices."""
    return (on.n - 1) * on.d + on.tau(on.size)


_NCCL: dict[str, Callable[[_Uniform], float]] = {
    "p2p": lambda on: on.d + on.tau(on.size),
    "all-reduce": lambda on: 2 * _nccl_ring(on),
    "broadcast": _nccl_chain,
    "reduce": _nccl_chain,
    "all-gather": _nccl_ring,
    "reduce-scatter": _nccl_ring,
    "central-ps": lambda on: 2 * _nccl_chain(on),
    "sharded-ps": lambda on: on.d + on.tau(on.size / on.n, on.n - 1) + _nccl_ring(on),
}
