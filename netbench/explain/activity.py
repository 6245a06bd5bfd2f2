"""The stretches of time in which ranks work or wait in a simulated iteration, for pictures."""

import numpy as np
from numpy.typing import NDArray

from netbench.explain.breakdown import nodes_of_ranks, timelines
from netbench.explain.causes import WORK, Cause
from netbench.plan.model import Plan
from netbench.simulator.graph import TaskKind
from netbench.simulator.iteration import Simulation
from netbench.systems import rank_lanes
from netbench.timelines import name_of_all, name_of_rank

Floats = NDArray[np.float64]


def activity(simulation: Simulation, max_rows: int = 24) -> dict[str, dict[str, Floats]]:
    """Return stretches by name and kind: (num_stretches, 2), start and end in seconds.

    Time runs over the parts of the iteration one after another, each once. Kinds: forward,
    backward, optimizer, collective (bytes that a rank sends or receives), waiting for compute,
    waiting for network (bytes), delay (of links, while nobody sends). At most `max_rows` ranks are
    shown: whole pipelines, first one per region.
    """
    shown = _shown_ranks(simulation.plan, max_rows)
    rows: dict[str, dict[str, list[Floats]]] = {
        rank_name(simulation.plan, rank): {} for rank in shown
    }
    names = dict(zip(shown, rows, strict=True))
    for tracer, offset_s, parts in timelines(simulation):
        timeline = tracer.timeline
        for kind in (*WORK, TaskKind.COLLECTIVE):
            tasks = np.flatnonzero((timeline.kind == kind) & (timeline.end_s > timeline.start_s))
            for rank in shown:
                of_rank = tasks[(timeline.rank[tasks] == rank) | (timeline.peer[tasks] == rank)]
                stretches = np.stack([timeline.start_s[of_rank], timeline.end_s[of_rank]], axis=1)
                rows[names[rank]].setdefault(kind.name.lower(), []).append(stretches + offset_s)
        waits = tracer.waits(parts[0].from_s, parts[-1].to_s)
        for rank, from_s, to_s, task, edge, ended_s in zip(*waits, strict=True):
            if rank not in names:
                continue
            for piece in tracer.walk(task, edge, ended_s, from_s):
                kind_name = _WAITS.get(Cause(piece.cause), "waiting for network")
                stretch = np.array([[piece.from_s, min(piece.to_s, to_s)]]) + offset_s
                rows[names[rank]].setdefault(kind_name, []).append(stretch)
    return {
        name: {kind: _merged(np.concatenate(parts)) for kind, parts in kinds.items()}
        for name, kinds in rows.items()
    }


_WAITS = {
    Cause.BUBBLE: "waiting for compute",
    Cause.OPTIMIZER: "waiting for compute",
    Cause.DELAY: "delay",
    Cause.COLLECTIVE_DELAY: "delay",
}
"""Cause of a stretch -> kind of waiting, where it is not for bytes."""


def rank_name(plan: Plan, rank: int) -> str:
    """Return region, node, rank and stage as text. If one rank represents all, return `every rank`,
    or `slowest rank` where devices differ."""
    return name_of_rank(plan, rank) if plan.has_pipelines else name_of_all(plan)


def _shown_ranks(plan: Plan, max_rows: int) -> list[int]:
    """Return whole pipelines, first one per region; only some stages of a very deep one."""
    if not plan.has_pipelines:
        return [0]
    lanes = rank_lanes(plan)
    regions = np.asarray(plan.network.node_regions)[nodes_of_ranks(plan)][lanes[:, 0]]
    firsts = [int(np.flatnonzero(regions == region)[0]) for region in dict.fromkeys(regions)]
    order = firsts + [lane for lane in range(len(lanes)) if lane not in firsts]
    stages = np.unique(
        np.linspace(0, lanes.shape[1] - 1, min(max_rows, lanes.shape[1])).astype(int)
    )
    chosen = np.sort(order[: max(1, max_rows // len(stages))])
    return [int(rank) for rank in lanes[chosen[:, None], stages].ravel()]


def _merged(stretches: Floats) -> Floats:
    """Return the stretches sorted, with those that touch or overlap joined."""
    ordered = stretches[np.argsort(stretches[:, 0], kind="stable")]
    if not len(ordered):
        return ordered
    reach = np.maximum.accumulate(ordered[:, 1])
    apart = np.append(True, ordered[1:, 0] > reach[:-1] + 1e-9)
    firsts = np.flatnonzero(apart)
    return np.stack([ordered[firsts, 0], reach[np.append(firsts[1:], len(ordered)) - 1]], axis=1)
