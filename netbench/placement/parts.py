"""Simulate parts of an iteration, pipelines and data-parallel groups, each as if it were alone.

Many parts are simulated in one graph, each on separate nodes so that they share nothing.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from netbench.placement.problem import Floats, Grid
from netbench.plan.model import Layout, Plan
from netbench.simulator.graph import Graph, Ids, TaskKind, TaskTimeline
from netbench.simulator.iteration import (
    compute_seconds,
    fabric_of,
    pipeline_lanes,
    shape,
    steady_labels,
    synchronise,
    wired,
)
from netbench.simulator.pipeline import add_pipelines
from netbench.systems import rank_lanes
from netbench.transport.profile import TransportProfile
from netbench.workload.costs import Stage

PIPELINE_RANKS, GROUP_RANKS = 64, 256
"""Ranks per graph. More graphs cost more to set up; larger ones fit the processor's caches less
well, and contention in one pipeline re-runs its whole graph."""

EARLY_S = 64.0
"""Delay of a pipeline's last stage at the start of GPipe's backward passes, seconds. A barrier
releases no two ranks further apart than this."""

FINISH, FIRST, LAST, LEFT, LATEST = range(5)
"""Rows of a record, seconds, by stage: the end of a phase; the ends of two micro-batches between
which it repeats; the time at which its last bytes have left; the latest start without effect.
"""


class Parts:
    """Simulates parts of iterations of a plan with pipelines and tp = 1, ignoring its placement.

    shape: the plan, with the number of micro-batches that are simulated.
    """

    def __init__(self, plan: Plan, transport: TransportProfile) -> None:
        self.shape = shape(plan)
        self._transport = transport
        network = plan.network
        self._node = np.asarray(plan.device_nodes)
        self._region = np.asarray(network.node_regions)[self._node]
        self._nic_bps = np.asarray(network.nic_bps)[self._node]
        self._host_bps = np.asarray(network.host_limits_bps)[self._node]
        self._kind = np.asarray(plan.device_types or [0] * len(self._node))

    def pipelines(self, pipelines: Grid) -> Floats:
        """Return records of all phases: (n, pp) -> (n, num_phases, 5, pp).

        Seconds count from when all stages may begin the phase; for GPipe's second phase, from when
        the last stage may, the others being earlier.
        """
        if not self.shape.has_turn:
            return self.phase(pipelines, np.zeros(pipelines.shape), 0)[:, None]
        return _in_pieces(lambda rows: self._two_phases(pipelines[rows]), pipelines, PIPELINE_RANKS)

    def phase(self, pipelines: Grid, begin_s: Floats, index: int) -> Floats:
        """Return records of a phase: (n, pp) -> (n, 5, pp). begin_s: (n, pp), of each rank."""
        return _in_pieces(
            lambda rows: self._phase(pipelines[rows], begin_s[rows], index),
            pipelines,
            PIPELINE_RANKS,
        )

    def groups(self, stages: Ids, groups: Grid, ready_s: Floats) -> Floats:
        """Return when each member has updated its stage, and when it begins to send: (n, dp) ->
        (n, 2, dp). stages: (n,), of each group. ready_s: (n, dp), when each member may begin."""
        return _in_pieces(
            lambda rows: self._groups(stages[rows], groups[rows], ready_s[rows]),
            groups,
            GROUP_RANKS,
        )

    def joined(self, grid: Grid, begin_s: Floats, index: int) -> tuple[Floats, Floats]:
        """Simulate a phase together with the synchronisation that follows it, where both may share
        links: (dp, pp) -> records (dp, 5, pp), and when each rank is done (dp, pp)."""
        plan = self._apart(grid, np.zeros_like(grid))
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        gate = graph.work(TaskKind.MARK, ranks, begin_s)
        ends = self._add_phase(graph, plan, gate, index)
        done = synchronise(graph, plan, ranks, ends)
        timeline = graph.run()
        done_s = np.empty(ranks.size)
        done_s[timeline.rank[done]] = timeline.end_s[done]
        return self._records(timeline, gate, ends, index), done_s[ranks]

    def _two_phases(self, pipelines: Grid) -> Floats:
        plan = self._apart(pipelines, _rows(pipelines))
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        start, turn = graph.work(TaskKind.MARK, ranks), graph.work(TaskKind.MARK, ranks)
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
        gate = graph.work(TaskKind.MARK, ranks, begin_s)
        ends = self._add_phase(graph, plan, gate, index)
        return self._records(graph.run(), gate, ends, index)

    def _add_phase(self, graph: Graph, plan: Plan, gate: Ids, index: int) -> Ids:
        """Add a phase to a graph; return the tasks that end it, (dp, pp)."""
        lanes = dataclasses.replace(pipeline_lanes(plan, rank_lanes(plan)), sums_loss=False)
        depth, count = plan.layout.pp, plan.num_micro_batches
        phases = wired(plan.schedule, depth, count, plan.num_chunks, lanes.blocking)
        seconds = compute_seconds(plan, graph.fabric)
        if len(phases) > 1:
            name = ("forward", "backward")[index]
            seconds = {name: seconds[name]}
        return add_pipelines(graph, lanes, phases[index], seconds, gate)

    def _records(self, timeline: TaskTimeline, gate: Ids, ends: Ids, index: int) -> Floats:
        """Return the records of a phase, (dp, 5, pp)."""
        ranks = timeline.rank[ends]
        two = self.shape.has_turn
        kind = TaskKind.FORWARD if two and index == 0 else TaskKind.BACKWARD
        latest_s = np.zeros((3, ranks.size))
        first, last = (timeline.label == label for label in steady_labels(self.shape))
        of_kind, sent = timeline.kind == kind, timeline.kind == TaskKind.TRANSFER
        for row, chosen in zip(latest_s, (of_kind & first, of_kind & last, sent), strict=True):
            np.maximum.at(row, timeline.rank[chosen], timeline.end_s[chosen])
        until_s = timeline.end_s[gate]
        if index > 0:  # the first phase waits for nothing
            until_s = until_s + _slack_s(timeline, gate)
        return np.stack([timeline.end_s[ends], *latest_s[:, ranks], until_s], axis=1)

    def _groups(self, stages: Ids, groups: Grid, ready_s: Floats) -> Floats:
        """Simulate groups side by side, as stages of one plan."""
        plan = self._apart(groups.T, _rows(groups).T, stages)
        graph, ranks = Graph(fabric_of(plan, self._transport)), rank_lanes(plan)
        done = synchronise(graph, plan, ranks, graph.work(TaskKind.MARK, ranks, ready_s.T))
        timeline = graph.run()
        times_s = np.full((2, ranks.size), np.inf)
        times_s[0, timeline.rank[done]] = timeline.end_s[done]
        sent = timeline.kind == TaskKind.COLLECTIVE
        np.minimum.at(times_s[1], timeline.rank[sent], timeline.start_s[sent])
        return times_s[:, ranks].transpose(2, 0, 1)

    def _apart(self, grid: Grid, part: Grid, stages: Ids | None = None) -> Plan:
        """Return the plan on these devices only, (dp, pp). part: (dp, pp), the part of each device;
        only devices of one part share nodes. stages: (pp,), of each column; None = 0 to pp - 1."""
        layout = Layout(pp=grid.shape[1], dp=grid.shape[0])
        ranks = rank_lanes(dataclasses.replace(self.shape, layout=layout))
        device, owner = np.empty((2, grid.size), np.int64)
        device[ranks], owner[ranks] = grid, part
        place = owner * (self._node.max() + 1) + self._node[device]
        _, first, node = np.unique(place, return_index=True, return_inverse=True)
        whole, hosts = self.shape.network, self._host_bps[device[first]].tolist()
        network = dataclasses.replace(
            whole,
            node_regions=tuple(self._region[device[first]].tolist()),
            nic_bps=tuple(self._nic_bps[device[first]].tolist()),
            host_bps=tuple(hosts) if whole.host_bps else (),
        )

        def columns(of_plan: tuple[Stage, ...]) -> tuple[Stage, ...]:
            return of_plan if stages is None else tuple(of_plan[stage] for stage in stages)

        return dataclasses.replace(
            self.shape,
            layout=layout,
            placement=tuple(range(grid.size)),
            device_nodes=tuple(node.tolist()),
            network=network,
            stages=columns(self.shape.stages),
            device_types=tuple(self._kind[device].tolist()) if self.shape.type_stages else (),
            type_stages=tuple(columns(of_type) for of_type in self.shape.type_stages),
        )


def _rows(parts: Grid) -> Grid:
    """Return the index of each device's part, in the shape of `parts`."""
    return np.broadcast_to(np.arange(len(parts))[:, None], parts.shape)


def _in_pieces(timed: Callable[[slice], Floats], parts: Grid, num_ranks: int) -> Floats:
    """Time parts, (n, devices per part), with at most `num_ranks` ranks per graph."""
    step = max(1, num_ranks // parts.shape[1])
    return np.concatenate([timed(slice(i, i + step)) for i in range(0, len(parts), step)])


def _slack_s(timeline: TaskTimeline, gate: Ids) -> Floats:
    """Return how much later each task of `gate` could end without moving any other task, except
    tasks of no duration that wait for it: seconds, in the shape of `gate`."""
    least_s = np.full(len(timeline.kind), np.inf)
    direct = _edges_of(timeline, gate)
    followers = timeline.after[direct]
    beyond = _edges_of(timeline, followers)
    np.minimum.at(least_s, timeline.before[beyond], _waits_s(timeline, beyond))
    further_s = np.where(timeline.amount[followers] <= 0.0, least_s[followers], 0.0)
    np.minimum.at(least_s, timeline.before[direct], _waits_s(timeline, direct) + further_s)
    return least_s[gate]


def _edges_of(timeline: TaskTimeline, tasks: Ids) -> Ids:
    chosen = np.zeros(len(timeline.kind), np.bool_)
    chosen[tasks] = True
    return np.flatnonzero(chosen[timeline.before])


def _waits_s(timeline: TaskTimeline, edges: Ids) -> Floats:
    """Return how long the task after each edge still waits for other edges, seconds."""
    let_go_s = timeline.end_s[timeline.before[edges]] + timeline.lag_s[edges]
    return timeline.start_s[timeline.after[edges]] - let_go_s
