"""Section: the raw records, embedded to download."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import asdict
from typing import Any

from netbench.files import MAX_RECORD_BYTES, read_input
from netbench.records import Run
from netbench.report.html.section import Section
from netbench.report.html.study import Study
from netbench.report.tables.collective import collective_grid
from netbench.report.tables.grid import csv_of, csv_text
from netbench.report.tables.run import run_csv
from netbench.units import format_bytes

PLAIN_BYTES = 200_000
"""Size from which a file is embedded compressed."""

COLUMNS = (
    "run_id", "plan_hash", "scenario", "variant", "system", "layers", "batch", "seed", "iteration",
    "warmup", "iteration_s", "source", "loss", "peers",
)  # fmt: skip
"""Columns of the iterations, before their phases."""


def build(study: Study) -> Section:
    """Return the section."""
    run, name = study.run, safe_name(study.run.run_id)
    data = read_input(run.path, MAX_RECORD_BYTES)
    table = run_csv(run) if study.rows else csv_text(collective_grid(run))
    files = [
        _file(f"{name}.jsonl", data, "application/x-ndjson", "The record file as it was written."),
        _file(f"{name}.json", _json(run), "application/json", "Its lines as one JSON array."),
        _file(f"{name}-iterations.csv", iterations_csv(run), "text/csv", "A row per iteration."),
        _file(f"{name}-table.csv", f"{table}\n".encode(), "text/csv", "The table of this page."),
    ]
    return Section(
        key=f"{study.key}-data", title="Data", template="downloads.html", content={"files": files}
    )


def safe_name(text: str) -> str:
    """Return a text as a file name without blanks and special characters."""
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") or "run"


def iterations_csv(run: Run) -> bytes:
    """Return the iterations as CSV, times in seconds, unrounded."""
    phases = list(dict.fromkeys(name for record in run.records for name in record.phases))
    rows = []
    for record in run.records:
        values = asdict(record)
        rows.append(
            [*(values[column] for column in COLUMNS), *(record.phases.get(name) for name in phases)]
        )
    return (csv_of((*COLUMNS, *phases), rows) + "\n").encode()


def _json(run: Run) -> bytes:
    data = read_input(run.path, MAX_RECORD_BYTES)
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return json.dumps([json.loads(line) for line in lines], separators=(",", ":")).encode()


def _file(name: str, data: bytes, kind: str, what: str) -> dict[str, Any]:
    """Return a file as the template embeds it, compressed if it is large."""
    size = format_bytes(len(data), 2)
    if len(data) > PLAIN_BYTES:
        name, kind, data = f"{name}.gz", "application/gzip", gzip.compress(data, mtime=0)
        size = f"{size}, compressed {format_bytes(len(data), 2)}"
    return {
        "name": name,
        "kind": kind,
        "what": what,
        "size": size,
        "data": base64.b64encode(data).decode(),
    }
