"""`netbench table` prints a run's table again; `netbench reproduce` writes `results/README.md`."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from netbench.errors import RecordError, UsageError
from netbench.records import FILE_NAME, find_run, read_run
from netbench.units import counted

if TYPE_CHECKING:
    from netbench.records import Record, Run

COLLECTIVE = "collective"
"""The system of a record of `netbench collective`, and how its runs are named."""

EXIT_OUT_OF_DATE = 1
DIFF_LINES = 20
"""Of a difference, printed by `reproduce --check`."""

OUT_OF_DATE = "is out of date; write it with: make"

RESULTS = click.option(
    "--results",
    default="results",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of runs.",
)


@click.command()
@click.argument("scenario")
@click.option(
    "--run", "run_path", type=click.Path(path_type=Path), help="A run's folder.  [default: newest]"
)
@RESULTS
@click.option(
    "--format",
    "form",
    type=click.Choice(["rich", "markdown", "csv"]),
    default="rich",
    show_default=True,
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Write a picture too (PNG, SVG, PDF)."
)
def table(
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


@click.command()
@click.option(
    "--simulate",
    is_flag=True,
    help="First simulate every published time and every prediction, for results/simulated/.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file is out of date.")
@RESULTS
def reproduce(simulate: bool, check: bool, results: Path) -> int:
    """Regenerate results/README.md from the published figures, results/simulated/ and the recorded
    runs.

    Simulated times that are checked may be 0.1% away: another processor rounds otherwise.
    """
    from netbench.report.readme import results_markdown

    if not results.is_dir():
        raise UsageError(f"{results} is not a folder; run this in a checkout, or give --results")
    if simulate and not _simulate(results, check):
        return EXIT_OUT_OF_DATE
    path = results / "README.md"
    wanted = results_markdown(results)
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    if check:
        return _report_difference(path, found, wanted)
    _write(path, wanted)
    click.echo(f"{path} {'is up to date' if found == wanted else 'written'}")
    return 0


def _simulate(results: Path, check: bool) -> bool:
    """Write the simulated tables and their picture, or check the tables; whether all is well."""
    from rich.console import Console

    from netbench.commands import simulated_layouts
    from netbench.commands.live import track
    from netbench.commands.simulated import plan_tables, rows_of, simulate_tasks, tasks_of
    from netbench.report.scaling_plot import plot_scaling
    from netbench.report.scatter import plot_scatter
    from netbench.report.simulated import (
        FOLDER,
        LAYOUTS,
        PICTURE,
        SCALING,
        SCALING_PICTURE,
        TIMES,
        read_table,
        simulated_settings,
        table_path,
        table_text,
    )

    tables = plan_tables()
    tasks = tasks_of(tables)
    console = Console(stderr=True, highlight=False)
    times = dict(track(console, simulate_tasks(tasks), len(tasks), "simulations"))
    rows = {name: rows_of(cells, times) for name, cells in tables.items()}
    fastest = simulated_layouts.best_published(rows[TIMES])
    layouts = simulated_layouts.layout_rows(fastest)
    rows[LAYOUTS] = list(track(console, layouts, len(fastest), "layouts"))
    texts = {name: table_text(name, table) for name, table in rows.items()}
    if check:
        checked = [_check_table(table_path(results, name), text) for name, text in texts.items()]
        return all(checked)
    for name, text in texts.items():
        path = table_path(results, name)
        path.parent.mkdir(exist_ok=True)
        _write(path, text)
    settings = simulated_settings(results)
    assert settings is not None
    picture = results / FOLDER / PICTURE
    plot_scatter(settings, picture)
    scaling = read_table(results, SCALING)
    assert scaling is not None
    plot_scaling(scaling, results / FOLDER / SCALING_PICTURE)
    click.echo(f"{len(tasks)} simulations written to {picture.parent}")
    return True


def _check_table(path: Path, wanted: str) -> bool:
    """Whether a simulated table is as it would be written now; says where it is not."""
    from netbench.report.simulated import differences

    found = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = differences(found, wanted)
    for line in lines[:DIFF_LINES]:
        click.echo(line)
    if lines:
        click.echo(f"{path} {OUT_OF_DATE} simulate ({counted(len(lines), 'difference')})", err=True)
    return not lines


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path}: cannot be written: {error.strerror}") from error


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


def _report_difference(path: Path, found: str, wanted: str) -> int:
    if found == wanted:
        click.echo(f"{path} is up to date")
        return 0
    lines = difflib.unified_diff(
        found.splitlines(), wanted.splitlines(), f"{path}", "regenerated", n=1, lineterm=""
    )
    for line in list(lines)[:DIFF_LINES]:
        click.echo(line)
    click.echo(f"{path} {OUT_OF_DATE} reproduce-table", err=True)
    return EXIT_OUT_OF_DATE
