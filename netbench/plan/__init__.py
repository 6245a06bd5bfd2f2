"""Scenario + variant + workload + seed -> Plan: the fully resolved experiment.

A plan is pure data: what is simulated, emulated on one machine or run on a cluster is the same
JSON, and its hash is the provenance of every record.

`variants` reads the names of systems, `model` is the data, `build` makes it, `checks` says what it
cannot be, `serial` writes, reads and hashes it, `describe` puts it into a line; `traffic` says what
it asks of the network, and so at what scale it is emulated, `memory` what of the devices.

What simulator and trainers both go by: `schedules` has what each stage of a pipeline does, `tensor`
who shares a stage's layers, `zero3` its units and groups, `buckets` those of ddp, `timeline` what
ranks did and when. Other plans: `replicas` of models by name, `command` for scripts, `collective`
for one collective (`experiment` is a plan of either kind), `what_if` for the same plan on another
network.
"""

from netbench.plan.build import build_plan, build_plans, full_size_plan
from netbench.plan.describe import describe_plan
from netbench.plan.memory import check_memory, memory_warnings, plan_memory
from netbench.plan.model import PLAN_SCHEMA_VERSION, Layout, Plan, Transport
from netbench.plan.serial import plan_from_json, plan_hash, plan_to_json
from netbench.plan.traffic import choose_scale, iteration_bytes
from netbench.plan.variants import VARIANTS, Variant, find_variant, placed_name, unplaced_name
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
    "check_memory",
    "choose_scale",
    "describe_plan",
    "find_variant",
    "full_size_plan",
    "iteration_bytes",
    "memory_warnings",
    "placed_name",
    "plan_from_json",
    "plan_hash",
    "plan_memory",
    "plan_to_json",
    "unplaced_name",
]
