"""`netbench trace`: show what ranks did during an iteration of `netbench run --trace`."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from netbench.commands.options import FILE, picture_option
from netbench.commands.output import check_writable, print_line, results_option, wide_console
from netbench.errors import UsageError
from netbench.plan.describe import describe_plan
from netbench.plan.model import Plan
from netbench.plan.serial import plan_from_json
from netbench.records import Run, find_run, read_run
from netbench.report.numbers import percent_text
from netbench.report.pictures.style import save_picture
from netbench.systems import position_of
from netbench.timelines import (
    Timeline,
    name_of_rank,
    read_timeline,
    timeline_events,
    trace_path,
    write_events,
)
from netbench.units import counted, format_time

SAME = ("variant", "layout", "workload", "placement", "num_micro_batches")
"""Fields of plans whose iterations are the same work."""

OTHER = "other run"

MAX_ROWS = 16
"""Maximum number of ranks in a picture."""


@click.group()
def trace() -> None:
    """Show timelines of iterations by rank. Traces of links: netbench net trace."""


@trace.command(short_help="Compare measured, emulated and simulated timelines.")
@click.argument("run")
@click.argument("other", required=False)
@click.option(
    "--plan", "digits", help="First digits of the plan's hash.  [default: the first plan]"
)
@picture_option
@click.option("-o", "--output", type=FILE, help="Write one trace with both (.json, .json.gz).")
@results_option
def diff(
    run: str,
    other: str | None,
    digits: str | None,
    plot: Path | None,
    output: Path | None,
    results: Path,
) -> None:
    """Compare a traced iteration with its simulation, or with that of the run OTHER.

    RUN and OTHER are runs' folders, or scenarios' names for their newest runs. OTHER must have a
    trace of the same system, layout and workload, e.g. emulated where that of RUN was measured.
    """
    check_writable(output, pictures=[plot])
    plan, recorded = _traced(read_run(_find_run(run, results)), digits)
    console = wide_console()
    print_line(console, f"plan {describe_plan(plan)}\n")
    beside = _simulated(plan) if other is None else _alike(plan, _find_run(other, results))
    if beside.source == recorded.source:
        beside = dataclasses.replace(beside, source=f"{beside.source}, {OTHER}")
    _print(console, plan, recorded, beside)
    if output is not None:
        both = (recorded, beside)
        seconds = {f"{found.source}_iteration_s": found.iteration_s for found in both}
        events = (  # ranks of both are side by side
            event
            for place, found in enumerate(both)
            for event in timeline_events(
                plan, found, prefix=f"{found.source}: ", first=place, step=2
            )
        )
        write_events(output, {"plan": recorded.plan, **seconds}, events)
        print_line(console, f"trace: {output} (open it in ui.perfetto.dev)")
    if plot is not None:
        from netbench.report.pictures.trace_diff import diff_figure

        model = plan.workload
        title = (
            f"{plan.scenario}, {plan.variant}, {counted(model.layers, 'layer')}, "
            f"batch {model.batch}: {recorded.iteration_s:.4g} s {recorded.source}, "
            f"{beside.iteration_s:.4g} s {beside.source}"
        )
        save_picture(diff_figure(title, recorded, beside, _shown(plan)), plot)
        print_line(console, f"picture: {plot}")


def _simulated(plan: Plan) -> Timeline:
    from netbench.explain.timeline import unfold
    from netbench.simulator import simulate  # numba: only when asked for

    return unfold(simulate(plan, whole=True))


def _alike(plan: Plan, path: Path) -> Timeline:
    """Return the trace of the same work in another run. Raises UsageError if there is none."""
    found = read_run(path)
    for key, values in found.plans.items():
        trace = trace_path(found.path.parent, key)
        if trace.exists():
            other = plan_from_json(json.dumps(values))
            if all(getattr(other, name) == getattr(plan, name) for name in SAME):
                return read_timeline(trace)
    ranks = counted(plan.layout.num_ranks, "rank")
    raise UsageError(
        f"{found.path.parent} has no trace of {plan.variant} on {ranks}, {plan.workload.name} "
        f"B{plan.workload.batch}; run it there too, with netbench run --trace"
    )


def _find_run(run: str, results: Path) -> Path:
    path = Path(run)
    if path.exists():
        return path
    found = find_run(results, run)
    if found is None:
        raise UsageError(
            f"{run} is neither a run's folder nor a scenario with a run in {results}; make one "
            f"with netbench run {run} --trace"
        )
    return found


def _traced(run: Run, digits: str | None) -> tuple[Plan, Timeline]:
    """Return the selected plan and its trace. Raises UsageError if there is none."""
    folder = run.path if run.path.is_dir() else run.path.parent
    traced = [key for key in run.plans if trace_path(folder, key).exists()]
    if not traced:
        raise UsageError(
            f"{folder} has no traces; run its scenario again with netbench run --trace"
        )
    chosen = [key for key in traced if key.startswith((digits or "").lower())]
    if not chosen or (digits and len(chosen) > 1):
        raise UsageError(
            f"--plan {digits} matches {counted(len(chosen), 'traced plan')}; expected one of "
            f"{', '.join(traced)}"
        )
    plan = plan_from_json(json.dumps(run.plans[chosen[0]]))
    return plan, read_timeline(trace_path(folder, chosen[0]))


def _stages(plan: Plan) -> Mapping[str, Sequence[int]]:
    """Ranks by stage; without stages, those that the one simulated rank represents."""
    stages: dict[str, list[int]] = {}
    for rank, device in enumerate(plan.placement):
        if plan.has_pipelines:
            stages.setdefault(f"{position_of(plan, rank).stage}", []).append(rank)
        elif not plan.type_stages:
            stages.setdefault("all", []).append(rank)
        elif plan.stages_on(device)[0].forward_s == plan.at_slowest().stages[0].forward_s:
            stages.setdefault("slowest", []).append(rank)
    return {name: stages[name] for name in sorted(stages, key=lambda name: (len(name), name))}


def _shown(plan: Plan) -> dict[int, str]:
    """Ranks of a picture with their names, pipeline by pipeline."""
    members = list(zip(*_stages(plan).values(), strict=True))
    ranks = [rank for pipeline in members for rank in pipeline]
    return {rank: name_of_rank(plan, rank) for rank in ranks[:MAX_ROWS]}


def _print(console: Console, plan: Plan, recorded: Timeline, beside: Timeline) -> None:
    from netbench.report.pictures.trace_diff import diff_table, difference_lines

    stages = _stages(plan)
    apart = beside.iteration_s / recorded.iteration_s - 1
    print_line(
        console,
        Text.assemble(
            (f"{recorded.iteration_s:.4g} s", "bold"),
            f" {recorded.source}, ",
            (f"{beside.iteration_s:.4g} s", "bold"),
            f" {beside.source} ({percent_text(apart)})\n",
        ),
    )
    what = ", seconds, mean over the ranks of a stage"
    console.print(Text.assemble(("Where a rank's time goes", "bold"), what))
    console.print(diff_table(recorded, beside, stages))
    console.print("\nLargest differences", style="bold")
    for line in difference_lines(recorded, beside, stages):
        print_line(console, f"  stage {line}")
    for found in (recorded, beside):
        if found.clock_error_s:
            known = format_time(found.clock_error_s)
            print_line(
                console, f"\n{found.source}: moments on different hosts are known to {known}"
            )
