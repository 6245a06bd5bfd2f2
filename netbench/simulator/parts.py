"""An iteration's parts, each simulated as if it were alone: pipelines, and data-parallel groups.

Many are timed in one graph, each on nodes of its own, so that they share nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from netbench.placement.problem import Floats, Grid
from netbench.plan.model import Layout, Plan
from netbench.simulator.graph import Graph, Ids, Kind, Timeline
from netbench.simulator.pipeline import add_pipelines
from netbench.simulator.profile import load_transport
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

    def __init__(self, plan: Plan) -> None:
        self.shape = shape(plan)
        self._transport = load_transport(plan.backend)
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
        begin_s = np.zeros((2, *pipelines.shape))
        begin_s[1, :, -1] = EARLY_S
        phases = [self.phase(pipelines, begin_s[index], index) for index in range(2)]
        records: Floats = np.stack(phases, axis=1) - np.array([0.0, EARLY_S])[:, None, None]
        return records

    def phase(self, pipelines: Grid, begin_s: Floats, index: int) -> Floats:
        """(n, pp) -> (n, 5, pp): records of a phase. begin_s: (n, pp), when each rank begins it."""
        part = np.broadcast_to(np.arange(len(pipelines))[:, None], pipelines.shape)
        plan = self._apart(pipelines, part)
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        lanes = pipeline_lanes(plan, ranks, blocking=plan.system == "megatron")
        depth, count = plan.layout.pp, plan.num_micro_batches
        phases = wired(plan.schedule, depth, count, plan.num_chunks, lanes.blocking)
        seconds, kind = compute_seconds(plan, graph.fabric), Kind.BACKWARD
        if len(phases) > 1:
            name, kind = (("forward", Kind.FORWARD), ("backward", Kind.BACKWARD))[index]
            seconds = {name: seconds[name]}
        gate = graph.work(Kind.MARK, ranks, begin_s)
        ends = add_pipelines(graph, lanes, phases[index], seconds, gate)
        timeline = graph.run()
        latest = begin_s + _slack_s(timeline, gate)
        return np.stack([*self._moments_s(timeline, kind, ranks, ends), latest], axis=1)

    def groups(self, stage: int, groups: Grid) -> Floats:
        """(n, dp) -> (n, dp): seconds until each member has synchronised and updated `stage`, if
        all could begin at 0."""
        ready_s = np.zeros(groups.T.shape)
        return self._synchronised(groups.T, ready_s, stage)[0].T

    def synchronised(self, grid: Grid, ready_s: Floats) -> tuple[Floats, Floats]:
        """All groups of a grid, (dp, pp): when each rank is done, and when it begins to send.
        ready_s: (dp, pp), when it may."""
        return self._synchronised(grid, ready_s, None)

    def _synchronised(
        self, grid: Grid, ready_s: Floats, stage: int | None
    ) -> tuple[Floats, Floats]:
        plan = self._apart(grid, np.broadcast_to(np.arange(grid.shape[1]), grid.shape), stage)
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        done = synchronise(graph, plan, ranks, graph.work(Kind.MARK, ranks, ready_s))
        timeline = graph.run()
        done_s, first_s = np.empty(ranks.size), np.full(ranks.size, np.inf)
        done_s[timeline.rank[done]] = timeline.end_s[done]
        sent = timeline.path >= 0
        np.minimum.at(first_s, timeline.rank[sent], timeline.start_s[sent])
        return done_s[ranks], first_s[ranks]

    def _moments_s(self, timeline: Timeline, kind: Kind, ranks: Ids, ends: Ids) -> list[Floats]:
        """FINISH, FIRST, LAST and LEFT, each in the shape of `ranks`."""
        latest = np.zeros((3, ranks.size))
        first, last = (timeline.label == label for label in steady_labels(self.shape))
        of_kind, sent = timeline.kind == kind, timeline.path >= 0
        for row, chosen in zip(latest, (of_kind & first, of_kind & last, sent), strict=True):
            np.maximum.at(row, timeline.rank[chosen], timeline.end_s[chosen])
        return [timeline.end_s[ends], *latest[:, ranks]]

    def _apart(self, grid: Grid, part: Grid, stage: int | None = None) -> Plan:
        """The plan on these devices only, (dp, pp). part: (dp, pp), those that may share a node.
        stage: that all columns are of, None = column i is stage i."""
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

        def columns(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
            return stages if stage is None else (stages[stage],) * layout.pp

        return dataclasses.replace(
            self.shape,
            layout=layout,
            placement=tuple(range(grid.size)),
            device_nodes=tuple(own.tolist()),
            network=network,
            stages=columns(self.shape.stages),
            device_types=tuple(self._kind[device].tolist()) if self.shape.type_stages else (),
            type_stages=tuple(columns(stages) for stages in self.shape.type_stages),
        )


def _slack_s(timeline: Timeline, gate: Ids) -> Floats:
    """By how much each of `gate` could end later, if nothing else may change but tasks that take no
    time and wait for it: in its shape, seconds."""
    before, after = timeline.before, timeline.after
    slack_s = timeline.start_s[after] - (timeline.end_s[before] + timeline.lag_s)
    beyond_s = np.full(len(timeline.kind), np.inf)
    np.minimum.at(beyond_s, before, slack_s)
    through_s = slack_s + np.where(timeline.amount[after] <= 0.0, beyond_s[after], 0.0)
    least_s = np.full(len(timeline.kind), np.inf)
    np.minimum.at(least_s, before, through_s)
    found: Floats = least_s[gate]
    return found
