"""What of a plan's simulated time no placement can avoid, for `placement.bound`.

Every figure is what `simulate` makes of a part that has all it needs to itself: compute without
waiting, bytes at their path's full rate, after the rounds of a connection that starts slowly.
Sharing, full buffers, idle connections and waiting for each other only add to it.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from netbench.placement.floors import Floors, Links
from netbench.placement.problem import Floats, Grid
from netbench.plan.model import Plan
from netbench.plan.tensor import LAYER_ALL_REDUCES, message_bytes
from netbench.simulator import collectives
from netbench.simulator.fabric import Fabric
from netbench.simulator.profile import load_transport


def plan_floors(plan: Plan) -> Floors | None:
    """The floors of a plan with any placement; None for one without stages (schedule none)."""
    if plan.schedule == "none":
        return None
    site, stands_for = _sites(plan)
    fabric = _fabric(plan, stands_for)
    paths = _Paths(fabric, site[stands_for], np.asarray(plan.device_nodes)[stands_for])
    size = max(1.0, message_bytes(plan))
    gpipe, blocking = plan.schedule == "gpipe", plan.system == "megatron"
    gradients = np.array([float(stage.gradient_bytes) for stage in plan.stages])
    forward_s, backward_s = _compute_s(plan, paths)
    weight_s = forward_s if plan.schedule == "zero-bubble" else np.zeros_like(forward_s)
    dp = plan.layout.dp
    steps = [2 * (dp - 1), dp - 1]
    if dp > collectives.MAX_RING:
        steps = [min(collectives.MERGED_STEPS, some) for some in steps]
    passes = np.maximum(1.0, np.ceil(gradients / dp / collectives.RING_CHUNK_BYTES))
    kinds, nodes = plan.type_stages or (plan.stages,), np.asarray(plan.device_nodes)
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
        blocking=blocking,
        in_turn=blocking and plan.num_chunks == 1,
        barrier_steps=math.ceil(math.log2(plan.layout.num_ranks)) if gpipe else 0,
        data_parallel=plan.data_parallel,
        gradient_bytes=gradients,
        update_s=np.array([[s.optimizer_s for s in stages] for stages in kinds]).min(axis=0),
        shared_updates=plan.system == "dtfm",
        slice_bytes=_slice_bytes(gradients),
        ring_passes=passes,
        ring_steps=(steps[0], steps[1]),
    )


def cold_s(fabric: Fabric, size: float) -> Floats:
    """Seconds that `size` bytes take over each path, alone and as its first: every round trip a
    window, twice that of the one before, until one fills the round trip. (num_paths,)."""
    network, rate = fabric.network(), fabric.rate
    left, seconds = np.full(len(rate), float(size)), np.zeros(len(rate))
    window = network.first_window.copy()
    with np.errstate(invalid="ignore"):  # no limit over no delay: never slow
        full = rate * network.rtt_s
    while (slow := (window < full) & (left > window)).any():
        left = np.where(slow, left - window, left)
        seconds = np.where(slow, seconds + network.rtt_s, seconds)
        window = np.where(slow, 2 * window, window)
    total: Floats = seconds + left / rate
    return total


_LARGE = 1e9
"""Bytes after which every window has filled its round trip."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Paths:
    """Paths between the devices that stand for sites."""

    fabric: Fabric
    site: Grid
    node: Grid

    def __post_init__(self) -> None:
        for channels in {1, self.fabric.transport.channels}:
            self.fabric.paths(*self._pairs(), channels)

    def links(self, plan: Plan, size: float, *, apart: bool) -> Links:
        """Of messages of `size` bytes, and of collectives. apart: between different nodes."""
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
        """The least of each path's figures between any two sites, (S, S); inf = no two devices.
        apart: of devices on different nodes."""
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
        """Of a message on every path, what its send and its receive take once they have begun:
        the copy, or what of it does not fit the buffers: see `pipeline._add_messages`."""
        source, target = self._pairs()
        copy_s = self.fabric.copy_s(source, target, size)
        waiting_bytes = np.maximum(0.0, size - self.fabric.buffered_bytes(source, target))
        paths = self.fabric.paths(source, target)
        sent_s = waiting_bytes / self.fabric.rate[paths]
        come_s = np.where(waiting_bytes > 0, sent_s + 2 * self.fabric.delay_s[paths], 0.0)
        give_s, take_s = np.zeros((2, len(self.fabric.rate)))
        give_s[paths], take_s[paths] = np.maximum(copy_s, sent_s), np.maximum(copy_s, come_s)
        return give_s, take_s

    def _pairs(self) -> tuple[Grid, Grid]:
        source, target = np.nonzero(~np.eye(len(self.site), dtype=np.bool_))
        return source, target


def _kinds(plan: Plan) -> Grid:
    return np.asarray(plan.device_types or [0] * len(plan.device_nodes))


def _first(site: Grid) -> Grid:
    first: Grid = np.unique(site, return_index=True)[1]
    return first


def _sites(plan: Plan) -> tuple[Grid, Grid]:
    """Of every device; and devices that stand for them: a first one, one beside it, and one of
    another node."""
    node = np.asarray(plan.device_nodes)
    region = np.asarray(plan.network.node_regions)[node]
    nic_bps = np.asarray(plan.network.nic_bps)[node]
    told = np.stack([region, _kinds(plan), np.bincount(node)[node], nic_bps])
    site = np.unique(told, axis=1, return_inverse=True)[1].ravel()
    chosen = []
    for index, first in enumerate(_first(site)):
        members = np.flatnonzero(site == index)
        beside = members[(node[members] == node[first]) & (members != first)]
        apart = members[node[members] != node[first]]
        chosen += [first, *beside[:1], *apart[:1]]
    return site, np.array(chosen)


def _fabric(plan: Plan, devices: Grid) -> Fabric:
    nodes = np.asarray(plan.device_nodes)[devices]
    transport = load_transport(plan.backend)
    return Fabric(plan.network, nodes, transport, burst_bytes=plan.activation_bytes)


def _compute_s(plan: Plan, paths: _Paths) -> tuple[Floats, Floats]:
    """Of the forward and the backward pass of a micro-batch, (num_kinds, pp) each, tensor
    parallelism's bytes at the best rate there is."""
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
    """The first slice of every stage's chain, bytes: see `collectives._slices`."""
    num_chunks = math.ceil(gradients.max(initial=1.0) / collectives.CHUNK_BYTES)
    if num_chunks <= collectives.MAX_SLICES:
        return gradients / num_chunks if num_chunks > 1 else np.zeros(len(gradients))
    return np.minimum(collectives.CHUNK_BYTES, gradients / (collectives.MAX_SLICES - 1))
