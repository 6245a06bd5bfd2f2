"""Derive floors from a plan: the parts of its simulated time that no placement can avoid.

Every value is what `simulate` finds for a part with all resources to itself: compute without
waiting, and bytes at their path's full rate after the slow start of a connection. Contention, full
buffers, idle connections and waiting only add to it.
"""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from netbench.placement.bounds.floors import Floors, Links
from netbench.placement.problem import Floats, Grid
from netbench.plan.model import Plan
from netbench.plan.tensor import LAYER_ALL_REDUCES, message_bytes
from netbench.simulator import collectives
from netbench.simulator.fabric import Fabric
from netbench.systems import system_of
from netbench.transport.profile import load_transport


def plan_floors(plan: Plan) -> Floors | None:
    """Return the floors of a plan on any placement; None without stages (schedule none)."""
    if not plan.has_pipelines:
        return None
    site, stands_for = _sites(plan)
    nodes, transport = np.asarray(plan.device_nodes), load_transport(plan.backend)
    fabric = Fabric(plan.network, nodes[stands_for], transport, burst_bytes=plan.activation_bytes)
    paths = _Paths(fabric, site[stands_for], nodes[stands_for])
    size = max(1.0, message_bytes(plan))
    gpipe, system = plan.has_turn, system_of(plan)
    gradients = np.array([float(stage.gradient_bytes) for stage in plan.stages])
    forward_s, backward_s = _compute_s(plan, paths)
    weight_s = forward_s if plan.splits_backward else np.zeros_like(forward_s)
    dp = plan.layout.dp
    steps = [2 * (dp - 1), dp - 1]
    if dp > collectives.MAX_RING:
        steps = [min(collectives.MERGED_STEPS, some) for some in steps]
    passes = np.maximum(1.0, np.ceil(gradients / dp / collectives.NCCL.ring_chunk_bytes))
    kinds = plan.type_stages or (plan.stages,)
    return Floors(
        site=site,
        kind=_kinds(plan)[_first(site)],
        width=np.bincount(nodes)[nodes][_first(site)],
        links=paths.links(plan, size, apart=False),
        apart=paths.links(plan, size, apart=True),
        may_idle=len(site) > plan.layout.num_ranks,
        forward_s=forward_s,
        backward_s=backward_s - weight_s,
        weight_s=weight_s,
        num_chunks=plan.num_chunks,
        num_rounds=plan.num_rounds,
        num_micro_batches=plan.num_micro_batches,
        gpipe=gpipe,
        blocking=system.awaits_arrival,
        in_turn=system.awaits_arrival and plan.num_chunks == 1,
        barrier_steps=math.ceil(math.log2(plan.layout.num_ranks)) if gpipe else 0,
        data_parallel=plan.data_parallel,
        gradient_bytes=gradients,
        update_s=np.array([[s.optimizer_s for s in stages] for stages in kinds]).min(axis=0),
        shared_updates=system.updates_on_host,
        slice_bytes=_slice_bytes(gradients),
        ring_passes=passes,
        ring_steps=(steps[0], steps[1]),
    )


def cold_s(fabric: Fabric, size: float) -> Floats:
    """Return the seconds of the first `size` bytes over each idle path, (num_paths,). Each round
    trip sends one window, twice the previous one, until the window fills the round trip."""
    network, rate = fabric.network(), fabric.rate
    left, seconds = np.full(len(rate), float(size)), np.zeros(len(rate))
    window = network.first_window.copy()
    with np.errstate(invalid="ignore"):  # infinite rate without delay is never slow
        full = rate * network.rtt_s
    while (slow := (window < full) & (left > window)).any():
        left = np.where(slow, left - window, left)
        seconds = np.where(slow, seconds + network.rtt_s, seconds)
        window = np.where(slow, 2 * window, window)
    return seconds + left / rate


_LARGE = 1e9
"""Bytes after which every window fills its round trip."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Paths:
    """Paths between the devices that represent sites."""

    fabric: Fabric
    site: Grid
    node: Grid

    def __post_init__(self) -> None:
        for channels in {1, self.fabric.transport.channels}:
            self.fabric.paths(*self._pairs(), channels)

    def links(self, plan: Plan, size: float, *, apart: bool) -> Links:
        """Return the links for messages of `size` bytes. apart: between different nodes only."""
        fabric, channels = self.fabric, self.fabric.transport.channels
        give_s, take_s = self.operations_s(size)

        def least(of_path: Floats, channels: int = 1) -> Floats:
            return self.least(of_path, channels, apart=apart)

        return Links(
            delay_s=least(fabric.delay_s),
            message_s=least(size / fabric.rate),
            first_s=least(cold_s(fabric, size)),
            all_s=least(cold_s(fabric, size * plan.num_micro_batches)),
            give_s=least(give_s),
            take_s=least(take_s),
            byte_s=least(1 / fabric.rate, channels),
            slow_s=least(cold_s(fabric, _LARGE) - _LARGE / fabric.rate, channels),
        )

    def least(self, of_path: Floats, channels: int = 1, *, apart: bool = False) -> Floats:
        """Return the least of the paths' values between any two sites, (S, S); inf without two
        devices. apart: between different nodes only."""
        source, target = self._pairs()
        if apart:
            across = self.node[source] != self.node[target]
            source, target = source[across], target[across]
        paths = self.fabric.paths(source, target, channels)
        num_sites = int(self.site.max()) + 1
        least = np.full((num_sites, num_sites), np.inf)
        np.minimum.at(least, (self.site[source], self.site[target]), of_path[paths])
        return least

    def operations_s(self, size: float) -> tuple[Floats, Floats]:
        """Return how long the send and the receive of a message take on every path: the copy, or
        the bytes that exceed the buffers; see `pipeline._add_messages`."""
        source, target = self._pairs()
        copy_s = self.fabric.copy_s(source, target, size)
        waiting_bytes = np.maximum(0.0, size - self.fabric.buffered_bytes(source, target))
        paths = self.fabric.paths(source, target)
        sent_s = waiting_bytes / self.fabric.rate[paths]
        arrival_s = np.where(waiting_bytes > 0, sent_s + 2 * self.fabric.delay_s[paths], 0.0)
        give_s, take_s = np.zeros((2, len(self.fabric.rate)))
        give_s[paths], take_s[paths] = np.maximum(copy_s, sent_s), np.maximum(copy_s, arrival_s)
        return give_s, take_s

    def _pairs(self) -> tuple[Grid, Grid]:
        source, target = np.nonzero(~np.eye(len(self.site), dtype=np.bool_))
        return source, target


def _kinds(plan: Plan) -> Grid:
    return np.asarray(plan.device_types or [0] * len(plan.device_nodes))


def _first(site: Grid) -> Grid:
    return np.unique(site, return_index=True)[1]


def _sites(plan: Plan) -> tuple[Grid, Grid]:
    """Return the site of every device, and the devices that represent sites: the first, one on the
    same node, and one on another node."""
    node = np.asarray(plan.device_nodes)
    region = np.asarray(plan.network.node_regions)[node]
    rates = np.array([plan.network.nic_bps, plan.network.host_limits_bps])[:, node]
    traits = np.stack([region, _kinds(plan), np.bincount(node)[node], *rates])
    site = np.unique(traits, axis=1, return_inverse=True)[1].ravel()
    chosen = []
    for index, first in enumerate(_first(site)):
        members = np.flatnonzero(site == index)
        beside = members[(node[members] == node[first]) & (members != first)]
        apart = members[node[members] != node[first]]
        chosen += [first, *beside[:1], *apart[:1]]
    return site, np.array(chosen)


def _compute_s(plan: Plan, paths: _Paths) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of a micro-batch, (num_kinds, pp) each, with the bytes of
    tensor parallelism at the best rate of any path."""
    kinds, tp = plan.type_stages or (plan.stages,), plan.layout.tp
    forward_s = np.array([[stage.forward_s for stage in stages] for stages in kinds])
    backward_s = np.array([[stage.backward_s for stage in stages] for stages in kinds])
    byte_s = float(
        paths.least(1 / paths.fabric.rate, paths.fabric.transport.channels).min(initial=math.inf)
    )
    if tp == 1 or not math.isfinite(byte_s):
        return forward_s, backward_s
    layers: NDArray[np.int64] = np.array([stage.num_layers for stage in plan.stages])
    tensor_s = LAYER_ALL_REDUCES * layers * 2 * (tp - 1) / tp * plan.activation_bytes * byte_s
    return forward_s + tensor_s, backward_s + (1 + plan.workload.recomputation) * tensor_s


def _slice_bytes(gradients: Floats) -> Floats:
    """Return the bytes of the first slice of every stage's chain; see `collectives._slices`."""
    num_chunks = math.ceil(gradients.max(initial=1.0) / collectives.NCCL.slice_bytes)
    if num_chunks <= collectives.NCCL.max_slices:
        return gradients / num_chunks if num_chunks > 1 else np.zeros(len(gradients))
    return np.minimum(collectives.NCCL.slice_bytes, gradients / (collectives.NCCL.max_slices - 1))
