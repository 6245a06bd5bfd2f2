"""A collective plan to change at will."""

from __future__ import annotations

from typing import Any

from netbench.plan.benchmark import CollectivePlan, uniform_network


def plan_of(**changes: Any) -> CollectivePlan:
    """All-reduce of 1 MiB over 4 nodes, unless told otherwise."""
    fields: dict[str, Any] = {
        "op": "all-reduce",
        "num_nodes": 4,
        "payload_bytes": 1 << 20,
        "backend": "gloo",
        "network": uniform_network(4, one_way_delay_s=0.005, bandwidth_bps=1e9),
        "iterations": 3,
        "warmup_iterations": 1,
    }
    return CollectivePlan(**fields | changes)
