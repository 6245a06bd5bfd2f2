"""What an op takes on a uniform network, on paper: the algorithm's messages, and nothing lost.

d is the one-way delay. A message of m bytes takes tau = m / goodput on its sender's link; goodput
is rate x (MTU - 52) / (MTU + 14). Windows are wide open, computing is free.

gloo (`gloo/{allreduce,reduce,broadcast,allgather,alltoall}.cc`): a message leaves when its
receiver has said that it is ready, so one that both ends start at once takes 2 d + tau; a ring has
two under way. NCCL (ring, chain; its documentation): receivers' buffers are ready, so a
message takes d + tau, and broadcast and reduce pass small slices on as they come.
Measured beside them: docs/collectives.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from netbench.network.verify import goodput_ratio
from netbench.plan.collective import CollectivePlan
from netbench.scenario.model import Link

GLOO_SEGMENT_BYTES = 1 << 20
"""Largest message of gloo's ring all-reduce and reduce, bytes. Source: `kMaxSegmentSize` in
`gloo/allreduce.h`, `gloo/reduce.h`."""


def closed_form_s(plan: CollectivePlan) -> float | None:
    """Seconds of one iteration at full size; None where the links of the nodes differ, or regions
    share a trunk."""
    if plan.network.sharing == "trunk" and len(set(plan.network.node_regions)) > 1:
        return None
    links = {
        plan.network.link(src, dst)
        for src in range(plan.num_nodes)
        for dst in range(plan.num_nodes)
        if src != dst
    }
    if len(links) > 1 or len(set(plan.network.nic_bps)) > 1:
        return None
    forms = {"gloo": _GLOO, "nccl": _NCCL}[plan.backend]
    return forms[plan.op](_Uniform(plan, links.pop()))


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
        """Seconds of a message while its sender sends `num_flows` of them to different nodes."""
        network, rate_bps = self.plan.network, self.link.bandwidth_bps
        if network.sharing == "class":
            rate_bps /= num_flows
        elif network.sharing == "nic":
            rate_bps = min(rate_bps, network.nic_bps[0] / num_flows)
        return size_bytes * 8 / (rate_bps * goodput_ratio(network.mtu_bytes))

    def ring(self, num_messages: int, message_bytes: float) -> float:
        """gloo: every rank sends and receives so many messages, two at a time.

        A pair of messages takes two taus, or else a round trip and a tau: that a receiver is ready
        is said when the message before last has come. Where the word shares a queue with data (it
        goes to the same node in a ring of two, or `class` has one queue for all) it waits for the
        second message to leave.
        """
        d, tau = self.d, self.tau(message_bytes)
        shared_queue = self.n == 2 or self.plan.network.sharing == "class"
        pair_s = max(2 * tau + (d if shared_queue else 0.0), 2 * d + tau)
        pairs_before, in_last_pair = (num_messages - 1) // 2, 2 - num_messages % 2
        return pairs_before * pair_s + 2 * d + in_last_pair * tau


def _gloo_segments(size_bytes: int, n: int) -> int:
    """Messages the payload is cut into: a multiple of n, at least two per rank."""
    wanted = max(math.ceil(size_bytes / GLOO_SEGMENT_BYTES), 2 * n)
    return math.ceil(wanted / n) * n


def _gloo_all_reduce(on: _Uniform) -> float:
    """Ring reduce-scatter, then ring all-gather."""
    num_segments = _gloo_segments(on.size, on.n)
    return 2 * on.ring(num_segments - num_segments // on.n, on.size / num_segments)


def _gloo_reduce(on: _Uniform) -> float:
    """Ring reduce-scatter, then every rank sends its chunk to the root.

    The ring goes on for all segments but two, past the last that is needed, where chunks have more
    than two (seen in `gloo/reduce.cc`, and measured).
    """
    num_segments = _gloo_segments(on.size, on.n)
    ring_s = on.ring(num_segments - 2, on.size / num_segments)
    return ring_s + 2 * on.d + on.tau(on.size / on.n)


def _gloo_broadcast(on: _Uniform) -> float:
    """A binomial tree of whole messages; a rank sends to all its children at once.

    Rank r gets it from r without its highest bit. Only the root waits for a receiver.
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
    """A ring; every rank's part goes round in two halves."""
    return on.ring(2 * (on.n - 1), on.size / on.n / 2)


def _gloo_all_to_all(on: _Uniform) -> float:
    return 2 * on.d + on.tau(on.size / on.n, on.n - 1)


_GLOO: dict[str, Callable[[_Uniform], float]] = {
    "p2p": lambda on: 2 * on.d + on.tau(on.size),
    "all-reduce": _gloo_all_reduce,
    "broadcast": _gloo_broadcast,
    "reduce": _gloo_reduce,
    "all-gather": _gloo_all_gather,
    "reduce-scatter": _gloo_all_reduce,
    # When the root has the sum, the others have been ready for the broadcast for a while.
    "central-ps": lambda on: _gloo_reduce(on) + _gloo_broadcast(on) - on.d,
    "sharded-ps": lambda on: _gloo_all_to_all(on) + _gloo_all_gather(on),
}


def _nccl_ring(on: _Uniform) -> float:
    """n - 1 steps of one n-th."""
    return (on.n - 1) * (on.d + on.tau(on.size / on.n))


def _nccl_chain(on: _Uniform) -> float:
    """Through all ranks in small slices."""
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
