"""A run's iteration times beside the published ones, as `netbench run` and `table` print them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from netbench.errors import RecordError
from netbench.records import Environment, Record, Run
from netbench.report.grid import Grid, csv_text, markdown, rich_table
from netbench.report.published import PUBLISHED_MODEL, Sample, sample
from netbench.report.tables import setting_name, spread_text
from netbench.scenario.model import Workload
from netbench.workload.costs import pflop_per_iteration

if TYPE_CHECKING:
    from rich.console import Group

MODE_WORDS = {
    "native": "the host's own",
    "guest-virtual": "guest in virtual time",
    "guest-real": "guest in real time",
}

ALARM = "NOT TRUSTWORTHY"
"""How the line begins that says so; printed in bold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One variant in one setting. published, found: None where there are no times (yet).

    seeds: those run. num_warmups: iterations dropped. pflop: work of one iteration.
    """

    variant: str
    layers: int
    batch: int
    seeds: tuple[int, ...]
    num_warmups: int
    pflop: float
    published: Sample | None
    found: Sample | None

    @property
    def error(self) -> float | None:
        """Relative: 0.05 = the run took 5% longer than published."""
        if self.published is None or self.found is None:
            return None
        return self.found.mean_s / self.published.mean_s - 1


def compare(run: Run) -> tuple[Comparison, ...]:
    """Every setting and variant of a run, by layers and batch, in the order they were planned."""
    groups: dict[tuple[int, int, str], list[Record]] = {}
    order = list(run.plans)
    for record in sorted(run.records, key=lambda record: order.index(record.plan_hash)):
        groups.setdefault((record.layers, record.batch, record.variant), []).append(record)
    settings = sorted(groups, key=lambda key: key[:2])
    return tuple(_comparison(run, groups[key]) for key in settings)


def render_run(run: Run) -> Group:
    """The comparison for a terminal, caption beneath. Print it with a `rich` console."""
    from rich.console import Group
    from rich.text import Text

    lines = [Text(line, style="bold red" if _is_alarm(line) else "dim") for line in caption(run)]
    return Group(rich_table(comparison_grid(run)), "", *lines)


def run_markdown(run: Run) -> str:
    """The comparison as markdown, caption beneath."""
    bullets = (f"- **{line}**" if _is_alarm(line) else f"- {line}" for line in caption(run))
    return "\n".join([markdown(comparison_grid(run)), "", *bullets])


def run_csv(run: Run) -> str:
    """The comparison as CSV: a row per variant and setting, seconds unrounded."""
    head = (
        "run_id", "source", "scenario", "variant", "layers", "batch", "pflop",
        "published_mean_s", "published_min_s", "published_max_s", "published_n",
        "mean_s", "min_s", "max_s", "n", "error",
    )  # fmt: skip
    shared = (run.run_id, run_source(run), _scenario(run))
    rows = [
        (*shared, row.variant, str(row.layers), str(row.batch), repr(row.pflop),
         *_sample_texts(row.published), *_sample_texts(row.found),
         "" if row.error is None else repr(row.error))
        for row in compare(run)
    ]  # fmt: skip
    return csv_text(Grid(head=head, rows=tuple(rows)))


def comparison_grid(run: Run) -> Grid:
    """The comparison as text: published columns only where anything was published."""
    rows, source = compare(run), run_source(run)
    has_published = any(row.published for row in rows)
    published = ("published s", "n") if has_published else ()
    error = ("error",) if has_published else ()
    published_pflops = ("published PFLOPS",) if has_published else ()
    return Grid(
        head=(
            *("Setting", "System"), *published, f"{source} s", "n",
            *error, *published_pflops, f"{source} PFLOPS",
        ),
        rows=tuple(_texts(row, has_published) for row in rows),
        num_labels=2,
    )  # fmt: skip


def caption(run: Run) -> list[str]:
    """What a reader must know of the figures: where from, how many, and whether to trust them."""
    rows = compare(run)
    seeds = ", ".join(str(seed) for seed in sorted({seed for row in rows for seed in row.seeds}))
    dropped = sum(row.num_warmups for row in rows)
    lines = [
        f"{run_source(run)}: run {run.run_id}; mean over iterations and seeds ({seeds}) ± half "
        f"their range, n iterations; {dropped} of {len(run.records)} iterations dropped as "
        "warm-ups.",
    ]
    if any(row.published for row in rows):
        lines.append(
            "published: mean over seeds ± half their range, n seeds "
            "(Yuan et al., NeurIPS 2022). error: of the mean."
        )
    elif _has_other_model(run):
        lines.append("published: nothing to compare with; this workload is not the published one.")
    lines += dict.fromkeys(_place(session.environment) for session in run.sessions)
    versions = dict.fromkeys(_versions(run, index) for index in range(len(run.sessions)))
    return [*lines, *versions, _trust(run)]


def _comparison(run: Run, records: Sequence[Record]) -> Comparison:
    """records: all of one variant in one setting; at least one."""
    first = records[0]
    workload = _workload(run, first.plan_hash)
    by_plan: dict[str, list[float]] = {}
    for record in records:
        if not record.warmup:
            by_plan.setdefault(record.plan_hash, []).append(record.iteration_s)
    return Comparison(
        variant=first.variant,
        layers=first.layers,
        batch=first.batch,
        seeds=tuple(sorted({record.seed for record in records})),
        num_warmups=sum(record.warmup for record in records),
        pflop=pflop_per_iteration(workload),
        published=sample(first.scenario, first.variant, first.layers, first.batch)
        if _is_published_model(workload)
        else None,
        found=_pool(list(by_plan.values())) if by_plan else None,
    )


def _pool(plans: Sequence[Sequence[float]]) -> Sample:
    """Times of several seeds as one sample: each seed counts once, however many iterations."""
    times_s = [time_s for plan in plans for time_s in plan]
    return Sample(
        mean_s=statistics.fmean(statistics.fmean(plan) for plan in plans),
        min_s=min(times_s),
        max_s=max(times_s),
        num=len(times_s),
    )


def _workload(run: Run, plan_hash: str) -> Workload:
    try:
        return Workload(**run.plans[plan_hash]["workload"])
    except (KeyError, TypeError) as error:
        raise RecordError(
            f"{run.path}: plan {plan_hash} has a workload that this netbench cannot read "
            f"({error}); use the netbench that wrote it"
        ) from error


def _is_published_model(workload: Workload) -> bool:
    return all(getattr(workload, key) == value for key, value in PUBLISHED_MODEL.items())


def _has_other_model(run: Run) -> bool:
    return any(
        not _is_published_model(_workload(run, record.plan_hash))
        and sample(record.scenario, record.variant, record.layers, record.batch)
        for record in run.records
    )


def _texts(row: Comparison, has_published: bool) -> tuple[str, ...]:
    labels = (setting_name(row.layers, row.batch), row.variant)
    found, pflops = _time_and_num(row.found), _pflops(row, row.found)
    if not has_published:
        return (*labels, *found, pflops)
    error = "-" if row.error is None else f"{row.error:+.1%}"
    published = _time_and_num(row.published)
    return (*labels, *published, *found, error, _pflops(row, row.published), pflops)


def _time_and_num(times: Sample | None) -> tuple[str, str]:
    return ("-", "0") if times is None else (spread_text(times), str(times.num))


def _pflops(row: Comparison, times: Sample | None) -> str:
    """Three decimals, as published; three digits where that leaves fewer than two."""
    if times is None:
        return "-"
    pflops = row.pflop / times.mean_s
    return f"{pflops:.3f}" if pflops >= 0.01 else f"{pflops:.3g}"


def _sample_texts(times: Sample | None) -> tuple[str, str, str, str]:
    if times is None:
        return ("", "", "", "0")
    return (repr(times.mean_s), repr(times.min_s), repr(times.max_s), str(times.num))


def run_source(run: Run) -> str:
    """The source of the records; `emulated` before there are any."""
    return " and ".join(sorted({record.source for record in run.records})) or "emulated"


def _scenario(run: Run) -> str:
    return run.records[0].scenario if run.records else ""


def _place(environment: Environment) -> str:
    return (
        f"scale {environment.scale:g} (bytes and bandwidths are divided by it); kernel "
        f"{environment.kernel}, {MODE_WORDS[environment.mode]}; {environment.machine}."
    )


def _versions(run: Run, session: int) -> str:
    found = run.sessions[session]
    versions = found.environment.versions.items()
    words = [f"netbench {found.netbench_version}", *(f"{k} {v}" for k, v in versions)]
    return f"{', '.join(words)}."


def _is_alarm(line: str) -> bool:
    return line.startswith(ALARM)


def _trust(run: Run) -> str:
    """The verdict in one line. A probe's reasons count even if no verdict was reached."""
    reasons = [reason for probe in run.probes for reason in probe.result.get("reasons", ())]
    reasons += [reason for verdict in run.verdicts for reason in verdict.reasons]
    if reasons or any(not verdict.trustworthy for verdict in run.verdicts):
        return f"{ALARM}: {'; '.join(dict.fromkeys(reasons)) or 'no reason was recorded'}."
    if not run.verdicts:
        return f"no verdict: the run has not finished. {_probed(run)}"
    return f"trustworthy: {_probed(run)}"


def _probed(run: Run) -> str:
    """How many figures of the network were checked, against which tolerance."""
    if not run.probes:
        return "the network was not probed."
    results: list[dict[str, Any]] = [probe.result for probe in run.probes]
    num_checks = sum(len(result.get("checks", ())) for result in results)
    tolerance = max(float(result.get("tolerance", 0.0)) for result in results)
    return f"{num_checks} delays and throughputs of the shaped network within {tolerance:.0%}."
