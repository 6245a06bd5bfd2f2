"""The micro-steps of zero3 as tasks, seen from one rank: all do the same.

What computes is one lane of tasks, and so is each communicator: the ring of the ranks that share a
copy of the model, and the ring across, of those that hold the same shard of each copy. A collective
takes as long as it would alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np

from netbench.plan.model import Plan
from netbench.plan.zero3 import stays_gathered, unit_parameters
from netbench.simulator import collectives
from netbench.simulator.collectives import Collective
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, Ids, Kind, Timeline
from netbench.workload.costs import DTYPE_BYTES, layer_matrices, layer_parameters, live_layers

REDUCE_BUCKET_PARAMETERS = 500_000_000
"""DeepSpeed's documented default of `reduce_bucket_size`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where in an iteration a micro-step is: kept parameters are gathered in the first, kept
    gradients scattered in the last, and all gradients go across in the last."""

    is_first: bool = False
    is_last: bool = False


def places(plan: Plan) -> list[tuple[str, Place, int]]:
    """The micro-steps of an iteration that differ, in order: (name, place, how often)."""
    steps = plan.num_micro_batches
    if not plan.shard_ranks and plan.accumulation != "keep":
        return [("micro-step", Place(), steps)]
    if steps == 1:
        return [("micro-step", Place(is_first=True, is_last=True), 1)]
    first, last = Place(is_first=True), Place(is_last=True)
    named = [("first micro-step", first, 1), ("micro-step", Place(), steps - 2)]
    return [part for part in (*named, ("last micro-step", last, 1)) if part[2]]


def copies(plan: Plan) -> Ids:
    """(num_copies, shard_ranks): the ranks that share each copy of the model."""
    num_ranks = plan.layout.num_ranks
    return np.arange(num_ranks).reshape(-1, plan.shard_ranks or num_ranks)


class AloneS(Protocol):
    """Seconds of a collective in all `groups` at once, and nothing else going on."""

    def __call__(
        self, fabric: Fabric, groups: Ids, size_bytes: float, collective: Collective, /
    ) -> float: ...


def time_steps(plan: Plan, fabric: Fabric, alone_s: AloneS) -> dict[Place, Timeline]:
    """Every micro-step that differs, timed."""
    element, groups = DTYPE_BYTES[plan.workload.dtype], copies(plan)

    @cache
    def inside_s(collective: Collective, parameters: float) -> float:
        return alone_s(fabric, groups, parameters * element, collective) + plan.collective_s

    @cache
    def across_s(parameters: float) -> float:
        size = parameters / groups.shape[1] * element
        return alone_s(fabric, groups.T, size, collectives.ring_all_reduce) + plan.collective_s

    timelines = {}
    for _, place, _ in places(plan):
        lanes = _Lanes(inside_s=inside_s, across_s=across_s, num_copies=len(groups))
        add = _fully_shard if plan.prefetch_units else _deepspeed
        add(plan, place, lanes)
        timelines[place] = lanes.run(fabric)
    return timelines


class _InsideS(Protocol):
    def __call__(self, collective: Collective, parameters: float, /) -> float: ...


class _AcrossS(Protocol):
    def __call__(self, parameters: float, /) -> float: ...


@dataclass(kw_only=True, slots=True)
class _Lanes:
    """Tasks of one rank under construction. device, inside, across: the last task of each lane."""

    inside_s: _InsideS
    across_s: _AcrossS
    num_copies: int
    device: int = 0
    inside: int = 0
    across: int = 0
    _tasks: list[tuple[Kind, float]] = field(default_factory=lambda: [(Kind.MARK, 0.0)])
    _edges: list[tuple[int, int]] = field(default_factory=list)

    def compute(self, kind: Kind, seconds: float, *before: int) -> int:
        """On the device, once the tasks `before` are done."""
        self.device = self._add(kind, seconds, self.device, *before)
        return self.device

    def wait(self, *before: int) -> int:
        """Let the device wait for them."""
        return self.compute(Kind.MARK, 0.0, *before)

    def gather(self, tensors: Iterable[float], before: int) -> int:
        """One after the other, of so many parameters each."""
        seconds = sum(self.inside_s(collectives.ring_all_gather, size) for size in tensors)
        self.inside = self._add(Kind.COLLECTIVE, seconds, self.inside, before)
        return self.inside

    def scatter(self, parameters: float, place: Place) -> int:
        """What the device has computed; in the last micro-step it goes across then."""
        seconds = self.inside_s(collectives.ring_reduce_scatter, parameters)
        self.inside = self._add(Kind.COLLECTIVE, seconds, self.inside, self.device)
        if place.is_last and self.num_copies > 1:
            seconds = self.across_s(parameters)
            self.across = self._add(Kind.COLLECTIVE, seconds, self.across, self.inside)
        return self.inside

    def run(self, fabric: Fabric) -> Timeline:
        graph = Graph(fabric)
        graph.work([kind for kind, _ in self._tasks], 0, [seconds for _, seconds in self._tasks])
        before, after = zip(*self._edges, strict=True)
        graph.edge(before, after)
        return graph.run()

    def _add(self, kind: Kind, seconds: float, *before: int) -> int:
        self._edges.extend((task, len(self._tasks)) for task in before)
        self._tasks.append((kind, seconds))
        return len(self._tasks) - 1


def _deepspeed(plan: Plan, place: Place, lanes: _Lanes) -> None:
    """ZeRO-3 under DeepSpeed's live limit.

    A micro-step gathers the parameters within the limit once, before it computes: they are kept
    from the forward to the backward pass, and released after it, for no later use is in sight.
    Those of the layers beyond it are gathered matrix by matrix in the forward pass and again in
    the backward pass, the next layer's while this one is computed. Gradients are scattered in
    buckets, beside the compute that follows. One communicator: its collectives come one after the
    other.
    """
    workload, stage = plan.workload, plan.stages[0]
    live = live_layers(workload, plan.live_parameters)
    layer_s = stage.forward_s / workload.layers, stage.backward_s / workload.layers
    keeps, bucket, pending = plan.accumulation == "keep", REDUCE_BUCKET_PARAMETERS, 0.0
    kept = min(stage.parameters, live * layer_parameters(workload) + workload.embedding_parameters)
    gate = 0 if keeps and not place.is_first else lanes.gather([kept], 0)
    lanes.wait(gate)
    order = [(layer, False) for layer in range(workload.layers)]
    order += [(layer, True) for layer in reversed(range(workload.layers))]
    for layer, backward in order:
        gathered = lanes.gather(layer_matrices(workload), gate) if layer >= live else gate
        gate = lanes.device  # the next gather starts with this layer's compute
        kind = Kind.BACKWARD if backward else Kind.FORWARD
        lanes.compute(kind, layer_s[backward], gathered)
        if backward and (place.is_last or not keeps):
            pending += layer_parameters(workload)
            pending += workload.embedding_parameters if layer == 0 else 0
            if pending >= bucket or layer == 0:
                scattered = min(pending, bucket) if layer else pending
                lanes.scatter(scattered, place)
                pending -= scattered


def _fully_shard(plan: Plan, place: Place, lanes: _Lanes) -> None:
    """torch's `fully_shard`, as the trainers run it: the next units are gathered while one
    computes, its gradients scattered while those after it do; one scatter is over before the next
    begins."""
    workload, stage, sizes = plan.workload, plan.stages[0], unit_parameters(plan)
    count, keeps = len(plan.units), plan.accumulation == "keep"
    stays = stays_gathered(sizes, plan.live_parameters)
    held = keeps and not place.is_first
    gathered = {unit: 0 for unit in range(count) if held and stays[unit]}

    def gather(units: Iterable[int]) -> None:
        ready = lanes.device
        for unit in units:
            if 0 <= unit < count and unit not in gathered:
                gathered[unit] = lanes.gather([sizes[unit]], ready)

    scatter = 0
    order = [(unit, 1) for unit in range(count)] + [(unit, -1) for unit in reversed(range(count))]
    for unit, direction in order:
        gather([unit])
        lanes.wait(gathered[unit])
        gather(unit + direction * ahead for ahead in range(1, plan.prefetch_units + 1))
        share = plan.units[unit] / workload.layers
        if direction > 0:
            lanes.compute(Kind.FORWARD, stage.forward_s * share)
            if not stays[unit]:
                del gathered[unit]
            continue
        lanes.compute(Kind.BACKWARD, stage.backward_s * share)
        del gathered[unit]
        if place.is_last or not keeps:
            lanes.wait(scatter)
            scatter = lanes.scatter(sizes[unit], place)
    lanes.wait(lanes.inside, lanes.across)
