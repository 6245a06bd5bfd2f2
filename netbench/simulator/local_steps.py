"""Systems that average after work of their own: hivemind and diloco.

Each is seen from one rank, since all do the same. A collective is timed by itself, over warm
connections: nothing else is on the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from netbench.plan.model import Plan
from netbench.simulator.collectives import Collective, butterfly, ring_all_reduce
from netbench.simulator.fabric import Fabric
from netbench.simulator.graph import Graph, Ids, Kind, Timeline

AloneS = Callable[[Collective, float], float]
"""Seconds of a collective of so many bytes among all ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Simulated time, of which an iteration has `repeat`, on average."""

    name: str
    timeline: Timeline
    repeat: float


def hivemind(plan: Plan, fabric: Fabric, alone_s: AloneS) -> tuple[Stretch, ...]:
    """Micro-batches, averaging, update; or, delayed, micro-batches beside the averaging and update
    of those before."""
    (stage,) = plan.stages
    graph = Graph(fabric)
    computed = _micro_batches(graph, plan)
    averaging_s = alone_s(COLLECTIVES[plan.system], stage.gradient_bytes)
    averaged = graph.work(Kind.COLLECTIVE, 0, averaging_s)
    if not plan.staleness:
        graph.edge(computed, averaged)
    graph.edge(averaged, graph.work(Kind.OPTIMIZER, 0, stage.optimizer_s))
    return (Stretch(name="iteration", timeline=graph.run(), repeat=1.0),)


def diloco(plan: Plan, fabric: Fabric, alone_s: AloneS) -> tuple[Stretch, ...]:
    """An inner step per iteration, an outer step every `local_steps`."""
    (stage,) = plan.stages
    inner, outer = Graph(fabric), Graph(fabric)
    computed = _micro_batches(inner, plan)
    inner.edge(computed, inner.work(Kind.OPTIMIZER, 0, stage.optimizer_s))
    outer.work(Kind.COLLECTIVE, 0, alone_s(COLLECTIVES[plan.system], stage.gradient_bytes))
    return (
        Stretch(name="inner step", timeline=inner.run(), repeat=1.0),
        Stretch(name="outer step", timeline=outer.run(), repeat=1.0 / plan.local_steps),
    )


SYSTEMS: Mapping[str, Callable[[Plan, Fabric, AloneS], tuple[Stretch, ...]]] = {
    "hivemind": hivemind,
    "diloco": diloco,
}


COLLECTIVES: Mapping[str, Collective] = {"hivemind": butterfly, "diloco": ring_all_reduce}
"""What each averages with."""


def phases(plan: Plan, iteration_s: float) -> dict[str, float]:
    """Seconds as the trainers report them; what a late update hides is in no phase."""
    (stage,) = plan.stages
    forward_s = plan.num_micro_batches * stage.forward_s
    backward_s = plan.num_micro_batches * stage.backward_s
    optimizer_s = 0.0 if plan.staleness else stage.optimizer_s
    return {
        "forward_s": forward_s,
        "backward_s": backward_s,
        "sync_s": iteration_s - forward_s - backward_s - optimizer_s,
        "optimizer_s": optimizer_s,
    }


def _micro_batches(graph: Graph, plan: Plan) -> Ids:
    """All of an iteration, one after the other: the last backward pass."""
    (stage,) = plan.stages
    index = np.arange(plan.num_micro_batches)
    forward = graph.work(Kind.FORWARD, 0, stage.forward_s, index)
    backward = graph.work(Kind.BACKWARD, 0, stage.backward_s, index)
    graph.edge(forward, backward)
    graph.edge(backward[:-1], forward[1:])
    return backward[-1:]
