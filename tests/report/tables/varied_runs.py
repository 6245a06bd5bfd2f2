"""Simulated runs with invented times that differ in network and micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

from netbench.records import Record, Run, RunStore, canonical_text, content_hash, read_run
from netbench.scenario.model import Workload
from netbench.systems import find_variant
from netbench.systems.script import SCRIPT
from tests.runs import ENVIRONMENT


def varied_run(tmp_path: Path, settings: Sequence[tuple[str, str, int, float]]) -> Run:
    """Write and read a simulated run. settings: (variant, network, micro-batch, seconds)."""
    environment = replace(ENVIRONMENT, kernel="none", mode="sim", scale=1.0)
    with RunStore.create(
        tmp_path,
        scenario="case3",
        created=datetime(2026, 1, 2),
        command=["netbench"],
        environment=environment,
    ) as store:
        for variant, network, micro_batch, iteration_s in settings:
            workload = Workload(
                layers=24, hidden=2048, heads=16, sequence=2048, batch=1024, micro_batch=micro_batch
            )
            plan = {"iterations": 1, "variant": variant, "workload": asdict(workload)}
            if network:
                plan["network_name"] = network
            plan_hash = content_hash(canonical_text(plan))
            store.append_plan(plan_hash, plan)
            store.append_iteration(
                Record(
                    run_id=store.run_id,
                    plan_hash=plan_hash,
                    scenario="case3",
                    variant=variant,
                    system=find_variant(variant, script=variant == SCRIPT).system,
                    layers=24,
                    batch=1024,
                    seed=2022,
                    iteration=0,
                    warmup=False,
                    iteration_s=iteration_s,
                    source="simulated",
                )
            )
        store.append_verdict()
    return read_run(store.path)
