"""Time the segments of systems whose ranks all do the same (`systems.iteration`).

One rank's tasks are simulated. A collective takes as long as it would alone (`alone_s`).
"""

from collections.abc import Callable

import numpy as np

from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, Ids, TaskKind, TaskTimeline
from netbench.systems.iteration import (
    BACKWARD,
    COLLECTIVE,
    FORWARD,
    OPTIMIZER,
    WAIT,
    Call,
    Segment,
    Task,
)

KINDS = {
    FORWARD: TaskKind.FORWARD,
    BACKWARD: TaskKind.BACKWARD,
    OPTIMIZER: TaskKind.OPTIMIZER,
    COLLECTIVE: TaskKind.COLLECTIVE,
    WAIT: TaskKind.MARK,
}


def time_segment(segment: Segment, fabric: Fabric, call_s: Callable[[Call], float]) -> TaskTimeline:
    """Time the tasks of a segment, as rank 0's. call_s: seconds of a call without contention."""

    def seconds(task: Task) -> float:
        return task.seconds + sum(call_s(call) + call.host_s for call in task.calls)

    graph, tasks = Graph(fabric), segment.tasks
    graph.work(
        [KINDS[task.kind] for task in tasks],
        0,
        [seconds(task) for task in tasks],
        [task.label for task in tasks],
    )
    edges = [(before, index) for index, task in enumerate(tasks) for before in task.after]
    if edges:
        graph.edge(*zip(*edges, strict=True))
    return graph.run()


def groups_of(call: Call, num_ranks: int) -> Ids:
    """Return the ranks of every group that makes a call, (num_groups, group_size)."""
    groups = np.arange(num_ranks).reshape(-1, call.group_size)
    return groups.T if call.across else groups
