"""The simulated iteration time of a plan with other placements, and of an iteration's parts.

A search asks for thousands of placements that differ little. So an iteration is taken apart: its
pipelines and its data-parallel groups are simulated alone, many in one graph, each on nodes of its
own, and what is known of one holds for all that the simulation cannot tell from it: devices of one
region, kind and NIC that are alone on their nodes have one name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from netbench.errors import PlanError
from netbench.placement.problem import Floats, Grid
from netbench.plan.model import Layout, Plan
from netbench.simulator.graph import Graph, Ids, Kind, Timeline
from netbench.simulator.pipeline import Wiring, add_pipelines
from netbench.simulator.profile import load_transport
from netbench.simulator.simulate import (
    compute_seconds,
    fabric_of,
    pipeline_lanes,
    rank_lanes,
    shape,
    simulate,
    steady_labels,
    synchronise,
    wired,
)
from netbench.workload.costs import Stage

MAX_RANKS = 512
"""Of one graph of parts: a fabric keeps a table of all pairs of its ranks."""

_TICKS = float(1 << 30)
"""Of a second, as in `kernel`."""

_EARLY_S = 64.0
"""By how much a pipeline's last stage starts its backward passes after the others, alone: more than
a barrier lets any rank go before another."""

FINISH, FIRST, LAST = range(3)
"""Rows of a pipeline's record: when each stage has ended a phase, and the ends of the two
micro-batches between which it repeats itself."""


class PlanObjective:
    """`placement.problem.Objective` of a plan: its simulated time with other placements."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shape = shape(plan)
        self._transport = load_transport(plan.backend)
        network, node = plan.network, np.asarray(plan.device_nodes)
        self._node = node
        self._region = np.asarray(network.node_regions)[node]
        self._nic_bps = np.asarray(network.nic_bps)[node]
        self._kind = np.asarray(plan.device_types or [0] * len(node))
        self._lone = bool((np.bincount(node) <= 1).all())
        told = [self._region, self._kind]
        if network.sharing == "nic":
            told.append(self._nic_bps)
        _, name = np.unique(np.stack(told), axis=1, return_inverse=True)
        self._name = name.ravel()
        self._delay_s = network.one_way_delay_s()
        self.independent = (
            self._lone and network.sharing in ("pair", "class") and plan.layout.tp == 1
        )
        self._times: dict[bytes, float] = {}
        self._pipelines: dict[bytes, Floats] = {}
        self._groups: dict[bytes, Floats] = {}

    def times_s(self, grids: Grid) -> Floats:
        """Of whole iterations: grids (n, dp * tp, pp) -> (n,)."""
        return np.array([self._time_s(np.asarray(grid)) for grid in grids])

    def pipelines_s(self, pipelines: Grid) -> Floats:
        """Of pipelines alone: (n, pp) -> (n, 2), up to the end of the forward passes and from there
        to that of the backward passes, all rounds and micro-batches; of a schedule that mixes them,
        0 and all. tp = 1 only."""
        phases_s = self._extrapolated(self._pipeline_records(pipelines))
        return phases_s if phases_s.shape[1] == 2 else np.pad(phases_s, ((0, 0), (1, 0)))

    def groups_s(self, stage: int, groups: Grid) -> Floats:
        """Of synchronising and updating a stage's group alone, all members ready at once: (n, dp)
        -> (n,). tp = 1 only."""
        slowest: Floats = self._group_records(stage, groups).max(axis=1)
        return slowest

    def composed_s(self, grids: Grid) -> Floats:
        """Of whole iterations, estimated from what their parts take alone: (n, dp, pp) -> (n,).

        A group starts when the last of its members is ready. Barriers are as in `simulate`.
        """
        return np.array([self._composed_s(np.asarray(grid)) for grid in grids])

    def _time_s(self, grid: Grid) -> float:
        key = hashlib.blake2b(self._told(grid.reshape(1, -1)).tobytes(), digest_size=16).digest()
        if key not in self._times:
            placement = np.empty(grid.size, np.int64)
            placement[rank_lanes(self._plan)] = grid
            placed = dataclasses.replace(self._plan, placement=tuple(placement.tolist()))
            self._times[key] = simulate(placed).iteration_s
        return self._times[key]

    def _composed_s(self, grid: Grid) -> float:
        plan, stages = self._plan, range(grid.shape[1])
        records = self._pipeline_records(grid)
        groups_s = [self._group_records(stage, grid[:, stage][None])[0] for stage in stages]
        after_s = np.stack(groups_s, axis=1)  # (dp, pp)
        ready_s, missing = records[:, 0, FINISH], self._missing()
        total_s = missing * self._period_s(records[:, 0])
        if plan.schedule == "gpipe":
            turn_s = self._barrier_s(grid, ready_s)
            ready_s = turn_s[:, -1:] + records[:, 1, FINISH]
            total_s += missing * self._period_s(records[:, 1])
        total_s += (plan.num_rounds - 1) * (ready_s.max() + total_s)
        done_s = ready_s.max(axis=0) + after_s
        if plan.schedule == "gpipe":
            done_s = self._barrier_s(
                grid, done_s.T
            )  # in the order in which `simulate` hands it over
        return float(total_s + done_s.max())

    def _missing(self) -> int:
        """Micro-batches that are not simulated."""
        return self._plan.num_micro_batches - self._shape.num_micro_batches

    def _extrapolated(self, records: Floats) -> Floats:
        """Seconds of each phase with all its micro-batches and rounds, (n, num_phases)."""
        each_s = records[:, :, FINISH].max(axis=2)
        if missing := self._missing():
            steady_s = [[self._period_s(phase[None]) for phase in record] for record in records]
            each_s = each_s + missing * np.asarray(steady_s)
        total_s: Floats = each_s * self._plan.num_rounds
        return total_s

    def _period_s(self, records: Floats) -> float:
        """Of a further micro-batch, in the stage that would end last: (n, 3, pp)."""
        missing = self._missing()
        if not missing:
            return 0.0
        first, last = steady_labels(self._shape)
        period_s = (records[:, LAST] - records[:, FIRST]) / (last - first)
        return float(period_s.flat[np.argmax(records[:, FINISH] + missing * period_s)])

    def _barrier_s(self, grid: Grid, ready_s: Floats) -> Floats:
        """When `simulate.barrier` lets each rank go, (dp, pp), seconds."""
        ranks = rank_lanes(self._plan)
        order, index = np.argsort(ranks.ravel()), np.arange(ranks.size)
        node, end_s = self._node[grid].ravel()[order], ready_s.ravel()[order]
        for step in range(math.ceil(math.log2(ranks.size))):
            source, target = (index - (1 << step)) % len(index), (index + (1 << step)) % len(index)
            word_s = np.maximum(end_s, _tick(end_s[target] + self._delay_s[node[target], node]))
            end_s = np.maximum(word_s, _tick(word_s[source] + self._delay_s[node[source], node]))
        return end_s[ranks]

    def _pipeline_records(self, pipelines: Grid) -> Floats:
        """(n, num_phases, 3, pp), seconds since its last stage could start each phase."""
        if self._plan.layout.tp > 1 or self._plan.schedule == "none":
            raise PlanError(f"{self._plan.variant} has no pipelines of single devices to be timed")
        return self._recorded(self._pipelines, b"", np.asarray(pipelines), self._time_pipelines)

    def _group_records(self, stage: int, groups: Grid) -> Floats:
        """(n, dp), seconds until each member of a group is done."""
        if self._plan.layout.tp > 1 or self._plan.schedule == "none":
            raise PlanError(f"{self._plan.variant} has no groups of single devices to be timed")

        def timed(some: Grid) -> Floats:
            return self._time_groups(stage, some)

        return self._recorded(self._groups, b"%d " % stage, np.asarray(groups), timed)

    def _recorded(
        self,
        known: dict[bytes, Floats],
        prefix: bytes,
        parts: Grid,
        timed: Callable[[Grid], Floats],
    ) -> Floats:
        """Records of parts, (n, num_devices of one); those that are not known are simulated."""
        keys = [prefix + row.tobytes() for row in self._told(parts)]
        new = {key: index for index, key in enumerate(keys) if key not in known}
        which, at_once = list(new.values()), max(1, MAX_RANKS // parts.shape[1])
        for begin in range(0, len(which), at_once):
            some = which[begin : begin + at_once]
            known.update(zip([keys[index] for index in some], timed(parts[some]), strict=True))
        return np.stack([known[key] for key in keys])

    def _told(self, parts: Grid) -> NDArray[np.int32]:
        """What a simulation of only these devices, (n, k), can tell them by: (n, k or 2 k)."""
        names = self._name[parts].astype(np.int32)
        if self._lone:
            return names
        beside = np.empty(parts.shape, np.int32)  # which of them was the first on this node
        for row, nodes in enumerate(self._node[parts]):
            _, first, inverse = np.unique(nodes, return_index=True, return_inverse=True)
            beside[row] = first[inverse]
        return np.concatenate([names, beside], axis=1)

    def _time_pipelines(self, pipelines: Grid) -> Floats:
        part = np.broadcast_to(np.arange(len(pipelines))[:, None], pipelines.shape)
        plan = self._apart(pipelines, part)
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        lanes = pipeline_lanes(plan, ranks, blocking=plan.system == "megatron")
        seconds, gate = compute_seconds(plan, graph.fabric), graph.work(Kind.MARK, ranks)
        depth, count = plan.layout.pp, plan.num_micro_batches
        phases = wired(plan.schedule, depth, count, plan.num_chunks, lanes.blocking)
        if len(phases) == 1:
            ends = add_pipelines(graph, lanes, phases[0], seconds, gate)
            return self._records(graph.run(), Kind.BACKWARD, ranks, ends, 0.0)[:, None]
        records = []
        for wiring, kind in zip(phases, (Kind.FORWARD, Kind.BACKWARD), strict=True):
            records.append(self._time_phase(plan, wiring, kind))
        return np.stack(records, axis=1)

    def _time_phase(self, plan: Plan, wiring: Wiring, kind: Kind) -> Floats:
        """GPipe's forward passes, all stages at once, or backward passes, the last stage last."""
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        lanes, seconds = (
            pipeline_lanes(plan, ranks, blocking=False),
            compute_seconds(plan, graph.fabric),
        )
        begin_s = _EARLY_S if kind == Kind.BACKWARD else 0.0
        offsets_s = np.zeros(ranks.shape)
        offsets_s[:, -1] = begin_s
        gate = graph.work(Kind.MARK, ranks, offsets_s)
        name = "forward" if kind == Kind.FORWARD else "backward"
        ends = add_pipelines(graph, lanes, wiring, {name: seconds[name]}, gate)
        return self._records(graph.run(), kind, ranks, ends, begin_s)

    def _records(
        self, timeline: Timeline, kind: Kind, ranks: Ids, ends: Ids, begin_s: float
    ) -> Floats:
        marks_s = np.zeros((2, ranks.size))
        for row, label in enumerate(steady_labels(self._shape)):
            chosen = (timeline.kind == kind) & (timeline.label == label)
            np.maximum.at(marks_s[row], timeline.rank[chosen], timeline.end_s[chosen])
        found: Floats = np.stack([timeline.end_s[ends], *marks_s[:, ranks]], axis=1) - begin_s
        return found

    def _time_groups(self, stage: int, groups: Grid) -> Floats:
        """Groups side by side, as if each were of a stage of its own."""
        part = np.broadcast_to(np.arange(len(groups)), groups.T.shape)
        plan = self._apart(groups.T, part, stage)
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        done = synchronise(graph, plan, ranks, graph.work(Kind.MARK, ranks))
        end_s = np.empty(ranks.size)
        timeline = graph.run()
        end_s[timeline.rank[done]] = timeline.end_s[done]
        return end_s[ranks].T

    def _apart(self, grid: Grid, part: Grid, stage: int | None = None) -> Plan:
        """The plan on these devices only, every part on nodes of its own. grid, part: (dp, pp).
        stage: that all columns are of, None = column i is stage i."""
        dp, pp = grid.shape
        layout = Layout(pp=pp, dp=dp)
        ranks = rank_lanes(dataclasses.replace(self._shape, layout=layout))
        device, owner = np.empty((2, grid.size), np.int64)
        device[ranks], owner[ranks] = grid, part
        _, first, own = np.unique(
            owner * len(self._plan.network.node_regions) + self._node[device],
            return_index=True,
            return_inverse=True,
        )
        network = dataclasses.replace(
            self._plan.network,
            node_regions=tuple(self._region[device[first]].tolist()),
            nic_bps=tuple(self._nic_bps[device[first]].tolist()),
        )

        def columns(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
            return stages if stage is None else (stages[stage],) * pp

        return dataclasses.replace(
            self._shape,
            layout=layout,
            placement=tuple(range(grid.size)),
            device_nodes=tuple(own.tolist()),
            network=network,
            stages=columns(self._shape.stages),
            device_types=tuple(self._kind[device].tolist()) if self._plan.type_stages else (),
            type_stages=tuple(columns(stages) for stages in self._shape.type_stages),
        )


def _tick(time_s: Floats) -> Floats:
    return np.rint(time_s * _TICKS) / _TICKS
