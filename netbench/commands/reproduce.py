"""`netbench reproduce`: `results/README.md` from what was published, simulated and recorded."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from netbench.commands.files import results_option
from netbench.errors import RecordError, UsageError
from netbench.units import counted

EXIT_OUT_OF_DATE = 1
DIFF_LINES = 20
"""Of a difference, printed by `reproduce --check`."""

OUT_OF_DATE = "is out of date; write it with: make"


@click.command()
@click.option(
    "--simulate",
    is_flag=True,
    help="First simulate every published time and every prediction, for results/simulated/.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file is out of date.")
@results_option
def command(simulate: bool, check: bool, results: Path) -> int:
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
    """Write the simulated tables and their pictures, or check the tables; whether all is well."""
    from rich.console import Console

    from netbench.commands import simulated_layouts
    from netbench.commands.live import track
    from netbench.commands.simulated import plan_tables, rows_of, simulate_tasks, tasks_of
    from netbench.report.simulated import FOLDER, LAYOUTS, TIMES, table_path, table_text

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
    _draw(results)
    click.echo(f"{len(tasks)} simulations written to {results / FOLDER}")
    return True


def _draw(results: Path) -> None:
    """The pictures of the simulated tables, as they are written."""
    from netbench.report.scaling_plot import plot_scaling
    from netbench.report.scatter import plot_scatter
    from netbench.report.simulated import (
        FOLDER,
        PICTURE,
        SCALING,
        SCALING_PICTURE,
        read_table,
        simulated_settings,
    )

    settings, scaling = simulated_settings(results), read_table(results, SCALING)
    assert settings is not None
    assert scaling is not None
    plot_scatter(settings, results / FOLDER / PICTURE)
    plot_scaling(scaling, results / FOLDER / SCALING_PICTURE)


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
