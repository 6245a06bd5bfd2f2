"""Runs on four equal nodes of one network, in the guest: what closed forms are compared with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from netbench.plan.model import Plan
from netbench.plan.serial import plan_from_json
from netbench.records import Record, find_run, read_run
from netbench.testbed.guest.boot import HANG_S

NUM_NODES = 4
RATE_BPS, DELAY_S = 1e9, 0.001
HEADERS = (1500 + 14) / (1500 - 52)
"""Bytes on the wire over payload, in full frames."""

SCENARIO = f"""\
regions: [Here]
nodes: [{{region: Here, count: {NUM_NODES}, device: Slow}}]
network: {{inside: {{one_way_delay: 1ms, bandwidth: 1Gbit}}}}
devices: {{Slow: {{flops: SPEED}}}}
workload: WORKLOAD
sweep: {{pipeline: DEPTH, variants: [VARIANTS]}}
"""


def run_uniform(
    folder: Path, variants: Sequence[str], *, speed: str, workload: str, depth: int = NUM_NODES
) -> list[tuple[Plan, Record]]:
    """One `netbench run` at full size: the plan and the record of every iteration.

    speed: e.g. 10TFLOPS. workload: of the scenario, as YAML. depth: stages of a pipeline.
    """
    scenario = folder / "uniform.yaml"
    values = {"SPEED": speed, "WORKLOAD": workload, "DEPTH": str(depth)}
    text = SCENARIO.replace("VARIANTS", ", ".join(variants))
    for name, value in values.items():
        text = text.replace(name, value)
    scenario.write_text(text)
    # Rates and delays only: slow start is not part of the closed forms.
    options = ("--fast", "--iterations", "1", "--scale", "1", "--results", str(folder))
    done = subprocess.run(
        [sys.executable, "-m", "netbench", "run", str(scenario), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    path = find_run(folder, "uniform")
    assert path is not None
    run = read_run(path)
    assert {record.variant for record in run.records} == set(variants)
    plans = {key: plan_from_json(json.dumps(plan)) for key, plan in run.plans.items()}
    return [(plans[record.plan_hash], record) for record in run.records]


def timed(found: Sequence[tuple[Plan, Record]]) -> dict[str, tuple[Plan, float]]:
    """By variant: the plan, and the seconds of the iteration after the warm-up."""
    return {
        record.variant: (plan, record.iteration_s) for plan, record in found if not record.warmup
    }
