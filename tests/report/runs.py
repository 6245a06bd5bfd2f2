"""Made-up runs for the report's tests. The times in them were never measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

from netbench.records import Environment, Record, Run, RunStore, read_run
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
"""(variant, layers, batch, seed) -> seconds of the warm-up, then of measured iterations."""

CASE3: Times = {
    ("dtfm-scheduled", 24, 1024, 2022): [17.0, 16.0, 16.1],
    ("dtfm-random", 24, 1024, 2022): [27.0, 26.0, 26.2],
    ("dtfm-random", 24, 1024, 2023): [27.0, 26.4, 26.4],
    ("megatron-p8", 24, 1024, 2022): [24.0, 23.0, 23.0],
    ("zero3", 24, 1024, 2022): [170.0, 168.0, 168.0],
}


def write(
    results: Path,
    times: Times,
    *,
    scenario: str = "case3",
    hidden: int = 2048,
    reasons: Iterable[str] = (),
    verdict: bool = True,
    environment: Environment = ENVIRONMENT,
    created: datetime = datetime(2026, 1, 2, 3, 4, 5),
) -> Path:
    """A run in `results` with one plan per entry of `times`; returns its record file."""
    reasons = list(reasons)
    with RunStore.create(
        results,
        scenario=scenario,
        created=created,
        command=["netbench", "run", scenario],
        environment=environment,
    ) as store:
        store.append_probe({"tolerance": 0.02, "checks": CHECKS, "reasons": reasons})
        for (variant, layers, batch, seed), seconds in times.items():
            workload = Workload(layers=layers, hidden=hidden, heads=16, sequence=2048, batch=batch)
            plan_hash = f"{variant}-{layers}-{batch}-{seed}"
            store.append_plan(plan_hash, {"iterations": len(seconds), "workload": asdict(workload)})
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
                        source="emulated",
                    )
                )
        if verdict:
            store.append_verdict(trustworthy=not reasons, reasons=reasons)
    return store.path


def varied(tmp_path: Path, settings: Sequence[tuple[str, str, int, float]]) -> Run:
    """A simulated run; settings: (variant, network, micro-batch, seconds)."""
    environment = replace(ENVIRONMENT, kernel="none", mode="sim", scale=1.0)
    with RunStore.create(
        tmp_path,
        scenario="case3",
        created=datetime(2026, 1, 2),
        command=["netbench"],
        environment=environment,
    ) as store:
        for index, (variant, network, micro_batch, iteration_s) in enumerate(settings):
            workload = Workload(
                layers=24, hidden=2048, heads=16, sequence=2048, batch=1024, micro_batch=micro_batch
            )
            plan = {"iterations": 1, "workload": asdict(workload)}
            if network:
                plan["network_name"] = network
            store.append_plan(str(index), plan)
            store.append_iteration(
                Record(
                    run_id=store.run_id,
                    plan_hash=str(index),
                    scenario="case3",
                    variant=variant,
                    system="dtfm",
                    layers=24,
                    batch=1024,
                    seed=2022,
                    iteration=0,
                    warmup=False,
                    iteration_s=iteration_s,
                    source="simulated",
                )
            )
        store.append_verdict(trustworthy=True)
    return read_run(store.path)
