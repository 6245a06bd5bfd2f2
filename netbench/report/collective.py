"""The table of `netbench collective`: seconds, bandwidths, and what the op takes on paper."""

from __future__ import annotations

import json
import statistics

from netbench.plan.collective import CollectivePlan
from netbench.plan.experiment import experiment_from_json
from netbench.records import Run
from netbench.report.closed_forms import closed_form_s
from netbench.report.grid import Grid
from netbench.units import format_bandwidth, format_bytes, format_time

HEAD = (
    "op",
    "size",
    "n",
    "median",
    "min",
    "max",
    "closed form",
    "algorithm bandwidth",
    "bus bandwidth",
)

DIGITS = 4
"""Significant ones: virtual time repeats to a tenth of a percent between boots."""


def bus_factor(op: str, num_ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth: bytes that a rank's link carries per byte of payload.

    Source: nccl-tests, doc/PERFORMANCE.md. The servers have none there; 1.
    """
    share = (num_ranks - 1) / num_ranks
    return {"all-reduce": 2 * share, "all-gather": share, "reduce-scatter": share}.get(op, 1.0)


def collective_grid(run: Run) -> Grid:
    """A row per plan of the run; warm-ups are left out."""
    rows = []
    for key, data in run.plans.items():
        plan = experiment_from_json(json.dumps(data))
        times_s = [r.iteration_s for r in run.records if r.plan_hash == key and not r.warmup]
        if isinstance(plan, CollectivePlan) and times_s:
            rows.append(_row(plan, times_s))
    return Grid(head=HEAD, rows=tuple(rows), num_labels=2)


def _row(plan: CollectivePlan, times_s: list[float]) -> tuple[str, ...]:
    median_s, on_paper_s = statistics.median(times_s), closed_form_s(plan)
    algorithm_bps = plan.payload_bytes * 8 / median_s
    bus_bps = algorithm_bps * bus_factor(plan.op, plan.num_nodes)
    return (
        plan.op,
        format_bytes(plan.payload_bytes),
        str(len(times_s)),
        format_time(median_s, DIGITS),
        format_time(min(times_s), DIGITS),
        format_time(max(times_s), DIGITS),
        "-" if on_paper_s is None else format_time(on_paper_s, DIGITS),
        format_bandwidth(algorithm_bps, DIGITS),
        format_bandwidth(bus_bps, DIGITS),
    )
