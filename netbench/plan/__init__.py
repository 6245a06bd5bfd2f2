"""Scenario + variant + workload + seed -> Plan: the fully resolved experiment.

A plan is pure data: what is simulated, emulated on one machine or run on a cluster is the same
JSON, and its hash is the provenance of every record.

`model` is the data, `build` makes it, `serial` writes, reads and hashes it.
"""

from netbench.plan.build import (
    VARIANTS,
    Variant,
    build_plan,
    build_plans,
    choose_scale,
    describe_plan,
    iteration_bytes,
)
from netbench.plan.model import PLAN_SCHEMA_VERSION, Layout, Plan, Transport
from netbench.plan.serial import plan_from_json, plan_hash, plan_to_json
from netbench.workload.costs import Stage

__all__ = [
    "PLAN_SCHEMA_VERSION",
    "VARIANTS",
    "Layout",
    "Plan",
    "Stage",
    "Transport",
    "Variant",
    "build_plan",
    "build_plans",
    "choose_scale",
    "describe_plan",
    "iteration_bytes",
    "plan_from_json",
    "plan_hash",
    "plan_to_json",
]
