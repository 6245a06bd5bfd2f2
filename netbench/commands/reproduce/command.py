"""`netbench reproduce`: the pages of `results/`, from published, simulated and recorded times."""

import difflib
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import click

from netbench.commands.output import plain_console, results_option
from netbench.errors import RecordError, UsageError
from netbench.files import write_file
from netbench.progress import track
from netbench.report.page.simulated import (
    FOLDER,
    FORMATS,
    LAYOUTS,
    PICTURE,
    SCALING,
    SCALING_PICTURE,
    TIMES,
    all_settings,
    differences,
    read_table,
    simulated_settings,
    table_path,
    table_text,
)
from netbench.units import counted

EXIT_OUT_OF_DATE = 1
DIFF_LINES = 20
"""Lines of a difference that `reproduce --check` prints."""

OUT_OF_DATE = "is out of date; write it with: make"


@click.command()
@click.option(
    "--simulate",
    is_flag=True,
    help="First simulate every published time and every prediction, for results/simulated/.",
)
@click.option(
    "--check", is_flag=True, help="Write nothing; exit 1 if a page or table is out of date."
)
@click.option(
    "--register",
    is_flag=True,
    help="First add predictions that the ledger lacks, with today's date and the commit.",
)
@results_option
def command(simulate: bool, check: bool, register: bool, results: Path) -> int:
    """Regenerate the pages and pictures of results/ from the published figures, results/simulated/
    and the recorded runs.

    With --simulate --check, simulated times may differ by 0.1%, because processors round
    differently.
    """
    from netbench.report.page.accuracy import order_text, orders
    from netbench.report.page.pages import results_pages

    if not results.is_dir():
        raise UsageError(f"{results} is not a folder; run this in a checkout, or give --results")
    if register and check:
        raise UsageError("--check writes nothing; leave out --register")
    if simulate and not _simulate(results, check):
        return EXIT_OUT_OF_DATE
    if register:
        _register(results)
    pages = {results / name: text for name, text in results_pages(results).items()}
    found = {path: path.read_text(encoding="utf-8") if path.exists() else "" for path in pages}
    if check:
        checked = [_is_up_to_date(path, found[path], wanted) for path, wanted in pages.items()]
        return 0 if all(checked) else EXIT_OUT_OF_DATE
    for path, text in pages.items():
        path.parent.mkdir(exist_ok=True)
        write_file(path, text, RecordError)
        click.echo(f"{path} {'is up to date' if found[path] == text else 'written'}")
    _draw(results)
    if (settings := all_settings(results)) is not None:
        click.echo(f"in the right order: {order_text(orders(settings))} of published systems")
    return 0


def _register(results: Path) -> None:
    """Add missing predictions to the ledger. Raises RecordError if the code is not committed."""
    from netbench.commands.reproduce.simulated import predicted
    from netbench.report.page.blind import predictions
    from netbench.report.page.ledger import blind_rows, new_rows, register, unregistered
    from netbench.report.page.multicloud.data import experiments

    commit = _committed(results, "rev-parse", "--short=12", "HEAD")
    if changed := _committed(results, "status", "--porcelain", "--", ":/netbench", ":/scenarios"):
        raise RecordError(f"a prediction names the commit of its code; commit first:\n{changed}")
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    rows = new_rows(results, experiments(), date, commit)
    blind = unregistered(results, predictions())
    timed = track(plain_console(stderr=True), predicted(blind), len(blind), "predictions")
    rows += blind_rows(timed, date, commit)
    path = register(results, rows)
    click.echo(f"{counted(len(rows), 'prediction')} added to {path}")


def _committed(results: Path, *words: str) -> str:
    """Return what git prints. Raises RecordError if it fails."""
    found = subprocess.run(
        ["git", "-C", str(results), *words], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise RecordError(f"git {words[0]}: {found.stderr.strip()}; register in a checkout")
    return found.stdout.strip()


def _simulate(results: Path, check: bool) -> bool:
    """Write the simulated tables, or check them; return whether they are up to date."""
    from netbench.commands.reproduce.simulated import (
        best_published,
        layout_rows,
        plan_tables,
        rows_of,
        simulate_tasks,
        tasks_of,
    )

    tables = plan_tables()
    tasks = tasks_of(tables)
    console = plain_console(stderr=True)
    times = dict(track(console, simulate_tasks(tasks), len(tasks), "simulations"))
    rows = {name: rows_of(cells, times) for name, cells in tables.items()}
    fastest = best_published(rows[TIMES])
    found = layout_rows(fastest)
    rows[LAYOUTS] = list(track(console, found, len(fastest), "layouts"))
    texts = {name: table_text(name, table) for name, table in rows.items()}
    if check:
        checked = [_check_table(table_path(results, name), text) for name, text in texts.items()]
        return all(checked)
    for name, text in texts.items():
        path = table_path(results, name)
        path.parent.mkdir(exist_ok=True)
        write_file(path, text, RecordError)
    click.echo(f"{len(tasks)} simulations written to {results / FOLDER}")
    return True


def _draw(results: Path) -> None:
    """Draw the pictures of the pages, if anything has been simulated."""
    from netbench.report.page.pages import RECORDED, recorded_runs

    settings, scaling = simulated_settings(results), read_table(results, SCALING)
    if settings is None or scaling is None:
        return
    from netbench.report.page.multicloud.data import experiments
    from netbench.report.pictures.multicloud import cloud_figures
    from netbench.report.pictures.residuals import residual_figure
    from netbench.report.pictures.scaling import scaling_figure
    from netbench.report.pictures.style import save_picture

    runs = [run for found in recorded_runs(results / RECORDED).values() for run in found]
    figures = {PICTURE: residual_figure(settings, runs), SCALING_PICTURE: scaling_figure(scaling)}
    figures |= cloud_figures(experiments())
    for name, figure in figures.items():
        for suffix in FORMATS:
            save_picture(figure, results / FOLDER / f"{name}.{suffix}")


def _check_table(path: Path, wanted: str) -> bool:
    """Return whether a simulated table is up to date; print its differences."""
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = differences(found, wanted)
    for line in lines[:DIFF_LINES]:
        click.echo(line)
    if lines:
        click.echo(f"{path} {OUT_OF_DATE} simulate ({counted(len(lines), 'difference')})", err=True)
    return not lines


def _is_up_to_date(path: Path, found: str, wanted: str) -> bool:
    """Return whether a page is up to date; print its difference."""
    if found == wanted:
        click.echo(f"{path} is up to date")
        return True
    lines = difflib.unified_diff(
        found.splitlines(), wanted.splitlines(), f"{path}", "regenerated", n=1, lineterm=""
    )
    for line in list(lines)[:DIFF_LINES]:
        click.echo(line)
    click.echo(f"{path} {OUT_OF_DATE} reproduce-table", err=True)
    return False
