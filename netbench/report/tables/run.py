"""The table of a run and its caption, as `netbench run` and `netbench table` print them."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from netbench.errors import PlanError
from netbench.plan.checks import dynamics_doubt
from netbench.plan.experiment import experiment_from_json
from netbench.records import Environment, Run
from netbench.report.numbers import (
    TimeSummary,
    flops_unit,
    or_dash,
    percent_text,
    pflops_text,
    seconds_text,
    spread_text,
)
from netbench.report.tables.churn import CAPTION as CHURN_CAPTION
from netbench.report.tables.churn import churn_grid
from netbench.report.tables.comparison import (
    Comparison,
    compare,
    has_other_model,
    run_source,
    times_of,
)
from netbench.report.tables.cost import MILLION, MILLION_CAPTION, money
from netbench.report.tables.grid import Column, Grid, csv_of, markdown, rich_table, table_of
from netbench.report.tables.hosts import CAPTION as HOSTS_CAPTION
from netbench.report.tables.hosts import hosts_grid
from netbench.report.tables.throughput import run_caption, run_grid
from netbench.units import counted

if TYPE_CHECKING:
    from rich.console import Group

MODE_WORDS = {
    "native": "the host's own",
    "cluster": "the hosts' own",
    "guest-virtual": "guest in virtual time",
    "guest-real": "guest in real time",
    "sim": "simulated at full size",
}
"""Words for the testbeds of `records.TESTBEDS` in a caption."""

TRUSTED = "trustworthy"
"""Beginning of the verdict of a run without a doubt."""

ALARM = "NOT TRUSTWORTHY"
"""First words of the caption's warning, which is printed in bold."""


NCCL = "nccl"

Costs = Mapping[str, float]
"""$ per million samples by `Comparison.plan_hash` (`cost.run_usd`)."""

NO_COSTS: Costs = {}

AGREE = 0.1
"""Relative difference of simulated and emulated times up to which neither is in doubt."""

LONG_S = 1e-3
"""One-way delay from which slow starts take time that counts, seconds."""

ROWS_NAMED = 6
"""Maximum number of rows that a sentence names."""

REASONS_SHOWN = 5
"""Maximum number of reasons in the caption; the records have all of them."""


def render_run(run: Run, others: Sequence[Run] = (), usd: Costs = NO_COSTS) -> "Group":
    """The comparison and its caption, and further tables, for a `rich` console.

    others: runs of the same scenario with other sources, for a column each. usd: see
    `cost.run_usd`.
    """
    from rich.console import Group, RenderableType
    from rich.text import Text

    lines = [
        Text(line, style="bold red" if _is_alarm(line) else "dim")
        for line in caption(run, others, usd)
    ]
    below: list[RenderableType] = []
    for grid, text in _further(run):
        below += ["", rich_table(grid), "", Text(text, style="dim")]
    return Group(rich_table(comparison_grid(run, others, usd)), "", *lines, *below)


def run_markdown(run: Run, others: Sequence[Run] = (), usd: Costs = NO_COSTS) -> str:
    """The same as markdown."""
    lines = caption(run, others, usd)
    bullets = (f"- **{line}**" if _is_alarm(line) else f"- {line}" for line in lines)
    below = [line for grid, text in _further(run) for line in ("", markdown(grid), "", f"- {text}")]
    return "\n".join([markdown(comparison_grid(run, others, usd)), "", *bullets, *below])


def _further(run: Run) -> list[tuple[Grid, str]]:
    """Return the other tables of a run with their captions."""
    churn, hosts = churn_grid(run), hosts_grid(run)
    return [
        *([(churn, CHURN_CAPTION)] if churn else []),
        *([(hosts, HOSTS_CAPTION)] if hosts else []),
    ]


def run_csv(run: Run, usd: Costs = NO_COSTS) -> str:
    """The comparison as CSV: a row per variant and setting, seconds unrounded."""
    head = (
        "run_id", "source", "scenario", "network", "variant", "layers", "batch", "micro_batch",
        "pflop",
        "published_mean_s", "published_min_s", "published_max_s", "published_n",
        "mean_s", "min_s", "max_s", "n", "error", "simulated_s", "model", "replicas", "alone_s",
        "row", "spot_usd_per_million",
    )  # fmt: skip
    shared = (run.run_id, run_source(run), run.records[0].scenario if run.records else "")
    rows = [
        (*shared, row.network, row.variant, row.workload.layers, row.workload.batch,
         row.workload.micro_batch, row.pflop, *_summary(row.published), *_summary(row.found),
         row.error, row.simulated_s, row.workload.model, row.replicas, row.alone_s, row.name,
         usd.get(row.plan_hash))
        for row in compare(run)
    ]  # fmt: skip
    return csv_of(head, rows)


def comparison_grid(run: Run, others: Sequence[Run] = (), usd: Costs = NO_COSTS) -> Grid:
    """The comparison as text; a column of published, simulated or other runs' times, or of costs,
    only if there are any for a row of this run."""
    rows, source = compare(run), run_source(run)
    if any(row.workload.model for row in rows):
        return run_grid(rows, source, usd)
    has_published = any(row.published for row in rows)
    columns: list[Column[Comparison]] = [
        ("Setting", lambda row: row.setting),
        ("System", lambda row: row.name),
    ]
    beside = [(run_source(other), _beside(rows, other)) for other in others]
    emulated, measured = (
        [column for name, some in beside if name == wanted for column in some]
        for wanted in ("emulated", "measured")
    )
    is_wide = bool(emulated or measured)  # then it has less, to fit 80 columns
    if has_published:
        columns.append(("published s", lambda row: _mean(row.published)))
    if has_published and not is_wide:
        columns.append(("n", lambda row: _num(row.published)))
    has_simulated = any(row.simulated_s is not None for row in rows)
    if has_simulated:
        columns.append(("sim. s", lambda row: or_dash(seconds_text, row.simulated_s)))
    own: list[Column[Comparison]] = [
        (f"{source} s", lambda row: _mean(row.found)),
        ("n", lambda row: _num(row.found)),
    ]
    columns += [*emulated, *own, *measured]
    if has_published:
        columns.append(("error", lambda row: or_dash(percent_text, row.error)))
    if has_simulated and not is_wide:
        columns.append(("vs sim.", lambda row: or_dash(percent_text, row.difference)))
    unit, factor = flops_unit(row.pflops for row in rows)
    if has_published and not has_simulated and not is_wide:  # all columns fit 80 characters
        columns.append((f"published {unit}", lambda row: _flops(row, row.published, factor)))
    columns.append((f"{source} {unit}", lambda row: _flops(row, row.found, factor)))
    if usd:
        columns.append((MILLION, lambda row: or_dash(money, usd.get(row.plan_hash))))
    return table_of(rows, columns, num_labels=2)


def _beside(rows: Sequence[Comparison], other: Run) -> list[Column[Comparison]]:
    """The column of another run's times; nothing if it has none for these rows."""
    times, source = times_of(other), run_source(other)
    if not any(row.key in times for row in rows):
        return []
    return [(f"{source} s", lambda row: _mean(times.get(row.key)))]


def caption(run: Run, others: Sequence[Run] = (), usd: Costs = NO_COSTS) -> list[str]:
    """Sentences about the figures: their source and number, and whether they are trustworthy."""
    rows = compare(run)
    lines = [f"{run_source(run)}: run {run.run_id}; {_statistics(run, rows)}", *_constant(rows)]
    if any(row.published for row in rows):
        lines.append(
            "published: mean over seeds ± half their range, n seeds "
            "(Yuan et al., NeurIPS 2022). error: of the mean."
        )
    elif has_other_model(run):
        lines.append("published: no comparison; this workload is not the published one.")
    lines += run_caption(rows)
    lines += [MILLION_CAPTION] if usd else []
    if any(row.simulated_s is not None for row in rows):
        named = any(row.workload.model for row in rows)  # their table has other columns
        heads = ("simulated", "") if named else ("sim.", f" vs sim.: {run_source(run)} against it.")
        what = "the same plans, simulated before the run; mean over the same seeds."
        lines.append(f"{heads[0]}: {what}{heads[1]}")
    lines += [
        f"{run_source(other)}: run {other.run_id}, the same settings"
        + (f"; {ALARM}, see netbench table --run." if other.reasons else ".")
        for other in others
        if _beside(rows, other)
    ]
    return [*lines, *_disagreement(run, rows), *provenance(run)]


def _disagreement(run: Run, rows: Sequence[Comparison]) -> list[str]:
    """Name the rows that differ from their simulation, and say which time to believe and why."""
    apart = [row for row in rows if abs(row.difference or 0.0) > AGREE]
    if not apart:
        return []
    several = len({row.setting for row in rows}) > 1
    names = [
        f"{row.name}{f' {row.setting}' if several else ''} ({percent_text(row.difference or 0.0)})"
        for row in apart
    ]
    shown = names[:ROWS_NAMED] + [f"{len(names) - ROWS_NAMED} more"] * (len(names) > ROWS_NAMED)
    return [
        f"{run_source(run)} and simulated times differ by more than {AGREE:.0%}: "
        f"{', '.join(shown)}. {_believe(run)}"
    ]


def _believe(run: Run) -> str:
    """Say which of two times that differ to believe. Impairments are not simulated; scaled
    messages fit TCP's first window."""
    impaired = {name for plan in run.plans.values() for name in _impairments(plan)}
    fast = [plan for plan in run.plans.values() if "tcp" not in plan.get("network", {})]
    if run.reasons:
        return "Believe the simulated ones: this run is not trustworthy, see below."
    if impaired:
        return (
            f"Believe the {run_source(run)} ones: the simulator ignores "
            f"{', '.join(sorted(impaired))}."
        )
    scale = max(run.scales, default=1.0)
    if scale > 1 and max(map(_longest_delay_s, fast), default=0.0) >= LONG_S:
        return (
            f"Believe the simulated ones: at scale {scale:g} a message fits TCP's first window, so "
            "that slow starts over long delays take no time."
        )
    if any(plan.get("backend", NCCL) == NCCL for plan in run.plans.values()):
        return (
            "Believe the simulated ones: they are those of NCCL and its hosts, while an emulation "
            "carries the bytes with gloo."
        )
    return f"Believe the {run_source(run)} ones: they come from TCP and gloo, at full size."


def _longest_delay_s(plan: Mapping[str, Any]) -> float:
    """Longest one-way delay on the links of a recorded plan, seconds."""
    links = [link for row in plan.get("network", {}).get("links", ()) for link in row]
    return max((float(link["one_way_delay_s"]) for link in links), default=0.0)


def _impairments(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the impairments on the links of a recorded plan."""
    links = [link for row in plan.get("network", {}).get("links", ()) for link in row]
    known = {
        "jitter": ("jitter_s",),
        "loss": ("loss", "bursts"),
        "duplication": ("duplication",),
        "corruption": ("corruption",),
        "reordering": ("reordering",),
        "queues": ("queue_packets",),
    }
    return tuple(
        name for name, keys in known.items() if any(link.get(key) for link in links for key in keys)
    )


def provenance(run: Run) -> list[str]:
    """Sentences about the machine, the versions and the trustworthiness of the run."""
    places = dict.fromkeys(_place(session.environment, run.scales) for session in run.sessions)
    versions = dict.fromkeys(
        f"{', '.join([f'netbench {session.netbench_version}', *libraries])}."
        for session in run.sessions
        for libraries in [[f"{k} {v}" for k, v in session.environment.versions.items()]]
    )
    return [*places, *_dynamics(run), *_in_parts(run), *versions, _trust(run)]


def _dynamics(run: Run) -> list[str]:
    """Say in which plans TCP acts, and in which only rates and delays are emulated."""
    if run_source(run) != "emulated":
        return []
    plans = [plan for plan in run.plans.values() if "network" in plan]
    acting = [plan for plan in plans if "tcp" in plan["network"]]
    fast = [plan for plan in plans if plan not in acting and plan.get("scale", 1.0) > 1]
    lines = []
    if acting:
        controls = sorted({plan["network"]["tcp"]["congestion"] for plan in acting})
        scales = ", ".join(f"{scale:g}" for scale in sorted({plan["scale"] for plan in acting}))
        lines.append(
            f"faithful: TCP ({', '.join(controls)}) acts as on the machines; segments are divided "
            f"with bytes and rates, by {scales}{_named(acting, plans)}."
        )
    if fast:
        lines.append(
            "fast: rates and delays without congestion control, because bytes are divided by more "
            f"than segments are{_named(fast, plans)}."
        )
    return lines


def _in_parts(run: Run) -> list[str]:
    """Say which plans' iterations did not run to their end."""
    plans = list(run.plans.values())
    partial = [plan for plan in plans if plan.get("parts")]
    if not partial:
        return []
    return [
        "in parts: two short iterations ran for one, and what they repeat was repeated as often "
        f"as the plan says{_named(partial, plans)}; --whole runs all of it."
    ]


def _named(some: Sequence[dict[str, Any]], plans: Sequence[dict[str, Any]]) -> str:
    """Return the systems of some plans in brackets, "" for all plans."""
    names = dict.fromkeys(str(plan.get("variant", plan.get("op", ""))) for plan in some)
    return f" ({', '.join(names)})" if len(some) < len(plans) else ""


def _statistics(run: Run, rows: Sequence[Comparison]) -> str:
    """The meaning of the mean, the range and n."""
    seeds = ", ".join(str(seed) for seed in sorted({seed for row in rows for seed in row.seeds}))
    if run_source(run) == "simulated":
        return (
            f"mean over seeds ({seeds}) ± half their range, n placements; one iteration each, "
            "without warm-ups, because simulated iterations are all equal."
        )
    dropped = sum(row.num_warmups for row in rows)
    return (
        f"mean over iterations and seeds ({seeds}) ± half their range, n iterations; {dropped} of "
        f"{len(run.records)} iterations dropped as warm-ups."
    )


def _constant(rows: Sequence[Comparison]) -> list[str]:
    """The network of the sweep, if all settings have the same and therefore do not name it."""
    networks = {row.network for row in rows}
    if len(networks) != 1 or networks == {""}:
        return []
    sizes = sorted({row.workload.micro_batch for row in rows})
    words = f"micro-batches of {sizes[0]}" if len(sizes) == 1 else "micro-batches as planned"
    return [f"network: {networks.pop()} of the scenario's sweep; {words}."]


def _mean(times: TimeSummary | None) -> str:
    return or_dash(spread_text, times)


def _num(times: TimeSummary | None) -> str:
    return str(times.num if times else 0)


def _flops(row: Comparison, times: TimeSummary | None, factor: float) -> str:
    known = row.pflop / times.mean_s if row.pflop is not None and times else None
    return or_dash(lambda pflops: pflops_text(pflops * factor), known)


def _summary(times: TimeSummary | None) -> tuple[float | None, ...]:
    return astuple(times) if times else (None, None, None, 0)


def _place(environment: Environment, scales: Sequence[float]) -> str:
    if environment.mode == "sim":
        return f"{MODE_WORDS[environment.mode]}, by {environment.machine}."
    return (
        f"scale {' and '.join(f'{scale:g}' for scale in scales)} (bytes and bandwidths are divided "
        f"by it); kernel "
        f"{environment.kernel}, {MODE_WORDS[environment.mode]}; {environment.machine}."
    )


def _is_alarm(line: str) -> bool:
    return line.startswith(ALARM)


def _trust(run: Run) -> str:
    """The verdict in one line. Reasons count even without a verdict."""
    if run.reasons:
        reasons = run.shared_reasons
        shown = [*reasons[:REASONS_SHOWN]]
        if more := len(reasons) - REASONS_SHOWN:
            shown += [f"and {more} more, in the records"] * (more > 0)
        return f"{ALARM}: {'; '.join(shown)}."
    if not run.verdicts:
        return f"no verdict: the run has not finished; continue it with --resume. {_probed(run)}"
    if run_source(run) == "simulated":
        return "a simulation: no network was shaped, so none was verified."
    if doubts := _dynamics_doubts(run):
        return f"rates and delays only: {_probed(run)} {'; '.join(doubts)}."
    return f"{TRUSTED}: {_probed(run)}"


def _dynamics_doubts(run: Run) -> list[str]:
    """Return the doubts of plans that were recorded before these were recorded with a run."""
    doubts: dict[str, None] = {}
    for plan in run.plans.values():
        with suppress(PlanError):  # of another netbench: its table is shown all the same
            doubts[dynamics_doubt(experiment_from_json(json.dumps(plan)))] = None
    return [doubt for doubt in doubts if doubt]


def _probed(run: Run) -> str:
    """The number of checks of the network, and their tolerance."""
    if not run.probes:
        return "the network was not probed."
    results: list[dict[str, Any]] = [probe.result for probe in run.probes]
    checks = [check for result in results for check in result.get("checks", ())]
    messages = [check for check in checks if check.get("num_bytes")]
    tolerance = max(float(result.get("tolerance", 0.0)) for result in results)
    delays = (
        f"{len(checks) - len(messages)} delays and throughputs of the shaped network within "
        f"{tolerance:.0%}"
    )
    if not messages:
        return f"{delays}."
    allowed = max(check["allowed"] / check["expected"] for check in messages)
    return f"{delays}, {counted(len(messages), 'message')} within {allowed:.0%} of slow start."
