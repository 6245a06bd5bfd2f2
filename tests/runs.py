"""Recorded runs with invented times: nothing in them was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from netbench.records import Environment, HostSample, Record, RunStore, canonical_text, content_hash
from netbench.scenario.model import Workload

ENVIRONMENT = Environment(
    kernel="6.12.48-netbench",
    mode="guest-virtual",
    scale=1000.0,
    versions={"python": "3.11.2", "torch": "2.13.0", "iproute2": "6.1.0"},
    machine="a test, 2 cores, 8 GiB",
)
CHECKS = [{"quantity": "rtt_s", "passed": True}] * 8

Times = dict[tuple[str, int, int, int], list[float]]
"""(variant, layers, batch, seed) -> seconds of the warm-up iteration, then of measured ones."""

CASE3_TIMES: Times = {
    ("dtfm-scheduled", 24, 1024, 2022): [17.0, 16.0, 16.1],
    ("dtfm-random", 24, 1024, 2022): [27.0, 26.0, 26.2],
    ("dtfm-random", 24, 1024, 2023): [27.0, 26.4, 26.4],
    ("megatron-p8", 24, 1024, 2022): [24.0, 23.0, 23.0],
    ("zero3", 24, 1024, 2022): [170.0, 168.0, 168.0],
}


def write_run(
    results: Path,
    times: Times,
    *,
    scenario: str = "case3",
    hidden: int = 2048,
    reasons: Iterable[str] = (),
    verdict: bool = True,
    environment: Environment = ENVIRONMENT,
    created: datetime = datetime(2026, 1, 2, 3, 4, 5),
    source: str = "emulated",
    hosts: Sequence[tuple[HostSample, ...]] = (),
) -> Path:
    """Write a run to `results` with one plan per entry of `times`; return its record file.

    hosts: samples of each iteration of a plan; none = of none.
    """
    with RunStore.create(
        results,
        scenario=scenario,
        created=created,
        command=["netbench", "run", scenario],
        environment=environment,
    ) as store:
        store.append_probe({"tolerance": 0.02, "checks": CHECKS, "reasons": list(reasons)})
        for (variant, layers, batch, seed), seconds in times.items():
            workload = Workload(layers=layers, hidden=hidden, heads=16, sequence=2048, batch=batch)
            plan = {
                "iterations": len(seconds),
                "seed": seed,
                "variant": variant,
                "workload": asdict(workload),
            }
            plan_hash = content_hash(canonical_text(plan))
            store.append_plan(plan_hash, plan)
            for iteration, iteration_s in enumerate(seconds):
                store.append_iteration(
                    Record(
                        run_id=store.run_id,
                        plan_hash=plan_hash,
                        scenario=scenario,
                        variant=variant,
                        system=variant.split("-")[0],
                        layers=layers,
                        batch=batch,
                        seed=seed,
                        iteration=iteration,
                        warmup=iteration == 0,
                        iteration_s=iteration_s,
                        source=source,
                        hosts=hosts[iteration] if hosts else (),
                    )
                )
        if verdict:
            store.append_verdict()
    return store.path
