"""Runs in virtual time, written here, for the tests of pages."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from netbench.plan.experiment import experiment_record
from netbench.plan.model import Plan
from netbench.plan.serial import plan_hash, plan_to_json
from netbench.records import Environment, Run, RunStore, read_run


def record(
    folder: Path,
    plans: list[Plan],
    seconds: float,
    parts_s: tuple[float, ...] = (),
    scenario: str = "case3",
) -> Run:
    """Record a warm-up and an iteration of `seconds` of every plan."""
    environment = Environment(
        kernel="6.12", mode="guest-virtual", scale=1.0, versions={}, machine="a laptop"
    )
    with RunStore.create(
        folder, scenario=scenario, created=datetime(2026, 1, 2), command=[], environment=environment
    ) as store:
        for plan in plans:
            store.append_plan(plan_hash(plan), json.loads(plan_to_json(plan)))
            for iteration in range(2):
                warmup = iteration == 0
                store.append_iteration(
                    experiment_record(
                        plan, store.run_id, 1.0 if warmup else seconds, "emulated",
                        iteration=iteration, warmup=warmup, parts_s=parts_s,
                    )
                )  # fmt: skip
    return read_run(store.path)
