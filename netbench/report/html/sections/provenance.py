"""Section: where the figures come from: versions, kernel, host, plans, commands."""

from __future__ import annotations

import hashlib
import shlex
from typing import Any

from netbench.plan.describe import describe_plan
from netbench.plan.model import Plan
from netbench.records import FILE_NAME
from netbench.report.html.section import Section
from netbench.report.html.study import Study
from netbench.report.tables.grid import Grid
from netbench.report.tables.run import MODE_WORDS, provenance
from netbench.version import __version__


def build(study: Study) -> Section:
    """Return the section."""
    run = study.run
    content: dict[str, Any] = {
        "run_id": run.run_id,
        "sessions": _session_grid(study),
        "verdict": provenance(run)[-1],
        "plans": _plan_grid(study),
        "command": shlex.join(run.sessions[0].command),
        "folder": run.run_id,
        "file": FILE_NAME,
        "sha256": hashlib.sha256(run.path.read_bytes()).hexdigest(),
        "version": __version__,
        "notes": study.notes,
    }
    return Section(
        key=f"{study.key}-provenance",
        title="Provenance",
        template="provenance.html",
        content=content,
    )


def _session_grid(study: Study) -> Grid:
    """Return a row per property, a column per session of the run."""
    sessions = study.run.sessions
    rows: dict[str, list[str]] = {
        "started": [each.created.replace("T", " ") for each in sessions],
        "command": [shlex.join(each.command) for each in sessions],
        "netbench": [each.netbench_version for each in sessions],
        "testbed": [
            f"{each.environment.mode}: {MODE_WORDS[each.environment.mode]}" for each in sessions
        ],
        "kernel": [each.environment.kernel for each in sessions],
        "host": [each.environment.machine for each in sessions],
        "scale": [", ".join(f"{scale:g}" for scale in study.run.scales)] * len(sessions),
    }
    libraries = dict.fromkeys(name for each in sessions for name in each.environment.versions)
    for name in libraries:
        rows[name] = [each.environment.versions.get(name, "-") for each in sessions]
    heads = (
        ["session"] if len(sessions) == 1 else [f"session {i + 1}" for i in range(len(sessions))]
    )
    return Grid(
        head=("", *heads),
        rows=tuple((name, *values) for name, values in rows.items()),
        num_labels=1 + len(sessions),
    )


def _plan_grid(study: Study) -> Grid:
    """Return a row per plan: its hash and what it is."""
    rows = []
    for plan_hash in study.run.plans:
        plan = study.plans.get(plan_hash)
        rows.append((plan_hash, _words(study, plan_hash, plan)))
    return Grid(head=("Plan", "description"), rows=tuple(rows), num_labels=2)


def _words(study: Study, plan_hash: str, plan: Plan | None) -> str:
    if plan is not None:
        return describe_plan(plan).removeprefix(plan_hash).strip()
    collective = study.collectives.get(plan_hash)
    if collective is None:
        return "cannot be read by this netbench"
    return f"{collective.op} of {collective.payload_bytes} bytes by {collective.num_nodes} ranks"
