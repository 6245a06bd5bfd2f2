"""`netbench trace`: what ranks did during an iteration that was run with `--trace`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from netbench.commands.files import check_formats, check_writable, results_option
from netbench.commands.lazy import Commands, LazyGroup
from netbench.commands.live import wide_console
from netbench.errors import UsageError
from netbench.plan import Plan, describe_plan, plan_from_json
from netbench.plan.timeline import (
    Event,
    Timeline,
    name_of_rank,
    read_timeline,
    stage_of,
    timeline_events,
    trace_path,
    write_events,
)
from netbench.records import Run, find_run, read_run
from netbench.units import counted

COMMANDS: Commands = {
    "diff": ("netbench.commands.trace", "diff", "Emulated and simulated timelines side by side."),
}

MAX_ROWS = 16
"""Ranks in a picture: whole pipelines first."""


@click.group(cls=LazyGroup, commands=COMMANDS)
def trace() -> None:
    """Timelines of iterations, rank by rank (those of links: netbench net trace)."""


@click.command()
@click.argument("run")
@click.option("--plan", "digits", help="First digits of a plan's hash.  [default: the first]")
@click.option("--plot", type=click.Path(path_type=Path), help="Write a picture (PNG, SVG, PDF).")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write one trace of both (.json, .json.gz).",
)
@results_option
def diff(
    run: str, digits: str | None, plot: Path | None, output: Path | None, results: Path
) -> None:
    """Compare a traced iteration with its simulation: RUN is a run's folder, or a scenario's name
    for its newest run."""
    check_writable(plot, output)
    check_formats(plot)
    found = read_run(_find_run(run, results))
    plan, recorded = _traced(found, digits)
    console = wide_console()
    console.print(f"plan {describe_plan(plan)}\n", soft_wrap=True)
    simulated = _simulated(plan)
    _print(console, plan, recorded, simulated)
    if output is not None:
        write_events(output, _about(recorded, simulated), _both(plan, recorded, simulated))
        console.print(f"trace: {output} (open it in ui.perfetto.dev)", soft_wrap=True)
    if plot is not None:
        from netbench.report.trace_diff import plot_diff

        model = plan.workload
        title = (
            f"{plan.scenario}, {plan.variant}, {counted(model.layers, 'layer')}, "
            f"batch {model.batch}: {recorded.iteration_s:.4g} s {recorded.source}, "
            f"{simulated.iteration_s:.4g} s simulated"
        )
        plot_diff(title, recorded, simulated, _shown(plan), plot)
        console.print(f"picture: {plot}", soft_wrap=True)


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
    """The plan that is asked for, and its trace. Raises UsageError where there is none."""
    folder = run.path if run.path.is_dir() else run.path.parent
    traced = [key for key in run.plans if trace_path(folder, key).exists()]
    if not traced:
        raise UsageError(
            f"{folder} has no traces; run its scenario again with netbench run --trace"
        )
    chosen = [key for key in traced if key.startswith((digits or "").lower())]
    if not chosen or (digits and len(chosen) > 1):
        few = "no" if not chosen else f"{len(chosen)}"
        raise UsageError(
            f"--plan {digits}: {few} traced plans begin so; there are {', '.join(traced)}"
        )
    plan = plan_from_json(json.dumps(run.plans[chosen[0]]))
    return plan, read_timeline(trace_path(folder, chosen[0]))


def _simulated(plan: Plan) -> Timeline:
    from netbench.simulator import simulate  # numba: only when asked for
    from netbench.simulator.unfold import unfold

    return unfold(simulate(plan, whole=True))


def _stages(plan: Plan) -> Mapping[str, Sequence[int]]:
    """Ranks by stage, by name; those that the simulated one stands for, where one does."""
    stages: dict[str, list[int]] = {}
    for rank, device in enumerate(plan.placement):
        if plan.schedule != "none":
            stages.setdefault(f"{stage_of(plan, rank)}", []).append(rank)
        elif not plan.type_stages:
            stages.setdefault("all", []).append(rank)
        elif plan.stages_on(device)[0].forward_s == plan.at_slowest().stages[0].forward_s:
            stages.setdefault("slowest", []).append(rank)
    return {name: stages[name] for name in sorted(stages, key=lambda name: (len(name), name))}


def _shown(plan: Plan) -> dict[int, str]:
    """Ranks of a picture, with their names: pipeline by pipeline."""
    members = list(zip(*_stages(plan).values(), strict=True))
    ranks = [rank for pipeline in members for rank in pipeline]
    return {rank: name_of_rank(plan, rank) for rank in ranks[:MAX_ROWS]}


def _print(console: Console, plan: Plan, recorded: Timeline, simulated: Timeline) -> None:
    from netbench.report.trace_diff import diff_table, difference_lines

    stages = _stages(plan)
    apart = simulated.iteration_s / recorded.iteration_s - 1
    console.print(
        f"[bold]{recorded.iteration_s:.4g} s[/bold] {recorded.source}, "
        f"[bold]{simulated.iteration_s:.4g} s[/bold] simulated ({apart:+.1%})\n",
        soft_wrap=True,
    )
    console.print("[bold]Where a rank's time goes[/bold], seconds, mean over the ranks of a stage")
    console.print(diff_table(recorded, simulated, stages))
    console.print("\n[bold]Largest differences[/bold]")
    for line in difference_lines(recorded, simulated, stages):
        console.print(f"  stage {line}", soft_wrap=True)


def _both(plan: Plan, recorded: Timeline, simulated: Timeline) -> Iterator[Event]:
    """Events of one trace with the ranks of both in turn."""
    for place, timeline in enumerate((recorded, simulated)):
        yield from timeline_events(
            plan, timeline, prefix=f"{timeline.source}: ", first=place, step=2
        )


def _about(recorded: Timeline, simulated: Timeline) -> dict[str, object]:
    return {
        "plan": recorded.plan,
        **{f"{found.source}_iteration_s": found.iteration_s for found in (recorded, simulated)},
    }
