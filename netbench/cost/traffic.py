"""Bytes between the machines of a plan in an iteration."""

import numpy as np
from numpy.typing import NDArray

from netbench.plan.model import Plan
from netbench.systems import system_of
from netbench.systems.rounds import time_round


def node_bytes(plan: Plan) -> NDArray[np.float64]:
    """Return the payload of an iteration, (num_nodes, num_nodes), [src, dst]; the diagonal is 0.

    Raises PlanError for a plan that the simulator has no rules for.
    """
    if system_of(plan).has_peers:
        pairs = time_round(plan).pair_bytes
    else:
        # numba: only where an iteration is simulated
        from netbench.explain.usage import pair_bytes
        from netbench.simulator import simulate

        pairs = pair_bytes(simulate(plan))
    nodes = np.array([plan.device_nodes[device] for device in plan.placement])
    total = np.zeros((len(plan.node_names),) * 2)
    np.add.at(total, (nodes[:, None], nodes[None, :]), pairs)
    np.fill_diagonal(total, 0.0)
    return total


def simulated_s(plan: Plan) -> float:
    """Return the seconds of an iteration."""
    if system_of(plan).has_peers:
        return time_round(plan).round_s
    from netbench.simulator import simulate

    return simulate(plan).iteration_s


def samples_of(plan: Plan) -> float:
    """Return the samples (a GPT's sequences) of an iteration."""
    return time_round(plan).samples if system_of(plan).has_peers else float(plan.workload.batch)
