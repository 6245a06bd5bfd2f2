"""An iteration's parts, each simulated as if it were alone: pipelines, and data-parallel groups.

Many are timed in one graph, each on nodes of its own, so that they share nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from netbench.placement.problem import Floats, Grid
from netbench.plan.model import Layout, Plan
from netbench.simulator.graph import Graph, Ids, Kind, Timeline
from netbench.simulator.pipeline import add_pipelines
from netbench.simulator.profile import TransportProfile
from netbench.simulator.simulate import (
    compute_seconds,
    fabric_of,
    pipeline_lanes,
    rank_lanes,
    shape,
    steady_labels,
    synchronise,
    wired,
)
from netbench.workload.costs import Stage

PIPELINE_RANKS, GROUP_RANKS = 64, 256
"""Of parts that are timed in one graph. More graphs cost more to begin; larger ones fit the
processor's caches less well, and a pipeline whose flows meet has all of its graph run again."""

EARLY_S = 64.0
"""By how much the last stage of a pipeline alone begins GPipe's backward passes after the others:
further apart than this a barrier lets no two ranks go."""

FINISH, FIRST, LAST, LEFT, LATEST = range(5)
"""Rows of a record, by stage, seconds: when a phase has ended; ends of two micro-batches between
which it repeats itself; when its last bytes have left; until when it may begin and change nothing.
"""


class Parts:
    """Times parts of the iterations of a plan, whose placement does not count.

    Of systems with pipelines, and tp = 1. shape: the plan, with so many micro-batches as are
    simulated.
    """

    def __init__(self, plan: Plan, transport: TransportProfile) -> None:
        self.shape = shape(plan)
        self._transport = transport
        network = plan.network
        self._node = np.asarray(plan.device_nodes)
        self._region = np.asarray(network.node_regions)[self._node]
        self._nic_bps = np.asarray(network.nic_bps)[self._node]
        self._kind = np.asarray(plan.device_types or [0] * len(self._node))

    def pipelines(self, pipelines: Grid) -> Floats:
        """(n, pp) -> (n, num_phases, 5, pp): records, the seconds since all stages could begin the
        phase. GPipe has two; the second's since the last stage could, the others being early."""
        if self.shape.schedule != "gpipe":
            return self.phase(pipelines, np.zeros(pipelines.shape), 0)[:, None]
        return _in_pieces(lambda rows: self._two_phases(pipelines[rows]), pipelines, PIPELINE_RANKS)

    def phase(self, pipelines: Grid, begin_s: Floats, index: int) -> Floats:
        """(n, pp) -> (n, 5, pp): records of a phase. begin_s: (n, pp), when each rank begins it."""
        return _in_pieces(
            lambda rows: self._phase(pipelines[rows], begin_s[rows], index),
            pipelines,
            PIPELINE_RANKS,
        )

    def groups(self, stages: Ids, groups: Grid, ready_s: Floats) -> Floats:
        """(n, dp) -> (n, 2, dp): when each member has synchronised and updated its stage, and when
        it begins to send. stages: (n,), of each group. ready_s: (n, dp), when it may."""
        return _in_pieces(
            lambda rows: self._groups(stages[rows], groups[rows], ready_s[rows]),
            groups,
            GROUP_RANKS,
        )

    def joined(self, grid: Grid, begin_s: Floats, index: int) -> tuple[Floats, Floats]:
        """A phase, and the synchronisation that follows it, of pipelines that may meet their
        groups: (dp, pp) -> records (dp, 5, pp), and when each rank is done (dp, pp)."""
        plan = self._apart(grid, np.zeros_like(grid))
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        gate = graph.work(Kind.MARK, ranks, begin_s)
        ends = self._add_phase(graph, plan, gate, index)
        done = synchronise(graph, plan, ranks, ends)
        timeline = graph.run()
        done_s = np.empty(ranks.size)
        done_s[timeline.rank[done]] = timeline.end_s[done]
        return self._records(timeline, gate, ends, index), done_s[ranks]

    def _two_phases(self, pipelines: Grid) -> Floats:
        plan = self._apart(pipelines, _rows(pipelines))
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        start, turn = graph.work(Kind.MARK, ranks), graph.work(Kind.MARK, ranks)
        halfway = self._add_phase(graph, plan, start, 0)
        lag_s = np.zeros(ranks.shape[1])
        lag_s[-1] = EARLY_S
        graph.edge(halfway[:, :, None], turn[:, None, :], lag_s)
        ends = self._add_phase(graph, plan, turn, 1)
        timeline = graph.run()
        forward = self._records(timeline, start, halfway, 0)
        backward = self._records(timeline, turn, ends, 1)
        return np.stack([forward, backward - timeline.end_s[turn[:, None, -1:]]], axis=1)

    def _phase(self, pipelines: Grid, begin_s: Floats, index: int) -> Floats:
        plan = self._apart(pipelines, _rows(pipelines))
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        gate = graph.work(Kind.MARK, ranks, begin_s)
        ends = self._add_phase(graph, plan, gate, index)
        return self._records(graph.run(), gate, ends, index)

    def _add_phase(self, graph: Graph, plan: Plan, gate: Ids, index: int) -> Ids:
        """When each rank has ended it, (dp, pp)."""
        lanes = pipeline_lanes(plan, rank_lanes(plan), blocking=plan.system == "megatron")
        depth, count = plan.layout.pp, plan.num_micro_batches
        phases = wired(plan.schedule, depth, count, plan.num_chunks, lanes.blocking)
        seconds = compute_seconds(plan, graph.fabric)
        if len(phases) > 1:
            name = ("forward", "backward")[index]
            seconds = {name: seconds[name]}
        return add_pipelines(graph, lanes, phases[index], seconds, gate)

    def _records(self, timeline: Timeline, gate: Ids, ends: Ids, index: int) -> Floats:
        """The records of a phase, (dp, 5, pp)."""
        ranks = timeline.rank[ends]
        two = self.shape.schedule == "gpipe"
        kind = Kind.FORWARD if two and index == 0 else Kind.BACKWARD
        latest_s = np.zeros((3, ranks.size))
        first, last = (timeline.label == label for label in steady_labels(self.shape))
        of_kind, sent = timeline.kind == kind, timeline.kind == Kind.TRANSFER
        for row, chosen in zip(latest_s, (of_kind & first, of_kind & last, sent), strict=True):
            np.maximum.at(row, timeline.rank[chosen], timeline.end_s[chosen])
        until_s = timeline.end_s[gate]
        if index > 0:  # nothing keeps the first phase waiting
            until_s = until_s + _slack_s(timeline, gate)
        return np.stack([timeline.end_s[ends], *latest_s[:, ranks], until_s], axis=1)

    def _groups(self, stages: Ids, groups: Grid, ready_s: Floats) -> Floats:
        """Side by side, as if each were of a stage of its own."""
        plan = self._apart(groups.T, _rows(groups).T, stages)
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        done = synchronise(graph, plan, ranks, graph.work(Kind.MARK, ranks, ready_s.T))
        timeline = graph.run()
        found_s = np.full((2, ranks.size), np.inf)
        found_s[0, timeline.rank[done]] = timeline.end_s[done]
        sent = timeline.kind == Kind.COLLECTIVE
        np.minimum.at(found_s[1], timeline.rank[sent], timeline.start_s[sent])
        return found_s[:, ranks].transpose(2, 0, 1)

    def _apart(self, grid: Grid, part: Grid, stages: Ids | None = None) -> Plan:
        """The plan on these devices only, (dp, pp). part: (dp, pp), those that may share a node.
        stages: (pp,), that of each column; None = column i is stage i."""
        layout = Layout(pp=grid.shape[1], dp=grid.shape[0])
        ranks = rank_lanes(dataclasses.replace(self.shape, layout=layout))
        device, owner = np.empty((2, grid.size), np.int64)
        device[ranks], owner[ranks] = grid, part
        place = owner * (self._node.max() + 1) + self._node[device]
        _, first, own = np.unique(place, return_index=True, return_inverse=True)
        network = dataclasses.replace(
            self.shape.network,
            node_regions=tuple(self._region[device[first]].tolist()),
            nic_bps=tuple(self._nic_bps[device[first]].tolist()),
        )

        def columns(of_plan: tuple[Stage, ...]) -> tuple[Stage, ...]:
            return of_plan if stages is None else tuple(of_plan[stage] for stage in stages)

        return dataclasses.replace(
            self.shape,
            layout=layout,
            placement=tuple(range(grid.size)),
            device_nodes=tuple(own.tolist()),
            network=network,
            stages=columns(self.shape.stages),
            device_types=tuple(self._kind[device].tolist()) if self.shape.type_stages else (),
            type_stages=tuple(columns(of_type) for of_type in self.shape.type_stages),
        )


def _rows(parts: Grid) -> Grid:
    """(n, num_devices of each): which part each device is of."""
    return np.broadcast_to(np.arange(len(parts))[:, None], parts.shape)


def _in_pieces(timed: Callable[[slice], Floats], parts: Grid, num_ranks: int) -> Floats:
    """Of all parts, (n, num_devices of each), those of so many ranks in one graph."""
    step = max(1, num_ranks // parts.shape[1])
    return np.concatenate([timed(slice(i, i + step)) for i in range(0, len(parts), step)])


def _slack_s(timeline: Timeline, gate: Ids) -> Floats:
    """By how much each of `gate` could end later, if nothing else may change but tasks that take no
    time and wait for it: in its shape, seconds."""
    least_s = np.full(len(timeline.kind), np.inf)
    direct = _edges_of(timeline, gate)
    followers = timeline.after[direct]
    beyond = _edges_of(timeline, followers)
    np.minimum.at(least_s, timeline.before[beyond], _waits_s(timeline, beyond))
    further_s = np.where(timeline.amount[followers] <= 0.0, least_s[followers], 0.0)
    np.minimum.at(least_s, timeline.before[direct], _waits_s(timeline, direct) + further_s)
    found: Floats = least_s[gate]
    return found


def _edges_of(timeline: Timeline, tasks: Ids) -> Ids:
    chosen = np.zeros(len(timeline.kind), np.bool_)
    chosen[tasks] = True
    return np.flatnonzero(chosen[timeline.before])


def _waits_s(timeline: Timeline, edges: Ids) -> Floats:
    """How long what waits for an edge goes on to wait for others."""
    let_go_s = timeline.end_s[timeline.before[edges]] + timeline.lag_s[edges]
    waits_s: Floats = timeline.start_s[timeline.after[edges]] - let_go_s
    return waits_s
