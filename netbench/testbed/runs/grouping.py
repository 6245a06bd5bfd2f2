"""Plans that share a session."""

import math
from collections.abc import Sequence
from typing import Any

from netbench.plan.experiment import Experiment, is_elastic, runs_script
from netbench.plan.model import VIRTUAL, Plan
from netbench.testbed.effort import emulation_s
from netbench.testbed.network import network_of


def dealt(plans: Sequence[Experiment], num_sessions: int) -> list[list[Experiment]]:
    """Return the plans of each session, in the order given.

    Plans that may share sessions are divided among at most `num_sessions` of similar length: fewer
    where plans on other networks need some too.
    """
    sessions: list[list[Experiment]] = [[plan] for plan in plans if not _may_follow(plan)]
    groups: dict[Any, list[Plan]] = {}
    for plan in plans:
        if isinstance(plan, Plan) and _may_follow(plan):
            key = (*network_of(plan), plan.node_names, plan.device_nodes)
            groups.setdefault(key, []).append(plan)
    total_s = sum(_host_s(plan) for group in groups.values() for plan in group)
    for group in groups.values():
        part = sum(map(_host_s, group)) / total_s
        count = max(1, math.ceil(num_sessions * part - 0.5))
        loads_s, hands = [0.0] * count, [set[Plan]() for _ in range(count)]
        for plan in sorted(group, key=_host_s, reverse=True):
            least = loads_s.index(min(loads_s))
            loads_s[least] += _host_s(plan)
            hands[least].add(plan)
        sessions += [[plan for plan in group if plan in hand] for hand in hands if hand]
    return sorted(sessions, key=lambda session: plans.index(session[0]))


def _may_follow(plan: Experiment) -> bool:
    """Return whether a plan may run after others in a session: no connection remembers them."""
    return (
        isinstance(plan, Plan)
        and plan.compute == VIRTUAL
        and not (plan.network.tcp.acts or is_elastic(plan) or runs_script(plan))
    )


def _host_s(plan: Plan) -> float:
    """Return the host time of all iterations of a plan, seconds."""
    return plan.iterations * sum(map(emulation_s, plan.shortened()))
