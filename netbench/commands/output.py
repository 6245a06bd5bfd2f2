"""Output of commands: consoles and shared lines, tables, and files, checked before any work."""

import os
from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from netbench.commands.options import FILE
from netbench.errors import EXIT_NOT_TRUSTWORTHY, UsageError
from netbench.files import check_no_input, write_file

if TYPE_CHECKING:
    from netbench.records import Run
    from netbench.scenario import Scenario

FILE_COLUMNS = 100
"""Width of output that goes to a file or a pipe."""


def wide_console(columns: int = FILE_COLUMNS) -> Console:
    """Console as wide as the terminal, or `columns` wide where there is none."""
    console = plain_console()
    return console if console.is_terminal else plain_console(width=columns)


def plain_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Console that prints text as it is: titles and names of users may have square brackets."""
    return Console(stderr=stderr, width=width, highlight=False, markup=False)


def print_line(console: Console, text: str | Text, style: str | None = None) -> None:
    """Print a line, wrapped between words on a terminal; elsewhere it stays one line."""
    console.print(text, style=style, soft_wrap=not console.is_terminal)


def heading(scenario: "Scenario") -> Text:
    """Name and title of a scenario."""
    return Text.assemble((scenario.name, "bold"), f": {scenario.title}" if scenario.title else "")


def print_warning(console: Console, subject: str, warning: str) -> None:
    """Print a warning. subject: its first word, e.g. memory."""
    print_line(console, Text.assemble((subject, "yellow"), f": {warning}"))


def print_verdict(console: Console, run: "Run") -> int:
    """Print why a run is not trustworthy, if it is not; return the exit code of its command."""
    for reason in run.shared_reasons:
        alarm = Text.assemble(("not trustworthy", "bold red"), f": {reason}")
        print_line(console, alarm)
    return exit_code(run)


def exit_code(run: "Run") -> int:
    """Return the exit code of a command that made `run`."""
    return EXIT_NOT_TRUSTWORTHY if run.reasons else 0


def plain_table(*columns: str, right: Container[str] = ()) -> Table:
    """Return an empty table without lines. right: columns that are aligned right."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    return table


results_option = click.option(
    "--results", default="results", type=FILE, help="Folder that holds the runs."
)


def check_writable(*files: Path | None, pictures: Sequence[Path | None] = ()) -> None:
    """Raises UsageError if a path cannot be written, is given twice or is an input of the command,
    or a format is unknown."""
    wanted = [path for path in (*files, *pictures) if path is not None]
    for path, count in Counter(path.absolute() for path in wanted).items():
        if count > 1:
            raise UsageError(f"{count} outputs would be written to {path}; choose different paths")
    for path in wanted:
        folder = path.absolute().parent
        if not folder.is_dir():
            raise UsageError(f"{path}: folder {path.parent} does not exist; create it first")
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; name a file in it")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(f"{path}: this user may not write it; choose another path")
        check_no_input(path)
    for path in filter(None, pictures):
        from netbench.report.pictures.style import check_format  # matplotlib

        check_format(path)


def check_results(results: Path) -> None:
    """Raises UsageError if no run can be started in a folder, which need not exist."""
    path = results.absolute()
    found = next(folder for folder in (path, *path.parents) if os.access(folder, os.F_OK))
    if not (found.is_dir() and os.access(found, os.W_OK | os.X_OK)):
        raise UsageError(f"--results {results}: {found} is not a folder that this user may write")


def write_text(output: Path | None, text: str, what: str) -> None:
    """Write to a file and report it, or to standard output. Raises UsageError."""
    if output is None:
        click.echo(text, nl=False)
        return
    write_file(output, text)
    click.echo(f"wrote {output}: {what}", err=True)
