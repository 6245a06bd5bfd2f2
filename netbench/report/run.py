"""The table of a run, as `netbench run` and `table` print it, and what a reader must know of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netbench.plan.command import COMMAND
from netbench.records import Environment, Run
from netbench.report.comparison import Comparison, compare, has_other_model, run_source
from netbench.report.grid import Grid, csv_text, markdown, rich_table
from netbench.report.published import Sample
from netbench.report.tables import pflops_text, seconds_text, spread_text
from netbench.report.throughput import run_caption, run_grid

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
    elif has_other_model(run):
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
