"""`netbench table SCENARIO`: the table of a run again, or what was published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from netbench.commands.files import results_option
from netbench.errors import RecordError, UsageError
from netbench.records import FILE_NAME, find_run, read_run

if TYPE_CHECKING:
    from netbench.records import Record, Run

COLLECTIVE = "collective"
"""The system of a record of `netbench collective`, and how its runs are named."""


@click.command()
@click.argument("scenario")
@click.option(
    "--run", "run_path", type=click.Path(path_type=Path), help="A run's folder.  [default: newest]"
)
@results_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["rich", "markdown", "csv"]),
    default="rich",
    show_default=True,
    help="rich: for a terminal.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Write a picture too (PNG, SVG, PDF)."
)
def command(
    scenario: str, run_path: Path | None, results: Path, form: str, plot: Path | None
) -> None:
    """Print the table of SCENARIO's newest run, beside the published figures where there are any.

    Looks in the results folder, then in its recorded/. Without a run, what was published is
    printed. A run's folder will do for SCENARIO.
    """
    if run_path is None and (Path(scenario) / FILE_NAME).is_file():
        run = read_run(Path(scenario))
        _check_scenario(run, None)
    else:
        name = _scenario_name(scenario, run_path, results)
        path = run_path or find_run(results, name)
        if path is None:
            _print_published(name, results, form, plot)
            return
        run = read_run(path)
        _check_scenario(run, name)
    if {record.system for record in run.records} == {COLLECTIVE}:
        _print_collectives(run, form, plot)
        return
    _print_run(run, form)
    if plot:
        from netbench.report.plots import plot_run  # matplotlib: only when asked for

        plot_run(run, plot)
        click.echo(f"picture: {plot}", err=True)


def _scenario_name(scenario: str, run_path: Path | None, results: Path) -> str:
    """The name of a scenario given by name or file. Raises ScenarioError if there is none."""
    from netbench.report.published import CASES

    if scenario in CASES or run_path or find_run(results, scenario):
        return scenario
    from netbench.scenario import load_scenario

    return load_scenario(scenario).name


def _check_scenario(run: Run, name: str | None) -> None:
    """Raises RecordError for a run without iterations, UsageError for one of another scenario."""
    found = {_recorded_as(record) for record in run.records}
    if not found:
        raise RecordError(f"{run.path}: no iteration is recorded; continue with --resume")
    if name is not None and found != {name}:
        raise UsageError(f"{run.path}: a run of {', '.join(sorted(found))}, not of {name}")


def _recorded_as(record: Record) -> str:
    """What a run is found by: collectives on a scenario's network are no runs of the scenario."""
    return f"{COLLECTIVE}-{record.scenario}" if record.system == COLLECTIVE else record.scenario


def _print_collectives(run: Run, form: str, plot: Path | None) -> None:
    from netbench.report.collective import collective_grid
    from netbench.report.grid import csv_text, markdown, rich_table

    if plot:
        raise UsageError(f"{run.path}: a run of collectives has no picture; leave out --plot")
    grid = collective_grid(run)
    if form != "rich":
        click.echo(markdown(grid) if form == "markdown" else csv_text(grid))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(rich_table(grid))
    console.print(f"records: {run.path}", soft_wrap=True)


def _print_run(run: Run, form: str) -> None:
    from netbench.report.run import render_run, run_csv, run_markdown

    if form == "rich":
        from rich.console import Console

        console = Console(highlight=False)
        console.print(render_run(run))
        console.print(f"records: {run.path}", soft_wrap=True)
    else:
        click.echo(run_markdown(run) if form == "markdown" else run_csv(run))


def _print_published(name: str, results: Path, form: str, plot: Path | None) -> None:
    """What there is without a run: the published means, or nothing."""
    from netbench.report.grid import csv_text, markdown, rich_table
    from netbench.report.published import CASES
    from netbench.report.tables import mean_times

    hint = f"no run of {name} in {results}; make one with: netbench run {name}"
    if name not in CASES or plot:
        raise UsageError(hint)
    grid = mean_times(name)
    if form != "rich":
        click.echo(markdown(grid) if form == "markdown" else csv_text(grid))
        click.echo(hint, err=True)
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(f"[bold]{name}[/bold]: {CASES[name].title}")
    console.print(rich_table(grid))
    console.print("published seconds per iteration, mean over seeds ± half their range")
    console.print(hint)
