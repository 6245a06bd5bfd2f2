"""A recorded run with a trace, without running anything."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from netbench.plan.model import Plan
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.records import Environment, RunStore
from netbench.timelines import Slice, Timeline, trace_path, write_timeline


def run_of(
    folder: Path,
    plan: Plan,
    iteration_s: float,
    slices: tuple[Slice, ...],
    *,
    source: str = "emulated",
    clock_error_s: float = 0.0,
) -> Path:
    """Write a run with this trace and return its folder."""
    environment = Environment(
        kernel="6.1", mode="guest-virtual", scale=plan.scale, versions={}, machine="test"
    )
    with RunStore.create(
        folder / "results",
        scenario=plan.scenario,
        created=datetime(2026, 1, 2),
        command=["netbench"],
        environment=environment,
    ) as store:
        store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
    found = store.path.parent
    trace_path(found, plan_hash(plan)).parent.mkdir()
    timeline = Timeline(
        plan=plan_hash(plan),
        source=source,
        iteration_s=iteration_s,
        slices=slices,
        clock_error_s=clock_error_s,
    )
    write_timeline(trace_path(found, plan_hash(plan)), plan, timeline)
    return found
