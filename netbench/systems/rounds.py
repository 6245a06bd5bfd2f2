"""Time of a round of `hivemind-swarm`: accumulate, find a group, average in lock-step.

Source of the mechanisms: results/published/multicloud/README.md. Source of the constants: fitted by
`benchmarks/fit_swarm.py` to the calibration part of the published runs, unless they say otherwise.
The calibration part has no wide-area link: `OVERLAP` and `HANDSHAKES` are assumptions.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netbench.plan.model import AVERAGING, UPDATE, Plan
from netbench.scenario.sharing import Queues

Floats = NDArray[np.float64]

WIRE_BYTES = 2
"""Bytes of a gradient on the wire: fp16."""

TENSORS_PER_LAYER = 12
"""Tensors of a GPT's layer: weights and biases of 4 matrices and 2 normalisations."""

GROUP_S = 0.14
"""Seconds to form a group."""

STEP_WAIT = 0.42
"""Fraction of the longest step that n peers wait for each other, times (n - 1) / n."""

TENSOR_S, TENSOR_PEER_S = 5.6e-3, 1.8e-3
"""Seconds of the CPU per tensor, and per tensor and peer, without traffic. Parts never span
tensors, so small tensors cost a part each."""

PARAMETER_S, EXCHANGE_S = 9.5e-9, 15.4e-9
"""Seconds of the CPU per parameter: once, and times (n - 1) / n to send and receive it. Beside the
transfer (`OVERLAP`)."""

OVERLAP = 3.0
"""Exponent of the norm that joins the seconds of CPU and network: 1 = one after the other, large =
the slower hides the other. They alternate part by part, and only a TCP window of parts, about
five, is under way. Two stations of equal speed with five jobs between them have 5/6 of the
throughput of one (a closed network of queues), which is an exponent of 3.8; senders also wait for
each other. Assumed, not fitted."""

HANDSHAKES = 3
"""Round trips to join a group and to begin. Source: Hivemind's matchmaking (a request to the
leader, its answer, the call that begins). Assumed, not fitted."""

MAX_WINDOW_BPS = 100e9
"""Rate that stands for an unlimited one, bit/s."""

FIRST_WINDOW_BYTES = 14480
"""Bytes of a TCP connection's first round trip after a pause: 10 segments. Source: RFC 6928."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """A round of all peers, a "hivemind epoch".

    samples: accumulated, the target and on average half a step per peer more. compute_s: until the
    peers have them. wait_s: until matchmaking ends. group_s: finding the group, and the CPU's work
    without traffic. transfer_s: the rest of the averaging. update_s: of the optimizer.
    pair_bytes: (n, n), payload from peer to peer, [src, dst]. beside: as in `Plan`.
    """

    samples: float
    compute_s: float
    wait_s: float
    group_s: float
    transfer_s: float
    update_s: float
    pair_bytes: Floats
    beside: str = ""

    @property
    def average_s(self) -> float:
        """Seconds of averaging."""
        return self.group_s + self.transfer_s

    @property
    def communication_s(self) -> float:
        """Seconds that a peer does not compute: matchmaking, averaging and update."""
        return self.wait_s + self.average_s + self.update_s

    @property
    def round_s(self) -> float:
        """Seconds from one round to the next."""
        before_s = self.compute_s + self.wait_s
        if self.beside == AVERAGING:
            return max(before_s, self.average_s + self.update_s)
        if self.beside == UPDATE:
            return max(before_s, self.update_s) + self.average_s
        return before_s + self.average_s + self.update_s

    @property
    def throughput(self) -> float:
        """Samples per second of all peers ("hivemind global", times the number of peers)."""
        return self.samples / self.round_s

    @property
    def local_throughput(self) -> float:
        """Samples per second of all peers while they compute ("hivemind local", likewise)."""
        return self.samples / self.compute_s

    @property
    def granularity(self) -> float:
        """Computation over communication."""
        return self.compute_s / self.communication_s if self.communication_s else math.inf

    def penalty(self, alone: float) -> float:
        """Return 1 - throughput over `alone`, the samples per second of all peers if each trained
        by itself."""
        return 1 - self.throughput / alone


def peer_rates(plan: Plan) -> Floats:
    """Return the samples per second that each peer accumulates, (n,)."""
    seconds = [
        stage.forward_s + stage.backward_s
        for (stage,) in (plan.stages_on(device) for device in plan.placement)
    ]
    return plan.workload.micro_batch / np.array(seconds)


@functools.lru_cache(maxsize=256)
def time_round(plan: Plan) -> Round:
    """Return the round of a plan whose ranks are peers. It is kept, so do not change its arrays."""
    n, kinds = plan.layout.num_ranks, [_type_of(plan, device) for device in plan.placement]
    rates = peer_rates(plan)
    steps = plan.workload.micro_batch * np.array([plan.type_steps[kind] for kind in kinds])
    samples = plan.workload.batch + float(steps.sum()) / 2
    compute_s = samples / float(rates.sum())
    (stage,) = plan.stages
    update_s = max(plan.stages_on(device)[0].optimizer_s for device in plan.placement)
    part_bytes = WIRE_BYTES * stage.parameters / n
    pair_bytes = 2 * part_bytes * (1 - np.eye(n))
    if n == 1:
        return Round(
            samples=samples, compute_s=compute_s, wait_s=0.0, group_s=0.0, transfer_s=0.0,
            update_s=update_s, pair_bytes=pair_bytes, beside=plan.beside,
        )  # fmt: skip
    others = (n - 1) / n
    host = max(plan.host_factors[kind] for kind in kinds)
    group_s = GROUP_S + STEP_WAIT * float((steps / rates).max()) * others
    group_s += host * tensors_s(plan)
    cpu_s = host * stage.parameters * (PARAMETER_S + EXCHANGE_S * others)
    return Round(
        samples=samples,
        compute_s=compute_s,
        wait_s=max(0.0, plan.matchmaking_s - compute_s),
        group_s=group_s,
        transfer_s=start_s(plan) + joined_s(cpu_s, lock_step_s(plan, part_bytes)),
        update_s=update_s,
        pair_bytes=pair_bytes,
        beside=plan.beside,
    )


def tensors_s(plan: Plan) -> float:
    """Return the seconds of the CPU of a Google n1-standard-8 without traffic."""
    tensors = plan.workload.tensors or TENSORS_PER_LAYER * plan.workload.layers
    return tensors * (TENSOR_S + TENSOR_PEER_S * plan.layout.num_ranks)


def joined_s(cpu_s: float, network_s: float) -> float:
    """Return the seconds of an exchange that keeps CPU and network busy for so long each."""
    longer, shorter = max(cpu_s, network_s), min(cpu_s, network_s)
    return longer * (1 + (shorter / longer) ** OVERLAP) ** (1 / OVERLAP) if longer else 0.0


def start_s(plan: Plan) -> float:
    """Return the seconds until the slowest connection has found its group and its window.

    A connection pauses between rounds, so its window doubles every round trip from the first until
    it fills the link.
    """
    nodes = sorted({plan.device_nodes[device] for device in plan.placement})
    slowest_s = 0.0
    for a in nodes:
        for b in nodes:
            if a == b:
                continue
            there, back = plan.network.link(a, b), plan.network.link(b, a)
            rtt_s = there.one_way_delay_s + back.one_way_delay_s
            window_bytes = min(there.bandwidth_bps, MAX_WINDOW_BPS) * rtt_s / 8
            doublings = max(0.0, math.log2(max(1.0, window_bytes / FIRST_WINDOW_BYTES)))
            slowest_s = max(slowest_s, rtt_s * (HANDSHAKES + doublings))
    return slowest_s


def lock_step_s(plan: Plan, part_bytes: float) -> float:
    """Return the seconds in which every peer has reduced its part and sent back the average.

    All senders into a reducer move at one pace, and so do the averages that it returns. A
    connection carries the part of its receiver and the averages of its sender. Reducers share
    queues max-min fairly, with one TCP stream per pair and direction.
    """
    uses, limits = _queues(plan)
    left = np.full(plan.layout.num_ranks, part_bytes)
    now_s = 0.0
    while (left > 0).any():
        pace = _fair(uses, limits, left > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            until_s = np.where(left > 0, left / pace, np.inf)
        step_s = float(until_s.min())
        left = np.where(until_s <= step_s * (1 + 1e-9), 0.0, left - step_s * pace)
        now_s += step_s
    return now_s


def _fair(uses: Floats, limits: Floats, active: NDArray[np.bool_]) -> Floats:
    """Return the max-min fair pace of every active reducer, bytes/s.

    uses: (num_queues, n), streams through a queue that move at a reducer's pace. limits: bytes/s.
    """
    pace, free = np.zeros(len(active)), active.copy()
    rest = limits.copy()
    while free.any():
        streams = uses[:, free].sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.where(streams > 0, rest / streams, np.inf)
        lowest = float(level.min())
        full = level <= lowest * (1 + 1e-9)
        fixed = free & (uses[full] > 0).any(axis=0) if np.isfinite(lowest) else free.copy()
        pace[fixed] = lowest
        rest = np.maximum(0.0, rest - uses[:, fixed].sum(axis=1) * lowest)
        free &= ~fixed
    return pace


def _queues(plan: Plan) -> tuple[Floats, Floats]:
    """Return the streams of every reducer through each queue, (num_queues, n), and the payload that
    the queues carry, (num_queues,), bytes/s."""
    # `netbench table` and ranks import the systems: they need no pydantic.
    from netbench.transport.profile import load_transport

    n = plan.layout.num_ranks
    nodes = np.array([plan.device_nodes[device] for device in plan.placement])
    src, dst = np.nonzero(~np.eye(n, dtype=np.bool_))
    tcp = load_transport("gloo")
    goodput = (plan.network.mtu_bytes - tcp.header_bytes) / (
        plan.network.mtu_bytes + tcp.ethernet_bytes
    )
    rows: dict[tuple[object, ...], int] = {}
    streams: list[Floats] = []
    limits: list[float] = []
    for crossing in Queues(plan.network).between(nodes[src], nodes[dst]):
        passing = np.flatnonzero(crossing.passes & np.isfinite(crossing.bps))
        for pair, key in zip(passing.tolist(), crossing.ids(passing), strict=True):
            if key not in rows:
                rows[key] = len(rows)
                streams.append(np.zeros(n))
                limits.append(float(crossing.bps[pair]) * goodput / 8)
            streams[rows[key]][dst[pair]] += 1  # a part, to its reducer
            streams[rows[key]][src[pair]] += 1  # the average of the sender's own part
    return np.array(streams).reshape(-1, n), np.array(limits)


def _type_of(plan: Plan, device: int) -> int:
    return plan.device_types[device] if plan.device_types else 0
