"""A run's iteration times beside the published ones, as `netbench run` and `table` print them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from netbench.errors import RecordError
from netbench.plan import placed_name
from netbench.plan.command import COMMAND
from netbench.records import Environment, Record, Run
from netbench.report.grid import Grid, csv_text, markdown, rich_table
from netbench.report.published import PUBLISHED_MODEL, Sample, sample
from netbench.report.tables import seconds_text, setting_name, spread_text
from netbench.report.throughput import run_caption, run_grid
from netbench.scenario.model import Workload
from netbench.workload.costs import pflop_per_iteration

if TYPE_CHECKING:
    from rich.console import Group

MODE_WORDS = {
    "native": "the host's own",
    "guest-virtual": "guest in virtual time",
    "guest-real": "guest in real time",
    "sim": "simulated at full size",
}
"""A mode of `records.MODES` in a caption."""

ALARM = "NOT TRUSTWORTHY"
"""How the line begins that says so; printed in bold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One variant in one setting, placed by one scheduler. published, found: None where there are
    no times (yet).
    simulated_s: predicted before the run, mean over seeds; None where it was not.

    setting: layers, batch, and what else varies in the run, e.g. `L12 B64 m4 10ms-1Gbit`.
    network: of the scenario's sweep, "" = its own. micro_batch: sequences.
    seeds: those run. num_warmups: iterations dropped. pflop: work of one iteration.
    model: named, of which each of `replicas` computes its share in alone_s seconds; "" = a GPT.
    name: of the row; the variant, or where a scheduler placed it what `placed_name` says.
    """

    scenario: str

    setting: str
    variant: str
    layers: int
    batch: int
    micro_batch: int
    network: str
    seeds: tuple[int, ...]
    num_warmups: int
    pflop: float
    published: Sample | None
    found: Sample | None
    simulated_s: float | None
    model: str
    replicas: int
    alone_s: float
    name: str

    @property
    def error(self) -> float | None:
        """Relative: 0.05 = the run took 5% longer than published."""
        if self.published is None or self.found is None:
            return None
        return self.found.mean_s / self.published.mean_s - 1


def compare(run: Run) -> tuple[Comparison, ...]:
    """Every setting and variant of a run: by network as planned, layers, batch and micro-batch, in
    the order they were planned."""
    order = {plan_hash: index for index, plan_hash in enumerate(run.plans)}
    settings = {plan_hash: _Setting.read(run, plan_hash) for plan_hash in order}
    groups: dict[tuple[_Setting, str], list[Record]] = {}
    for record in sorted(run.records, key=lambda record: order[record.plan_hash]):
        name = _row_name(run, record)
        groups.setdefault((settings[record.plan_hash], name), []).append(record)
    networks = list(dict.fromkeys(setting.network for setting, _ in groups))
    names_micro_batch, names_network = _varies_micro_batch(groups), len(networks) > 1
    return tuple(
        _comparison(run, groups[key], key, key[0].name(names_micro_batch, names_network))
        for key in sorted(groups, key=lambda key: (networks.index(key[0].network), key[0].sizes))
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Setting:
    """What tells runs of a variant apart, beside the seed. sizes: layers, batch, micro-batch."""

    network: str
    sizes: tuple[int, int, int]

    @classmethod
    def read(cls, run: Run, plan_hash: str) -> _Setting:
        workload = _workload(run, plan_hash)
        return cls(
            network=str(run.plans[plan_hash].get("network_name", "")),
            sizes=(workload.layers, workload.batch, workload.micro_batch),
        )

    def name(self, with_micro_batch: bool, with_network: bool) -> str:
        layers, batch, micro_batch = self.sizes
        words = [setting_name(layers, batch)]
        words += [f"m{micro_batch}"] if with_micro_batch else []
        words += [self.network or "own"] if with_network else []
        return " ".join(words)


def _varies_micro_batch(groups: Iterable[tuple[_Setting, str]]) -> bool:
    """Whether a variant ran with several micro-batches in one setting: zero3 has one of its own
    beside everybody else's, which is no reason to name it."""
    seen = [(setting.network, setting.sizes[:2], variant) for setting, variant in groups]
    return len(set(seen)) < len(seen)


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
        "run_id", "source", "scenario", "network", "variant", "layers", "batch", "micro_batch",
        "pflop",
        "published_mean_s", "published_min_s", "published_max_s", "published_n",
        "mean_s", "min_s", "max_s", "n", "error", "simulated_s", "model", "replicas", "alone_s",
        "row",
    )  # fmt: skip
    shared = (run.run_id, run_source(run), _scenario(run))
    rows = [
        (*shared, row.network, row.variant, str(row.layers), str(row.batch), str(row.micro_batch),
         repr(row.pflop), *_sample_texts(row.published), *_sample_texts(row.found),
         _number(row.error), _number(row.simulated_s), row.model, str(row.replicas),
         repr(row.alone_s), row.name)
        for row in compare(run)
    ]  # fmt: skip
    return csv_text(Grid(head=head, rows=tuple(rows)))


def comparison_grid(run: Run) -> Grid:
    """The comparison as text: published and simulated columns only where there is such a time."""
    rows, source = compare(run), run_source(run)
    if any(row.model for row in rows):
        return run_grid(rows, source)
    has_published = any(row.published for row in rows)
    has_simulated = any(row.simulated_s is not None for row in rows)
    simulated = ("simulated s",) if has_simulated else ()
    published = ("published s", "n") if has_published else ()
    error = ("error",) if has_published else ()
    published_pflops = ("published PFLOPS",) if has_published else ()
    return Grid(
        head=(
            *("Setting", "System"), *published, *simulated, f"{source} s", "n",
            *error, *published_pflops, f"{source} PFLOPS",
        ),
        rows=tuple(_texts(row, has_published, has_simulated) for row in rows),
        num_labels=2,
    )  # fmt: skip


def caption(run: Run) -> list[str]:
    """What a reader must know of the figures: where from, how many, and whether to trust them."""
    rows = compare(run)
    lines = [f"{run_source(run)}: run {run.run_id}; {_statistics(run, rows)}", *_constant(rows)]
    if any(row.published for row in rows):
        lines.append(
            "published: mean over seeds ± half their range, n seeds "
            "(Yuan et al., NeurIPS 2022). error: of the mean."
        )
    elif _has_other_model(run):
        lines.append("published: nothing to compare with; this workload is not the published one.")
    lines += run_caption(rows)
    if any(record.system == COMMAND for record in run.records):
        lines.append("PFLOPS are of the planned workload, whatever the scripts trained.")
    if any(row.simulated_s is not None for row in rows):
        lines.append("simulated: before the run, at full size; mean over the same seeds.")
    lines += dict.fromkeys(_place(session.environment) for session in run.sessions)
    versions = dict.fromkeys(_versions(run, index) for index in range(len(run.sessions)))
    return [*lines, *versions, _trust(run)]


def _statistics(run: Run, rows: Sequence[Comparison]) -> str:
    """What the mean is of."""
    seeds = ", ".join(str(seed) for seed in sorted({seed for row in rows for seed in row.seeds}))
    if run_source(run) == "simulated":
        return (
            f"mean over seeds ({seeds}) ± half their range, n placements; one iteration each, "
            "without warm-ups, for a simulated one repeats to the bit."
        )
    dropped = sum(row.num_warmups for row in rows)
    return (
        f"mean over iterations and seeds ({seeds}) ± half their range, n iterations; {dropped} of "
        f"{len(run.records)} iterations dropped as warm-ups."
    )


def _constant(rows: Sequence[Comparison]) -> list[str]:
    """The network of the sweep, where the settings do not name it because all have the same."""
    networks = {row.network for row in rows}
    if len(networks) != 1 or networks == {""}:
        return []
    sizes = sorted({row.micro_batch for row in rows})
    words = f"micro-batches of {sizes[0]}" if len(sizes) == 1 else "micro-batches as planned"
    return [f"network: {networks.pop()} of the scenario's sweep; {words}."]


def _row_name(run: Run, record: Record) -> str:
    scheduler = run.plans[record.plan_hash].get("scheduler")
    return placed_name(record.variant, str(scheduler)) if scheduler else record.variant


def _comparison(
    run: Run, records: Sequence[Record], key: tuple[_Setting, str], setting_text: str
) -> Comparison:
    """records: all of one row, at least one. key: its setting and name."""
    first, (setting, name) = records[0], key
    workload = _workload(run, first.plan_hash)
    by_plan: dict[str, list[float]] = {}
    for record in records:
        if not record.warmup:
            by_plan.setdefault(record.plan_hash, []).append(record.iteration_s)
    return Comparison(
        setting=setting_text,
        variant=first.variant,
        layers=first.layers,
        batch=first.batch,
        micro_batch=workload.micro_batch,
        network=setting.network,
        seeds=tuple(sorted({record.seed for record in records})),
        num_warmups=sum(record.warmup for record in records),
        pflop=pflop_per_iteration(workload),
        published=sample(first.scenario, first.variant, first.layers, first.batch)
        if _is_published_model(workload) and not setting.network and name == first.variant
        else None,
        found=_pool(list(by_plan.values())) if by_plan else None,
        simulated_s=_predicted_s(run, {record.plan_hash for record in records}),
        model=workload.model,
        replicas=_replicas(run.plans[first.plan_hash]) if workload.model else 1,
        alone_s=_alone_s(run.plans[first.plan_hash]) if workload.model else 0.0,
        scenario=first.scenario,
        name=name,
    )


def _replicas(plan: dict[str, Any]) -> int:
    return int(plan["layout"]["dp"])


def _alone_s(plan: dict[str, Any]) -> float:
    """Computing of an iteration on one rank: seconds, were there no network."""
    stage, micro_batches = plan["stages"][0], plan["num_rounds"] * plan["num_micro_batches"]
    return float(micro_batches * (stage["forward_s"] + stage["backward_s"]) + stage["optimizer_s"])


def _predicted_s(run: Run, plans: Iterable[str]) -> float | None:
    times_s = [run.predictions[plan] for plan in plans if plan in run.predictions]
    return statistics.fmean(sorted(times_s)) if times_s else None


def _pool(plans: Sequence[Sequence[float]]) -> Sample:
    """Times of several seeds as one sample: each seed counts once, however many iterations."""
    times_s = [time_s for plan in plans for time_s in plan]
    return Sample(
        mean_s=statistics.fmean(statistics.fmean(plan) for plan in plans),
        min_s=min(times_s),
        max_s=max(times_s),
        num=len(times_s),
    )


def measured(run: Run, plan_hash: str) -> Sample | None:
    """Times of one plan's iterations but warm-ups; None where there are none."""
    times_s = [
        record.iteration_s
        for record in run.records
        if record.plan_hash == plan_hash and not record.warmup
    ]
    return _pool([times_s]) if times_s else None


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


def _texts(row: Comparison, has_published: bool, has_simulated: bool) -> tuple[str, ...]:
    labels = (row.setting, row.name)
    found, pflops = [*_time_and_num(row.found)], _pflops(row, row.found)
    if has_simulated:
        found.insert(0, "-" if row.simulated_s is None else seconds_text(row.simulated_s))
    if not has_published:
        return (*labels, *found, pflops)
    error = "-" if row.error is None else f"{row.error:+.1%}"
    published = _time_and_num(row.published)
    return (*labels, *published, *found, error, _pflops(row, row.published), pflops)


def _time_and_num(times: Sample | None) -> tuple[str, str]:
    return ("-", "0") if times is None else (spread_text(times), str(times.num))


def pflops_text(pflops: float) -> str:
    """Three decimals, as published; three digits where that leaves fewer than two."""
    return f"{pflops:.3f}" if pflops >= 0.01 else f"{pflops:.3g}"


def _pflops(row: Comparison, times: Sample | None) -> str:
    if times is None:
        return "-"
    return pflops_text(row.pflop / times.mean_s)


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


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
    if environment.mode == "sim":
        return f"{MODE_WORDS[environment.mode]}, by {environment.machine}."
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
    if run_source(run) == "simulated":
        return "a simulation: no network was shaped, so none was verified."
    return f"trustworthy: {_probed(run)}"


def _probed(run: Run) -> str:
    """How many figures of the network were checked, against which tolerance."""
    if not run.probes:
        return "the network was not probed."
    results: list[dict[str, Any]] = [probe.result for probe in run.probes]
    num_checks = sum(len(result.get("checks", ())) for result in results)
    tolerance = max(float(result.get("tolerance", 0.0)) for result in results)
    return f"{num_checks} delays and throughputs of the shaped network within {tolerance:.0%}."
