"""The simulated iteration time of a plan with other placements.

A search asks for thousands of placements that differ little. So an iteration is taken apart into
its pipelines and its data-parallel groups (`parts`), and what is known of a part holds for every
one that the simulation cannot tell from it: devices of one region, kind and NIC that are alone on
their nodes have one name. Their order counts: rings and chains go round in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netbench.errors import PlanError
from netbench.placement.problem import Floats, Grid
from netbench.plan.model import Plan
from netbench.simulator.parts import FINISH, FIRST, LAST, LATEST, LEFT, Parts
from netbench.simulator.simulate import rank_lanes, simulate, steady_labels

MAX_RANKS = 256
"""Of parts that are timed in one graph. Larger ones fit the processor's caches less well, and one
part whose flows meet has all of a graph run again."""

_TICKS = float(1 << 30)
"""Of a second, as the event loop's times have them."""


class _Passes(NamedTuple):
    """Pipelines of an iteration. begin_s: (dp, pp), when each rank begins the last phase.
    records: (dp, num_phases, 5, pp), as in `parts`, but since the iteration began."""

    begin_s: Floats
    records: Floats

    @property
    def ready_s(self) -> Floats:
        """When each rank may synchronise, (dp, pp)."""
        return self.records[:, -1, FINISH]


class PlanObjective:
    """`placement.problem.Objective` of a plan: its simulated time with other placements.

    independent: no two pipelines and no two groups share anything, whatever the grid. A rank's last
    message and its first gradients still may, unless every pair of nodes has its own rate.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._parts = Parts(plan)
        self._missing = plan.num_micro_batches - self._parts.shape.num_micro_batches
        network, self._node = plan.network, np.asarray(plan.device_nodes)
        self._region = np.asarray(network.node_regions)[self._node]
        told = [self._region, np.asarray(plan.device_types or [0] * len(self._node))]
        if network.sharing == "nic":
            told.append(np.asarray(network.nic_bps)[self._node])
        self._name = np.unique(np.stack(told), axis=1, return_inverse=True)[1].ravel()
        self._alone = bool(np.bincount(self._node).max() == 1)
        self._divisible = plan.schedule != "none" and plan.layout.tp == 1
        self.independent = self._divisible and self._alone and network.sharing in ("pair", "class")
        self._delay_s = np.array([[link.one_way_delay_s for link in row] for row in network.links])
        self._bandwidth_bps = np.array(
            [[link.bandwidth_bps for link in row] for row in network.links]
        )
        self._by_rank = np.argsort(rank_lanes(plan).ravel())
        self._times: dict[bytes, float] = {}
        self._pipelines: dict[bytes, Floats] = {}
        self._groups: dict[bytes, Floats] = {}

    def times_s(self, grids: Grid) -> Floats:
        """Of whole iterations: grids (n, dp * tp, pp) -> (n,), as `simulate` has them."""
        return np.array([self._time_s(np.asarray(grid)) for grid in grids])

    def composed_s(self, grids: Grid) -> Floats:
        """Of whole iterations, by what their parts take alone: (n, dp, pp) -> (n,). tp = 1 only.

        A group begins when the last of its members is ready; barriers are as in `simulate`.
        """
        return np.array([self._composed_s(np.asarray(grid)) for grid in grids])

    def pipelines_s(self, pipelines: Grid) -> Floats:
        """Of pipelines alone: (n, pp) -> (n, 2), all rounds and micro-batches: up to the end of the
        forward passes, and from there to that of the backward passes. Schedules that mix them have
        0 and all. tp = 1 only."""
        records = self._pipeline_records(np.asarray(pipelines))
        phases_s = np.array(
            [
                [sum(self._stretches_s(phase[None], 0.0, phase[FINISH].max())) for phase in record]
                for record in records
            ]
        )
        return phases_s if phases_s.shape[1] == 2 else np.pad(phases_s, ((0, 0), (1, 0)))

    def groups_s(self, stage: int, groups: Grid) -> Floats:
        """Of synchronising and updating a stage's group alone, all members ready at once: (n, dp)
        -> (n,). tp = 1 only."""
        slowest: Floats = self._group_records(stage, np.asarray(groups)).max(axis=1)
        return slowest

    def _time_s(self, grid: Grid) -> float:
        key = hashlib.blake2b(self._told(grid.reshape(1, -1)).tobytes(), digest_size=16).digest()
        if key not in self._times:
            by_parts_s = self._by_parts_s(grid) if self.independent else None
            self._times[key] = self._whole_s(grid) if by_parts_s is None else by_parts_s
        return self._times[key]

    def _whole_s(self, grid: Grid) -> float:
        placement = tuple(grid.ravel()[self._by_rank].tolist())
        return simulate(dataclasses.replace(self._plan, placement=placement)).iteration_s

    def _by_parts_s(self, grid: Grid) -> float | None:
        """What `simulate` finds, of parts that do not meet; None = some do."""
        passes = self._passes(grid)
        late = passes.begin_s > passes.records[:, -1, LATEST]
        if rows := np.flatnonzero(late.any(axis=1)).tolist():
            last = len(passes.records[0]) - 1
            passes.records[rows, -1] = self._parts.phase(grid[rows], passes.begin_s[rows], last)
        done_s, first_s = self._parts.synchronised(grid, passes.ready_s)
        if self._meet(grid, passes.records[:, -1, LEFT] > first_s):
            return None
        return self._iteration_s(grid, passes, done_s)

    def _composed_s(self, grid: Grid) -> float:
        passes = self._passes(grid)
        groups_s = [
            self._group_records(stage, devices[None])[0] for stage, devices in enumerate(grid.T)
        ]
        done_s = passes.ready_s.max(axis=0) + np.stack(groups_s, axis=1)
        return self._iteration_s(grid, passes, done_s)

    def _passes(self, grid: Grid) -> _Passes:
        """Pipelines that nothing but their last stage keeps waiting when they turn."""
        records, begin_s = self._pipeline_records(grid), np.zeros(grid.shape)
        if self._plan.schedule == "gpipe":
            begin_s = self._barrier_s(grid, records[:, 0, FINISH])
            records[:, 1] += begin_s[:, None, -1:]
        return _Passes(begin_s, records)

    def _meet(self, grid: Grid, overlap: NDArray[np.bool_]) -> bool:
        """Whether gradients share a class with messages of the pipeline that are not yet away.
        overlap: (dp, pp), ranks that send both at once."""
        if self._plan.network.sharing == "pair" or not overlap.any():
            return False
        lanes, stages = np.nonzero(overlap)
        here, (dp, pp) = self._region[grid[overlap]], grid.shape
        mates = range(1, dp) if self._plan.data_parallel == "sharded-ps" else range(1, 2)
        for step in (-1, 1):
            beside = self._region[grid[lanes, (stages + step) % pp]]
            for mate in mates:
                there = self._region[grid[(lanes + mate) % dp, stages]]
                same = self._delay_s[here, beside] == self._delay_s[here, there]
                same &= self._bandwidth_bps[here, beside] == self._bandwidth_bps[here, there]
                if same.any():
                    return True
        return False

    def _iteration_s(self, grid: Grid, passes: _Passes, done_s: Floats) -> float:
        """All its phases, summed as `Simulation` sums them. done_s: (dp, pp), of synchronising."""
        ready_s, num_phases = float(passes.ready_s.max()), passes.records.shape[1]
        cuts_s = [0.0, float(passes.begin_s.max()), ready_s] if num_phases > 1 else [0.0, ready_s]
        totals_s = [
            total_s
            for phase in range(num_phases)
            for total_s in self._stretches_s(
                passes.records[:, phase], cuts_s[phase], cuts_s[phase + 1]
            )
        ]
        if self._plan.schedule == "gpipe":
            done_s = self._barrier_s(grid, done_s.T)  # `simulate` has them in this order
        return sum([*totals_s, float(done_s.max()) - ready_s])

    def _stretches_s(self, records: Floats, from_s: float, to_s: float) -> list[float]:
        """Of a phase of pipelines, (n, 5, pp): the parts that `simulate` takes it for, seconds."""
        rounds, missing = self._plan.num_rounds, self._missing
        if not missing:
            return [rounds * (to_s - from_s)]
        first, last = steady_labels(self._parts.shape)
        rows = records[:, [FINISH, FIRST, LAST]].transpose(1, 0, 2).reshape(3, -1)
        if rows.shape[1] == len(self._by_rank):
            rows = rows[:, self._by_rank]
        slowest = np.argmax(rows[0] + missing * ((rows[2] - rows[1]) / (last - first)))
        cuts_s = (from_s, float(rows[1, slowest]), float(rows[2, slowest]), to_s)
        repeats = (1.0, 1.0 + missing / (last - first), 1.0)
        return [
            repeat * rounds * (end_s - begin_s)
            for begin_s, end_s, repeat in zip(cuts_s, cuts_s[1:], repeats, strict=False)
        ]

    def _barrier_s(self, grid: Grid, ready_s: Floats) -> Floats:
        """When `simulate.barrier` lets each rank go, (dp, pp), seconds."""
        region, end_s = self._region[grid].ravel()[self._by_rank], ready_s.ravel()[self._by_rank]
        rank = np.arange(len(end_s))
        for step in range(math.ceil(math.log2(len(rank)))):
            source, target = (rank - (1 << step)) % len(rank), (rank + (1 << step)) % len(rank)
            asked_s = _tick(end_s[target] + self._delay_s[region[target], region])
            word_s = np.maximum(end_s, asked_s)
            heard_s = _tick(word_s[source] + self._delay_s[region[source], region])
            end_s = np.maximum(word_s, heard_s)
        let_go_s = np.empty(len(rank))
        let_go_s[self._by_rank] = end_s
        return let_go_s.reshape(grid.shape)

    def _pipeline_records(self, pipelines: Grid) -> Floats:
        return self._recorded(self._pipelines, b"", pipelines, self._parts.pipelines)

    def _group_records(self, stage: int, groups: Grid) -> Floats:
        def timed(some: Grid) -> Floats:
            return self._parts.groups(stage, some)

        return self._recorded(self._groups, b"%d " % stage, groups, timed)

    def _recorded(
        self,
        known: dict[bytes, Floats],
        prefix: bytes,
        parts: Grid,
        timed: Callable[[Grid], Floats],
    ) -> Floats:
        """Records of parts, (n, num_devices of each); those that are not known are timed."""
        if not self._divisible:
            raise PlanError(
                f"{self._plan.variant} has no parts to be timed apart; expected pipelines, and no "
                "tensor parallelism"
            )
        keys = [prefix + row.tobytes() for row in self._told(parts)]
        new = list({key: row for row, key in enumerate(keys) if key not in known}.values())
        at_once = max(1, MAX_RANKS // parts.shape[1])
        for begin in range(0, len(new), at_once):
            some = new[begin : begin + at_once]
            known.update(zip([keys[row] for row in some], timed(parts[some]), strict=True))
        return np.stack([known[key] for key in keys])

    def _told(self, parts: Grid) -> NDArray[np.int32]:
        """What a simulation of only these devices, (n, k), can tell them by: (n, k or 2 k)."""
        names = self._name[parts].astype(np.int32)
        if self._alone:
            return names
        beside = np.empty(parts.shape, np.int32)  # which of them is the first on its node
        for row, nodes in enumerate(self._node[parts]):
            _, first, inverse = np.unique(nodes, return_index=True, return_inverse=True)
            beside[row] = first[inverse]
        return np.concatenate([names, beside], axis=1)


def _tick(time_s: Floats) -> Floats:
    return np.rint(time_s * _TICKS) / _TICKS
