"""`netbench table SCENARIO`: print the table of a run, or the published figures."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import click

from netbench.commands.options import FILE, picture_option, prices_option
from netbench.commands.output import plain_console, print_line, results_option
from netbench.errors import NetbenchError, RecordError, UsageError
from netbench.records import FILE_NAME, Run, find_run, read_run
from netbench.report.page.published import CASES
from netbench.report.pictures.style import save_picture
from netbench.report.tables.grid import Grid, csv_text, markdown, rich_table

COLLECTIVE = "collective"
"""System in the records of `netbench collective`, and prefix of its runs' names."""


@click.command()
@click.argument("scenario")
@click.option(
    "--run", "run_path", type=FILE, help="Folder of the run to print.  [default: the newest]"
)
@prices_option
@results_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["rich", "markdown", "csv"]),
    default="rich",
    help="Format of the table; rich is for terminals.",
)
@picture_option
def command(
    scenario: str,
    run_path: Path | None,
    prices: Path | None,
    results: Path,
    form: str,
    plot: Path | None,
) -> None:
    """Print the table of SCENARIO's newest run, beside the published figures if there are any.

    Searches the results folder, then its subfolder recorded. Without a run, only the published
    figures are printed. SCENARIO may also be a run's folder.
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
    _print_run(run, results, form, _costs(run, scenario, prices))
    if plot:
        from netbench.report.pictures.run import run_figure  # matplotlib: only when asked for

        save_picture(run_figure(run), plot)
        click.echo(f"picture: {plot}", err=True)


def _scenario_name(scenario: str, run_path: Path | None, results: Path) -> str:
    """Return the name of a scenario given by name or file. Raises ScenarioError if unknown."""
    if scenario in CASES or run_path or find_run(results, scenario):
        return scenario
    from netbench.scenario import load_scenario

    return load_scenario(scenario).name


def _check_scenario(run: Run, name: str | None) -> None:
    """Raises RecordError for a run without iterations, UsageError for one of another scenario."""
    # Collectives on a network are found by a name of their own.
    found = {
        f"{COLLECTIVE}-{record.scenario}" if record.system == COLLECTIVE else record.scenario
        for record in run.records
    }
    if not found:
        raise RecordError(
            f"{run.path}: no iteration is recorded; continue with netbench run --resume"
        )
    if name is not None and found != {name}:
        raise UsageError(f"{run.path}: a run of {', '.join(sorted(found))}, not of {name}")


def _print_collectives(run: Run, form: str, plot: Path | None) -> None:
    from netbench.report.tables.collective import collective_grid

    if plot:
        raise UsageError(f"{run.path}: a run of collectives has no picture; leave out --plot")
    _print_grid(collective_grid(run), form, foot=[f"records: {run.path}"])


def _print_grid(grid: Grid, form: str, head: str = "", foot: Sequence[str] = ()) -> None:
    """Print a table, between `head` and `foot` if its format is rich."""
    if form != "rich":
        click.echo(markdown(grid) if form == "markdown" else csv_text(grid))
        return
    console = plain_console()
    if head:
        console.print(head)
    console.print(rich_table(grid))
    for line in foot:
        print_line(console, line)


def _costs(run: Run, name: str, prices: Path | None) -> Mapping[str, float]:
    """Return what `run_usd` does, with the scenario of that name or file, or that of the run.

    Scenarios are read only where there may be prices: pydantic takes a third of a second.
    """
    has_sets = any(plan.get("peers") for plan in run.plans.values())
    if prices is None and not has_sets and not _lists_prices(Path(name)):
        return {}
    from netbench.report.tables.cost import run_usd
    from netbench.scenario import load_scenario
    from netbench.scenario.prices import read_prices

    given = None if prices is None else read_prices(prices)
    for each in (name, run.records[0].scenario):
        with suppress(NetbenchError):
            return run_usd(run, load_scenario(each), given)
    return {}


def _lists_prices(path: Path) -> bool:
    """Return True for a scenario file with a section `prices`."""
    return path.is_file() and "\nprices:" in path.read_text(encoding="utf-8", errors="replace")


def _print_run(run: Run, results: Path, form: str, usd: Mapping[str, float]) -> None:
    """Print a run, beside the newest one with another source; a row of CSV is of this run alone."""
    from netbench.report.tables.comparison import find_others
    from netbench.report.tables.run import render_run, run_csv, run_markdown

    others = find_others(results, run) if form != "csv" else ()
    if form == "rich":
        console = plain_console()
        console.print(render_run(run, others, usd))
        print_line(console, f"records: {run.path}")
    else:
        markdown_text = run_markdown(run, others, usd)
        click.echo(markdown_text if form == "markdown" else run_csv(run, usd))


def _print_published(name: str, results: Path, form: str, plot: Path | None) -> None:
    """Print the published means of a scenario without a run. Raises UsageError if it has none."""
    from netbench.report.page.published_tables import mean_times  # pandas

    hint = f"no run of {name} in {results}; make one with: netbench run {name}"
    if name not in CASES or plot:
        raise UsageError(hint)
    head = f"{name}: {CASES[name].title}"
    note = "published seconds per iteration, mean over seeds ± half their range"
    _print_grid(mean_times(name), form, head, [note, hint])
    if form != "rich":
        click.echo(hint, err=True)
