"""Recorded runs of small pipelines, whose texts try to be markup and whose times are invented."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from netbench.network.probing.verify import LinkCheck
from netbench.plan.experiment import experiment_record
from netbench.plan.model import Plan
from netbench.plan.serial import encode, plan_hash
from netbench.records import Environment, Run, RunStore, read_run
from tests.plans import pipeline_plan
from tests.runs import ENVIRONMENT

HOSTILE = "<img src=x onerror=\"window.hacked='yes'\"></script><script>window.hacked='yes'</script>"
"""Text that runs a script wherever it is not escaped."""

RECORDED = Path(__file__).parents[3] / "results" / "recorded"
CASE3 = RECORDED / "case3-20261128-021313-0044"


def hostile_plan() -> Plan:
    """Return a plan whose regions, nodes and scenario have the names of an attacker."""
    plan = pipeline_plan("dtfm-scheduled", stages=2, micro_batches=6, bandwidth_bps=1e9)
    return dataclasses.replace(
        plan,
        scenario=HOSTILE,
        node_names=(f"{HOSTILE}0", f"{HOSTILE}1"),
        network=dataclasses.replace(plan.network, regions=(f"{HOSTILE}A", f"{HOSTILE}B")),
    )


def small_plans() -> tuple[Plan, ...]:
    """Return two plans of one setting, and one with a larger batch."""
    plans = [
        pipeline_plan(variant, stages=2, micro_batches=6, delay_s=0.01, bandwidth_bps=1e9)
        for variant in ("dtfm-scheduled", "dtfm-scheduled-1f1b")
    ]
    larger = dataclasses.replace(
        plans[0],
        num_micro_batches=12,
        workload=dataclasses.replace(plans[0].workload, batch=2 * plans[0].workload.batch),
    )
    return (*plans, larger)


def check(error: float = 0.0, *, quantity: str = "rtt_s", expected: float = 0.02) -> LinkCheck:
    """Return a figure of the link from node 0 to 1, off by a fraction; 2% is allowed."""
    return LinkCheck(
        kind="link",
        src=0,
        dsts=(1,),
        quantity=quantity,
        expected=expected,
        measured=expected * (1 + error),
        allowed=0.02 * expected,
        passed=abs(error) <= 0.02,
    )


def write_small_run(
    results: Path,
    times_s: Mapping[Plan, Sequence[float]],
    *,
    checks: Sequence[LinkCheck] = (),
    reasons: Sequence[str] = (),
    environment: Environment = ENVIRONMENT,
    command: Sequence[str] = ("netbench", "run", "small.yaml"),
    created: datetime = datetime(2026, 1, 2, 3, 4, 5),
) -> Run:
    """Write a run with these iteration times, without warm-ups; return it as read again."""
    with RunStore.create(
        results, scenario="small", created=created, command=command, environment=environment
    ) as store:
        if checks or reasons:
            store.append_probe(
                {"tolerance": 0.02, "checks": list(map(asdict, checks)), "reasons": list(reasons)}
            )
        for plan, seconds in times_s.items():
            store.append_plan(plan_hash(plan), encode(Plan, plan))
            for iteration, iteration_s in enumerate(seconds):
                store.append_iteration(
                    experiment_record(
                        plan,
                        store.run_id,
                        iteration_s,
                        "simulated" if environment.mode == "sim" else "emulated",
                        iteration=iteration,
                    )
                )
        store.append_verdict()
    return read_run(store.path)
