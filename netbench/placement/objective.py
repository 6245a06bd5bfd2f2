"""The simulated iteration time of a plan with other placements.

A search asks for thousands of placements that differ little. An iteration is therefore split into
its pipelines and its data-parallel groups (`parts`), and the time of a part is reused for every
part that simulates alike: devices of one region, kind and NIC that are alone on their nodes are
interchangeable. The order of devices matters, because rings and chains follow it.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from netbench.errors import PlanError
from netbench.placement.parts import EARLY_S, FINISH, FIRST, LAST, LATEST, LEFT, Parts
from netbench.placement.problem import Floats, Grid
from netbench.plan.model import Plan
from netbench.scenario.sharing import SHARING, Queues, nic_caps_bps
from netbench.simulator.graph import Ids
from netbench.simulator.iteration import simulate, steady_labels
from netbench.systems import rank_lanes, sums_losses
from netbench.transport.profile import TransportProfile, load_transport

MAX_RECORDS = 200_000
"""Cached records of pipelines, and of groups; one of a pipeline of 8 stages takes a kilobyte."""

S = TypeVar("S", bound=np.generic)

_TICKS = float(1 << 30)
"""Ticks of a second, the resolution of the event loop."""


class _Passes(NamedTuple):
    """Pipelines of iterations.

    begin_s: (n, dp, pp), when each rank begins the last phase. records: (n, dp, num_phases, 5, pp),
    as in `parts`, but relative to the start of the iteration.
    """

    begin_s: Floats
    records: Floats

    @property
    def ready_s(self) -> Floats:
        """Time at which each rank may synchronise, (n, dp, pp)."""
        return self.records[:, :, -1, FINISH]


class PlanObjective:
    """`placement.problem.Objective` of a plan: its simulated time with other placements.

    independent: on any grid, no two pipelines and no two groups share a resource or wait for each
    other. A rank's last message and its first gradients may still share one, unless every pair of
    nodes has its own.
    """

    def __init__(self, plan: Plan, transport: TransportProfile | None = None) -> None:
        """transport: None = the profile of the plan's backend."""
        self._plan, self._transport = plan, transport or load_transport(plan.backend)
        self._parts = Parts(plan, self._transport)
        self._missing = plan.num_micro_batches - self._parts.shape.num_micro_batches
        network, self._node = plan.network, np.asarray(plan.device_nodes)
        self._region = np.asarray(network.node_regions)[self._node]
        kinds = np.asarray(plan.device_types or [0] * len(self._node))
        rates = np.array([nic_caps_bps(network), network.host_limits_bps])[:, self._node]
        traits = [self._region, kinds, *rates]
        self._name = np.unique(np.stack(traits), axis=1, return_inverse=True)[1].ravel()
        self._alone = bool(np.bincount(self._node).max() == 1)
        self.divisible = plan.has_pipelines and plan.layout.tp == 1
        by_sender = SHARING[network.sharing].is_by_sender and not network.host_bps
        self.independent = self.divisible and self._alone and by_sender and not sums_losses(plan)
        self._queues = Queues(network)
        self._delay_s = np.array([[link.one_way_delay_s for link in row] for row in network.links])
        self._by_rank = np.argsort(rank_lanes(plan).ravel())
        self._times: dict[bytes, float] = {}
        self._pipelines: dict[bytes, Floats] = {}
        self._groups: dict[bytes, Floats] = {}

    def times_s(self, grids: Grid) -> Floats:
        """Simulate whole iterations, exactly as `simulate`: see `Objective`."""
        grids = np.asarray(grids)
        keys = [
            hashlib.blake2b(row.tobytes(), digest_size=16).digest()
            for row in self._signatures(grids.reshape(len(grids), -1))
        ]
        new = list({key: row for row, key in enumerate(keys) if key not in self._times}.values())
        if new and self.independent:
            times_s = self._by_parts_s(grids[new]).tolist()
            self._times.update(zip([keys[row] for row in new], times_s, strict=True))
        for row in [] if self.independent else new:
            placement = tuple(grids[row].ravel()[self._by_rank].tolist())
            plan = dataclasses.replace(self._plan, placement=placement)
            self._times[keys[row]] = simulate(plan, self._transport).iteration_s
        return np.array([self._times[key] for key in keys])

    def composed_s(self, grids: Grid) -> Floats:
        """Estimate whole iterations: see `Objective`. A group begins when its last member is ready;
        barriers are as in `simulate`."""
        grids = np.asarray(grids)
        passes = self._passes(grids)
        n, dp, pp = grids.shape
        records = self._group_records(np.tile(np.arange(pp), n), _by_group(grids))
        after_s = records.reshape(n, pp, dp).transpose(0, 2, 1)
        done_s = passes.ready_s.max(axis=1, keepdims=True) + after_s
        return self._iterations_s(grids, passes, done_s)

    def pipelines_s(self, pipelines: Grid) -> Floats:
        """Simulate pipelines alone, all rounds and micro-batches: see `Objective`."""
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
        """Simulate groups alone, all members ready at once: see `Objective`."""
        stages = np.full(len(groups), stage)
        return np.asarray(self._group_records(stages, np.asarray(groups)).max(axis=1))

    def _by_parts_s(self, grids: Grid) -> Floats:
        """Compose what `simulate` would find from parts, each begun when its predecessors allow it.
        Last messages and first gradients that share a link are simulated together."""
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
        for row in np.flatnonzero(self._contending(grids, turned[:, :, LEFT] > first_s)):
            turned[row], done_s[row] = self._parts.joined(grids[row], passes.begin_s[row], last)
        return self._iterations_s(grids, passes, done_s)

    def _passes(self, grids: Grid) -> _Passes:
        """Return pipelines in which only the last stage delays the turn to backward passes."""
        n, dp, pp = grids.shape
        records = self._pipeline_records(grids.reshape(-1, pp))
        records = records.reshape(n, dp, *records.shape[1:])
        begin_s = np.zeros(grids.shape)
        if self._plan.has_turn:
            begin_s = self._barrier_s(grids, records[:, :, 0, FINISH])
            records[:, :, 1] += begin_s[:, :, None, -1:]
        return _Passes(begin_s, records)

    def _contending(self, grids: Grid, overlap: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which grids, (n,), have a rank whose last messages share a queue with its
        gradients. overlap: (n, dp, pp), ranks that send both at the same time."""
        contending = np.zeros(len(grids), np.bool_)
        if all("dst" in kind.by for kind in SHARING[self._plan.network.sharing].queues):
            return contending
        row, lane, stage = np.nonzero(overlap)
        here, (_, dp, pp) = self._node[grids[overlap]], grids.shape
        hops = range(1, dp if self._plan.data_parallel == "sharded-ps" else 2)
        for beside in (stage - 1, (stage + 1) % pp):
            messages = self._queues.between(here, self._node[grids[row, lane, beside]])
            for hop in hops:
                members = self._node[grids[row, (lane + hop) % dp, stage]]
                for one, other in zip(messages, self._queues.between(here, members), strict=True):
                    both = one.passes & other.passes
                    same = (np.array(one.keys) == np.array(other.keys)).all(axis=0)
                    contending[row[both & same]] = True
        return contending

    def _iterations_s(self, grids: Grid, passes: _Passes, done_s: Floats) -> Floats:
        """Return the sum over phases, (n,), as in `Simulation`. done_s: (n, dp, pp), when each rank
        has synchronised."""
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
        if self._plan.has_turn:
            done_s = self._barrier_s(grids, done_s)
        return np.asarray(sum([*totals_s, done_s.max(axis=(1, 2)) - ready_s]))

    def _stretches_s(self, records: Floats, from_s: Floats, to_s: Floats) -> list[Floats]:
        """Return the parts into which `simulate` divides a phase, each (n,), seconds.
        records: (n, 5, num_ranks). from_s, to_s: (n,), of the phase."""
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
        """Return when `iteration.barrier` releases each rank, (n, dp, pp), seconds."""
        n, delay_s = len(grids), self._delay_s
        region = self._region[grids].reshape(n, -1)[:, self._by_rank]
        end_s = ready_s.reshape(n, -1)[:, self._by_rank]
        rank = np.arange(end_s.shape[1])
        for step in range(math.ceil(math.log2(len(rank)))):
            source, target = (rank - (1 << step)) % len(rank), (rank + (1 << step)) % len(rank)
            request_s = _tick(end_s[:, target] + delay_s[region[:, target], region])
            reply_s = np.maximum(end_s, request_s)
            received_s = _tick(reply_s[:, source] + delay_s[region[:, source], region])
            end_s = np.maximum(reply_s, received_s)
        released_s = np.empty(end_s.shape)
        released_s[:, self._by_rank] = end_s
        return released_s.reshape(grids.shape)

    def _pipeline_records(self, pipelines: Grid) -> Floats:
        """Return records, (n, num_phases, 5, pp), as in `parts`."""
        return self._recorded(
            self._pipelines,
            self._signatures(pipelines),
            lambda rows: self._parts.pipelines(pipelines[rows]),
        )

    def _group_records(self, stages: Ids, groups: Grid) -> Floats:
        """Return when each member is done if all begin at 0, (n, dp)."""
        signatures = np.column_stack([stages, self._signatures(groups)])

        def timed(rows: Ids) -> Floats:
            ready_s = np.zeros((len(rows), groups.shape[1]))
            return self._parts.groups(stages[rows], groups[rows], ready_s)[:, 0]

        return self._recorded(self._groups, signatures, timed)

    def _recorded(
        self, known: dict[bytes, Floats], signatures: Ids, timed: Callable[[Ids], Floats]
    ) -> Floats:
        """Return records of parts, (n, ...); simulate only those that are not `known`.
        signatures: (n, k), equal for parts that simulate alike."""
        if not self.divisible:
            raise PlanError(
                f"parts of {self._plan.variant} cannot be timed alone; expected pipelines without "
                "tensor parallelism"
            )
        keys = [row.tobytes() for row in signatures]
        if len(known) + len(keys) > MAX_RECORDS:
            known.clear()
        new = list({key: row for row, key in enumerate(keys) if key not in known}.values())
        if new:
            known.update(zip([keys[row] for row in new], timed(np.array(new)), strict=True))
        return np.stack([known[key] for key in keys])

    def _signatures(self, parts: Grid) -> Ids:
        """Return all that a simulation of only these devices, (n, k), depends on: (n, k or 2 k)."""
        names = self._name[parts]
        if self._alone:
            return names
        beside = np.empty_like(names)  # the first device on the same node
        for row, nodes in enumerate(self._node[parts]):
            _, first, inverse = np.unique(nodes, return_index=True, return_inverse=True)
            beside[row] = first[inverse]
        return np.concatenate([names, beside], axis=1)


def _by_group(grids: NDArray[S]) -> NDArray[S]:
    """Reorder cells by group: (n, dp, pp) -> (n * pp, dp)."""
    n, dp, pp = grids.shape
    return grids.transpose(0, 2, 1).reshape(n * pp, dp)


def _tick(time_s: Floats) -> Floats:
    return np.rint(time_s * _TICKS) / _TICKS
