"""A run as the sections of a page read it: its plans, and their simulations to explain them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netbench.errors import NetbenchError, RecordError
from netbench.explain.breakdown import GROUPS
from netbench.plan.benchmark import CollectivePlan
from netbench.plan.experiment import experiment_from_json
from netbench.plan.model import Plan
from netbench.records import Run
from netbench.report.tables.comparison import Comparison, compare
from netbench.systems import placed_name
from netbench.timelines import Timeline, read_timeline, trace_path

if TYPE_CHECKING:
    from netbench.explain.activity import Floats
    from netbench.explain.losses import Loss
    from netbench.explain.remedies import Remedy
    from netbench.explain.usage import LinkUse
    from netbench.scenario.model import Network
    from netbench.simulator.iteration import Simulation

MAX_EXPLAINED = 64
"""Maximum number of plans that are simulated for a page."""

MAX_DETAILED = 8
"""Maximum number of plans with losses, a timeline and links."""

MAX_ROWS = 16
"""Maximum number of ranks in a timeline."""

EQUAL = 1e-3
"""Relative difference up to which two simulations of a plan count as equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Detail:
    """Details, which the page shows of a few plans only.

    activity: stretches by rank and kind, see `explain.activity`. parts: (name, length_s, repeat).
    trace: for Perfetto, compressed; empty if traces were not asked for.
    """

    losses: tuple[Loss, ...]
    remedies: Mapping[str, Remedy]
    activity: Mapping[str, Mapping[str, Floats]]
    parts: tuple[tuple[str, float, float], ...]
    links: tuple[LinkUse, ...]
    trace: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """A plan that was simulated again.

    label: name of its system, with the setting if the run has several. seconds: by group of
    `explain.breakdown.GROUPS`, mean over the ranks. bound_s: compute of the busiest rank.
    recorded: its emulated timeline, if it was traced; recorded_trace: its file, if wanted.
    """

    plan_hash: str
    plan: Plan
    system: str
    setting: str
    label: str
    iteration_s: float
    seconds: Mapping[str, float]
    bound_s: float
    detail: Detail | None
    recorded: Timeline | None
    recorded_trace: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A run with all that its sections need.

    key: prefix of the ids of its elements. rows: see `compare`; empty for collectives. plans:
    training plans by hash, without those that cannot be read. collectives: likewise. notes: what
    could not be explained, and why.
    """

    key: str
    run: Run
    rows: tuple[Comparison, ...]
    plans: Mapping[str, Plan]
    collectives: Mapping[str, CollectivePlan]
    explained: tuple[Explained, ...]
    notes: tuple[str, ...]

    @property
    def networks(self) -> dict[str, Network]:
        """Return the networks of the plans by name, "" = the scenario's own."""
        found: dict[str, Network] = {}
        for plan in self.plans.values():
            found.setdefault(plan.network_name, plan.network)
        for collective in self.collectives.values():
            found.setdefault("", collective.network)
        return found

    @property
    def node_names(self) -> tuple[str, ...]:
        """Return the names of the nodes, of the plan that has most."""
        names = [plan.node_names for plan in self.plans.values()]
        names += [plan.node_names for plan in self.collectives.values()]
        return max(names, key=len, default=())

    @property
    def settings(self) -> tuple[str, ...]:
        """Return the settings of the run, in order."""
        return tuple(dict.fromkeys(row.setting for row in self.rows))

    @property
    def detailed(self) -> tuple[Explained, ...]:
        """Return the plans with details."""
        return tuple(each for each in self.explained if each.detail is not None)


def study(run: Run, key: str, *, traces: bool = True) -> Study:
    """Read the plans of a run, and simulate one per row of its table.

    traces: attach traces for Perfetto. Raises RecordError for a run without iterations.
    """
    if not run.records:
        raise RecordError(
            f"{run.path}: no iteration is recorded; continue with netbench run --resume"
        )
    plans: dict[str, Plan] = {}
    collectives: dict[str, CollectivePlan] = {}
    notes: list[str] = []
    for plan_hash, data in run.plans.items():
        try:
            plan = experiment_from_json(json.dumps(data))
        except NetbenchError as error:
            notes.append(f"Plan {plan_hash} cannot be read: {error}.")
            continue
        if isinstance(plan, Plan):
            plans[plan_hash] = plan
        else:
            collectives[plan_hash] = plan
    is_training = any(plan_hash not in collectives for plan_hash in run.plans)
    rows = compare(run) if is_training else ()
    explained = tuple(_explain(run, plans, rows, notes, traces))
    return Study(
        key=key,
        run=run,
        rows=rows,
        plans=plans,
        collectives=collectives,
        explained=explained,
        notes=tuple(notes),
    )


def _explain(
    run: Run,
    plans: Mapping[str, Plan],
    rows: tuple[Comparison, ...],
    notes: list[str],
    traces: bool,
) -> Iterator[Explained]:
    """Yield one plan per row of the table, the first of its seeds."""
    from netbench.explain.breakdown import bound_s, breakdown
    from netbench.simulator import simulate  # numba

    chosen = _of_rows(plans, rows)
    if len(chosen) > MAX_EXPLAINED:
        notes.append(
            f"Of {len(chosen)} rows of the table, the first {MAX_EXPLAINED} are explained. "
            "netbench explain HASH explains any plan."
        )
    shown = chosen[:MAX_EXPLAINED]
    detailed = _detailed(shown)
    has_settings = len({row.setting for _, row in shown}) > 1
    for plan_hash, row in shown:
        plan = plans[plan_hash]
        try:
            simulation = simulate(plan)
        except NetbenchError as error:
            notes.append(f"{row.name} ({plan_hash}) is not simulated: {error}.")
            continue
        predicted_s = run.predictions.get(plan_hash)
        if predicted_s and abs(simulation.iteration_s / predicted_s - 1) > EQUAL:
            notes.append(
                f"{row.name}, {row.setting}: this netbench simulates {simulation.iteration_s:.4g} "
                f"s; {predicted_s:.4g} s was predicted when the run was recorded."
            )
        traced = trace_path(run.path.parent, plan_hash)
        yield Explained(
            plan_hash=plan_hash,
            plan=plan,
            system=row.name,
            setting=row.setting,
            label=f"{row.name}, {row.setting}" if has_settings else row.name,
            iteration_s=simulation.iteration_s,
            seconds={group: breakdown(simulation).mean_s()[group] for group in GROUPS},
            bound_s=bound_s(plan),
            detail=_detail(simulation, traces) if plan_hash in detailed else None,
            recorded=read_timeline(traced) if traced.exists() else None,
            recorded_trace=traced.read_bytes() if traces and traced.exists() else b"",
        )
    if len(detailed) < len(shown):
        notes.append(
            f"Losses, timelines and links are those of {len(detailed)} of {len(shown)} plans. "
            "netbench explain HASH shows any other."
        )


def _of_rows(
    plans: Mapping[str, Plan], rows: tuple[Comparison, ...]
) -> list[tuple[str, Comparison]]:
    """Return the first plan of each row, in the order of the rows."""
    first: dict[tuple[object, ...], str] = {}
    for plan_hash, plan in plans.items():
        name = placed_name(plan.variant, plan.scheduler) if plan.scheduler else plan.variant
        first.setdefault((name, plan.network_name, plan.workload), plan_hash)
    found = ((first.get((row.name, row.network, row.workload)), row) for row in rows)
    return [(plan_hash, row) for plan_hash, row in found if plan_hash is not None]


def _detailed(shown: list[tuple[str, Comparison]]) -> set[str]:
    """Return plans to show in detail: one of each system first, then others in order."""
    seen: set[str] = set()
    firsts: list[str] = []
    others: list[str] = []
    for plan_hash, row in shown:
        (others if row.name in seen else firsts).append(plan_hash)
        seen.add(row.name)
    return set([*firsts, *others][:MAX_DETAILED])


def _detail(simulation: Simulation, traces: bool) -> Detail:
    from netbench.explain.activity import activity
    from netbench.explain.breakdown import timelines
    from netbench.explain.losses import losses
    from netbench.explain.remedies import remedies
    from netbench.explain.usage import links

    return Detail(
        losses=losses(simulation),
        remedies=remedies(simulation),
        activity=activity(simulation, MAX_ROWS),
        parts=tuple(
            (part.name, part.to_s - part.from_s, part.repeat)
            for _, _, parts in timelines(simulation)
            for part in parts
        ),
        links=links(simulation),
        trace=_trace(simulation) if traces else b"",
    )


def _trace(simulation: Simulation) -> bytes:
    """Return the trace for Perfetto, compressed; equal simulations give equal bytes."""
    from netbench.explain.perfetto import trace_json

    return gzip.compress(trace_json(simulation).encode(), mtime=0)
