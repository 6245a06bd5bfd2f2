"""What ranks do in a simulated iteration, as stretches of time for a picture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from netbench.plan.model import Plan
from netbench.plan.timeline import name_of_all, name_of_rank
from netbench.simulator.explain import nodes_of_ranks, timelines
from netbench.simulator.graph import Kind
from netbench.simulator.simulate import Simulation, rank_lanes
from netbench.simulator.trail import WORK, Cause

Floats = NDArray[np.float64]


def activity(simulation: Simulation, max_rows: int = 24) -> dict[str, dict[str, Floats]]:
    """What ranks do, for a picture: name -> kind -> (num_stretches, 2), from and to in seconds.

    The time is that of the parts one after the other, each once. Kinds: forward, backward,
    optimizer, collective (bytes that a rank sends or gets), waiting for compute, waiting for
    network.
    At most `max_rows` ranks: whole pipelines, of every region first.
    """
    shown = _shown_ranks(simulation.plan, max_rows)
    rows: dict[str, dict[str, list[Floats]]] = {
        rank_name(simulation.plan, rank): {} for rank in shown
    }
    names = dict(zip(shown, rows, strict=True))
    for trail, offset_s, parts in timelines(simulation):
        timeline = trail.timeline
        for kind in (*WORK, Kind.COLLECTIVE):
            found = np.flatnonzero((timeline.kind == kind) & (timeline.end_s > timeline.start_s))
            for rank in shown:
                mine = found[(timeline.rank[found] == rank) | (timeline.peer[found] == rank)]
                stretches = np.stack([timeline.start_s[mine], timeline.end_s[mine]], axis=1)
                rows[names[rank]].setdefault(kind.name.lower(), []).append(stretches + offset_s)
        waits = trail.waits(parts[0].from_s, parts[-1].to_s)
        columns = (waits.rank, waits.from_s, waits.to_s, waits.task, waits.edge, waits.ended_s)
        for rank, from_s, to_s, task, edge, ended_s in zip(*columns, strict=True):
            if rank not in names:
                continue
            for piece in trail.walk(task, edge, ended_s, from_s):
                kind_name = "waiting for " + (
                    "compute" if piece.cause in (Cause.BUBBLE, Cause.OPTIMIZER) else "network"
                )
                stretch = np.array([[piece.from_s, min(piece.to_s, to_s)]]) + offset_s
                rows[names[rank]].setdefault(kind_name, []).append(stretch)
    return {
        name: {kind: _merged(np.concatenate(parts)) for kind, parts in kinds.items()}
        for name, kinds in rows.items()
    }


def rank_name(plan: Plan, rank: int) -> str:
    """Region, node, rank and stage, for a person; `every rank`, or `slowest rank` where devices
    differ, where one stands for all."""
    return name_of_all(plan) if plan.schedule == "none" else name_of_rank(plan, rank)


def _shown_ranks(plan: Plan, max_rows: int) -> list[int]:
    """Whole pipelines, the first of every region, then more; some stages of a very deep one."""
    if plan.schedule == "none":
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
    """Sorted, those that touch or overlap joined."""
    ordered = stretches[np.argsort(stretches[:, 0], kind="stable")]
    if not len(ordered):
        return ordered
    reach = np.maximum.accumulate(ordered[:, 1])
    apart = np.append(True, ordered[1:, 0] > reach[:-1] + 1e-9)
    firsts = np.flatnonzero(apart)
    return np.stack([ordered[firsts, 0], reach[np.append(firsts[1:], len(ordered)) - 1]], axis=1)
