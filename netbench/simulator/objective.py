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
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from netbench.errors import PlanError
from netbench.placement.problem import Floats, Grid
from netbench.plan.model import Plan
from netbench.simulator.graph import Ids
from netbench.simulator.parts import EARLY_S, FINISH, FIRST, LAST, LATEST, LEFT, Parts
from netbench.simulator.profile import TransportProfile, load_transport
from netbench.simulator.simulate import rank_lanes, simulate, steady_labels

MAX_RECORDS = 200_000
"""That are kept of pipelines, and of groups: a pipeline of 8 stages takes a kilobyte."""

S = TypeVar("S", bound=np.generic)

_TICKS = float(1 << 30)
"""Of a second, as the event loop's times have them."""


class _Passes(NamedTuple):
    """Pipelines of iterations. begin_s: (n, dp, pp), when each rank begins the last phase.
    records: (n, dp, num_phases, 5, pp), as in `parts`, but since the iteration began."""

    begin_s: Floats
    records: Floats

    @property
    def ready_s(self) -> Floats:
        """When each rank may synchronise, (n, dp, pp)."""
        return self.records[:, :, -1, FINISH]


class PlanObjective:
    """`placement.problem.Objective` of a plan: its simulated time with other placements.

    independent: no two pipelines and no two groups share anything, whatever the grid. A rank's last
    message and its first gradients still may, unless every pair of nodes has its own rate.
    """

    def __init__(self, plan: Plan, transport: TransportProfile | None = None) -> None:
        """transport: None = the profile of the plan's backend."""
        self._plan, self._transport = plan, transport or load_transport(plan.backend)
        self._parts = Parts(plan, self._transport)
        self._missing = plan.num_micro_batches - self._parts.shape.num_micro_batches
        network, self._node = plan.network, np.asarray(plan.device_nodes)
        self._region = np.asarray(network.node_regions)[self._node]
        told = [self._region, np.asarray(plan.device_types or [0] * len(self._node))]
        if network.sharing == "nic":
            told.append(np.asarray(network.nic_bps)[self._node])
        self._name = np.unique(np.stack(told), axis=1, return_inverse=True)[1].ravel()
        self._alone = bool(np.bincount(self._node).max() == 1)
        self.divisible = plan.schedule != "none" and plan.layout.tp == 1
        self.independent = self.divisible and self._alone and network.sharing in ("pair", "class")
        self._link = np.array(  # [:, src, dst], of regions
            [
                [[link.one_way_delay_s for link in row] for row in network.links],
                [[link.bandwidth_bps for link in row] for row in network.links],
            ]
        )
        self._by_rank = np.argsort(rank_lanes(plan).ravel())
        self._times: dict[bytes, float] = {}
        self._pipelines: dict[bytes, Floats] = {}
        self._groups: dict[bytes, Floats] = {}

    def times_s(self, grids: Grid) -> Floats:
        """Of whole iterations: grids (n, dp * tp, pp) -> (n,), as `simulate` has them."""
        grids = np.asarray(grids)
        keys = [_digest(row) for row in self._told(grids.reshape(len(grids), -1))]
        new = list({key: row for row, key in enumerate(keys) if key not in self._times}.values())
        if new:
            timed = self._by_parts_s if self.independent else self._whole_s
            found_s = timed(grids[new]).tolist()
            self._times.update(zip([keys[row] for row in new], found_s, strict=True))
        return np.array([self._times[key] for key in keys])

    def composed_s(self, grids: Grid) -> Floats:
        """Of whole iterations, by what their parts take alone: (n, dp, pp) -> (n,). tp = 1 only.

        A group begins when the last of its members is ready; barriers are as in `simulate`.
        """
        grids = np.asarray(grids)
        passes = self._passes(grids)
        n, dp, pp = grids.shape
        records = self._group_records(np.tile(np.arange(pp), n), _by_group(grids))
        after_s = records.reshape(n, pp, dp).transpose(0, 2, 1)
        done_s = passes.ready_s.max(axis=1, keepdims=True) + after_s
        return self._iterations_s(grids, passes, done_s)

    def pipelines_s(self, pipelines: Grid) -> Floats:
        """Of pipelines alone: (n, pp) -> (n, 2), all rounds and micro-batches: up to the end of the
        forward passes, and from there to that of the backward passes. Schedules that mix them have
        0 and all. tp = 1 only."""
        records = self._pipeline_records(np.asarray(pipelines))
        phases_s = np.zeros((len(records), 2))
        for phase, which in enumerate(range(2 - records.shape[1], 2)):
            alone = records[:, phase]
            stretches_s = self._stretches_s(
                alone, np.zeros(len(alone)), alone[:, FINISH].max(axis=1)
            )
            phases_s[:, which] = sum(stretches_s)
        return phases_s

    def groups_s(self, stage: int, groups: Grid) -> Floats:
        """Of synchronising and updating a stage's group alone, all members ready at once: (n, dp)
        -> (n,). tp = 1 only."""
        stages = np.full(len(groups), stage)
        slowest: Floats = self._group_records(stages, np.asarray(groups)).max(axis=1)
        return slowest

    def _whole_s(self, grids: Grid) -> Floats:
        placements = (tuple(grid.ravel()[self._by_rank].tolist()) for grid in grids)
        plans = (dataclasses.replace(self._plan, placement=placement) for placement in placements)
        return np.array([simulate(plan, self._transport).iteration_s for plan in plans])

    def _by_parts_s(self, grids: Grid) -> Floats:
        """What `simulate` finds, of parts that begin when those before them let them. Last messages
        and gradients that meet are simulated together."""
        passes, (n, dp, pp) = self._passes(grids), grids.shape
        last, turned = passes.records.shape[2] - 1, passes.records[:, :, -1]
        late_s = passes.begin_s - passes.begin_s[:, :, -1:]
        late = np.nonzero(
            ((passes.begin_s > turned[:, :, LATEST]) | (late_s < -EARLY_S)).any(axis=2)
        )
        if len(late[0]):
            turned[late] = self._parts.phase(grids[late], passes.begin_s[late], last)
        ends_s = self._parts.groups(
            np.tile(np.arange(pp), n), _by_group(grids), _by_group(passes.ready_s)
        ).reshape(n, pp, 2, dp)
        done_s, first_s = ends_s.transpose(2, 0, 3, 1)
        for row in np.flatnonzero(self._meet(grids, turned[:, :, LEFT] > first_s)):
            turned[row], done_s[row] = self._parts.joined(grids[row], passes.begin_s[row], last)
        return self._iterations_s(grids, passes, done_s)

    def _passes(self, grids: Grid) -> _Passes:
        """Pipelines that nothing but their last stage keeps waiting when they turn."""
        n, dp, pp = grids.shape
        records = self._pipeline_records(grids.reshape(-1, pp))
        records = records.reshape(n, dp, *records.shape[1:])
        begin_s = np.zeros(grids.shape)
        if self._plan.schedule == "gpipe":
            begin_s = self._barrier_s(grids, records[:, :, 0, FINISH])
            records[:, :, 1] += begin_s[:, :, None, -1:]
        return _Passes(begin_s, records)

    def _meet(self, grids: Grid, overlap: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which grids, (n,), have a rank whose last messages share a class with its gradients.
        overlap: (n, dp, pp), ranks that have sent one before all of the other are away."""
        found = np.zeros(len(grids), np.bool_)
        if self._plan.network.sharing == "pair":
            return found
        row, lane, stage = np.nonzero(overlap)
        here, (_, dp, pp) = self._region[grids[overlap]], grids.shape
        hops = range(1, dp if self._plan.data_parallel == "sharded-ps" else 2)
        for beside in (stage - 1, (stage + 1) % pp):
            message = self._link[:, here, self._region[grids[row, lane, beside]]]
            for hop in hops:
                gradients = self._link[:, here, self._region[grids[row, (lane + hop) % dp, stage]]]
                found[row[(message == gradients).all(axis=0)]] = True
        return found

    def _iterations_s(self, grids: Grid, passes: _Passes, done_s: Floats) -> Floats:
        """All phases of each, summed as `Simulation` sums them, (n,). done_s: (n, dp, pp), when
        each rank has synchronised."""
        ready_s, num_phases = passes.ready_s.max(axis=(1, 2)), passes.records.shape[2]
        cuts_s = [np.zeros(len(grids)), ready_s]
        if num_phases > 1:
            cuts_s.insert(1, passes.begin_s.max(axis=(1, 2)))
        by_rank = passes.records.transpose(2, 0, 3, 1, 4).reshape(num_phases, len(grids), 5, -1)
        totals_s = [
            total_s
            for records, from_s, to_s in zip(by_rank, cuts_s, cuts_s[1:], strict=False)
            for total_s in self._stretches_s(records[:, :, self._by_rank], from_s, to_s)
        ]
        if self._plan.schedule == "gpipe":
            done_s = self._barrier_s(grids, done_s)
        return np.asarray(sum([*totals_s, done_s.max(axis=(1, 2)) - ready_s]))

    def _stretches_s(self, records: Floats, from_s: Floats, to_s: Floats) -> list[Floats]:
        """Of a phase, the parts that `simulate` takes it for, each (n,), seconds. records: (n, 5,
        num_ranks). from_s, to_s: (n,), the phase's."""
        rounds, missing = self._plan.num_rounds, self._missing
        if not missing:
            return [rounds * (to_s - from_s)]
        first, last = steady_labels(self._parts.shape)
        period_s = (records[:, LAST] - records[:, FIRST]) / (last - first)
        slowest = np.argmax(records[:, FINISH] + missing * period_s, axis=1)
        each = np.arange(len(records))
        cuts_s = (from_s, records[each, FIRST, slowest], records[each, LAST, slowest], to_s)
        repeats = (1.0, 1.0 + missing / (last - first), 1.0)
        return [
            repeat * rounds * (end_s - begin_s)
            for begin_s, end_s, repeat in zip(cuts_s, cuts_s[1:], repeats, strict=False)
        ]

    def _barrier_s(self, grids: Grid, ready_s: Floats) -> Floats:
        """When `simulate.barrier` lets each rank go, (n, dp, pp), seconds."""
        n, delay_s = len(grids), self._link[0]
        region = self._region[grids].reshape(n, -1)[:, self._by_rank]
        end_s = ready_s.reshape(n, -1)[:, self._by_rank]
        rank = np.arange(end_s.shape[1])
        for step in range(math.ceil(math.log2(len(rank)))):
            source, target = (rank - (1 << step)) % len(rank), (rank + (1 << step)) % len(rank)
            asked_s = _tick(end_s[:, target] + delay_s[region[:, target], region])
            word_s = np.maximum(end_s, asked_s)
            heard_s = _tick(word_s[:, source] + delay_s[region[:, source], region])
            end_s = np.maximum(word_s, heard_s)
        let_go_s = np.empty(end_s.shape)
        let_go_s[:, self._by_rank] = end_s
        return let_go_s.reshape(grids.shape)

    def _pipeline_records(self, pipelines: Grid) -> Floats:
        """(n, num_phases, 5, pp), as in `parts`."""
        return self._recorded(
            self._pipelines,
            self._told(pipelines),
            lambda rows: self._parts.pipelines(pipelines[rows]),
        )

    def _group_records(self, stages: Ids, groups: Grid) -> Floats:
        """(n, dp), when each member is done if all begin at 0."""
        told = np.column_stack([stages, self._told(groups)])

        def timed(rows: Ids) -> Floats:
            ready_s = np.zeros((len(rows), groups.shape[1]))
            return self._parts.groups(stages[rows], groups[rows], ready_s)[:, 0]

        return self._recorded(self._groups, told, timed)

    def _recorded(
        self, known: dict[bytes, Floats], told: Ids, timed: Callable[[Ids], Floats]
    ) -> Floats:
        """Records of parts, (n, ...), of which those that are not known are timed. told: (n, k),
        what tells them apart."""
        if not self.divisible:
            raise PlanError(
                f"{self._plan.variant} has no parts to be timed apart, as pipelines without tensor "
                "parallelism have"
            )
        keys = [row.tobytes() for row in told]
        if len(known) + len(keys) > MAX_RECORDS:
            known.clear()
        new = list({key: row for row, key in enumerate(keys) if key not in known}.values())
        if new:
            known.update(zip([keys[row] for row in new], timed(np.array(new)), strict=True))
        return np.stack([known[key] for key in keys])

    def _told(self, parts: Grid) -> Ids:
        """What a simulation of only these devices, (n, k), can tell them by: (n, k or 2 k)."""
        names = self._name[parts]
        if self._alone:
            return names
        beside = np.empty_like(names)  # which of them is the first on its node
        for row, nodes in enumerate(self._node[parts]):
            _, first, inverse = np.unique(nodes, return_index=True, return_inverse=True)
            beside[row] = first[inverse]
        return np.concatenate([names, beside], axis=1)


def _by_group(grids: NDArray[S]) -> NDArray[S]:
    """(n, dp, pp) -> (n * pp, dp)."""
    n, dp, pp = grids.shape
    return grids.transpose(0, 2, 1).reshape(n * pp, dp)


def _digest(told: Ids) -> bytes:
    return hashlib.blake2b(told.tobytes(), digest_size=16).digest()


def _tick(time_s: Floats) -> Floats:
    return np.rint(time_s * _TICKS) / _TICKS
