"""Traces of emulated iterations, kept beside the records: `results/<run-id>/traces/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from netbench.plan import Plan, plan_hash
from netbench.plan.timeline import Slice, Timeline, trace_path, write_timeline


def keep_trace(
    run: Path, plan: Plan, iteration_s: float, events: Mapping[str, Sequence[Sequence[Any]]]
) -> None:
    """Write the trace of one iteration.

    run: the run's folder. events: process -> what it sent (`netbench.trainers.protocol`); those
    of peers that have gone are missing. Raises UsageError if it cannot be written.
    """
    key = plan_hash(plan)
    path = trace_path(run, key)
    path.parent.mkdir(exist_ok=True)
    logical = {process: rank for rank, process in enumerate(plan.placement)}
    slices = [
        _slice(plan, logical, logical[int(process)], event)
        for process, some in events.items()
        for event in some
    ]
    timeline = Timeline(
        plan=key,
        source="emulated" if plan.compute == "virtual" else "measured",
        iteration_s=iteration_s,
        slices=tuple(sorted(slices, key=lambda piece: (piece.rank, piece.start_s))),
    )
    write_timeline(path, plan, timeline)


def _slice(plan: Plan, logical: dict[int, int], rank: int, event: Sequence[Any]) -> Slice:
    """One event of a rank: its peer by logical rank, its bytes at full size."""
    kind, start_s, end_s, details = event
    args = {key: value for key, value in details.items() if key != "peer"}
    if "bytes" in args:
        args["bytes"] = round(args["bytes"] * plan.scale)
    return Slice(
        kind=kind,
        rank=rank,
        start_s=max(0.0, start_s),
        end_s=end_s,
        peer=logical[details["peer"]] if "peer" in details else -1,
        args=tuple(args.items()),
    )
