"""`netbench report [RUN ...]`: write one HTML page of runs, to forward."""

import shlex
from pathlib import Path

import click

from netbench.commands.options import FILE
from netbench.commands.output import (
    check_writable,
    exit_code,
    plain_console,
    print_verdict,
    results_option,
)
from netbench.errors import UsageError
from netbench.files import write_file
from netbench.records import FILE_NAME, Run, find_run, newest_run, read_run
from netbench.units import format_bytes

DEFAULT = Path("report.html")

WARN_BYTES = 3_000_000
"""Size above which a page is reported as too large to forward easily."""


@click.command()
@click.argument("runs", metavar="[RUN ...]", nargs=-1)
@click.option(
    "-o", "--output", type=FILE, default=DEFAULT, help="HTML file to write.", metavar="FILE"
)
@click.option(
    "--no-traces", is_flag=True, help="Leave out the traces for Perfetto: a smaller page."
)
@results_option
def command(runs: tuple[str, ...], output: Path, no_traces: bool, results: Path) -> int:
    """Write one self-contained HTML page of runs.

    RUN is a run's folder, or a scenario's name for its newest run. Without RUN, the newest run of
    all is taken. With several, all are compared with the first.

    The page has the records of the runs, with their command lines and the description of the host.

    Exit code 3: the page was written, and a run on it is not trustworthy.
    """
    check_writable(output)
    found = [read_run(path) for path in _paths(runs, results)]
    _check_distinct(found)
    from netbench.report.html.page import render_page  # altair, vl-convert: not for --help

    words = ["netbench", "report", *(run.run_id for run in found)]
    console = plain_console(stderr=True)
    with console.status("reading") as status:
        page = render_page(found, command=words, traces=not no_traces, watch=status.update)
    write_file(output, page)
    size = len(page.encode())
    click.echo(f"wrote {output}: {format_bytes(size, 3)}, {_names(found)}; open it in a browser")
    if size > WARN_BYTES and not no_traces:
        click.echo("the page is large; add --no-traces for a smaller one", err=True)
    for run in found:
        print_verdict(plain_console(), run)
    return max(map(exit_code, found))


def _paths(runs: tuple[str, ...], results: Path) -> list[Path]:
    """Return the record file or folder of each run. Raises UsageError if there is none."""
    if not runs:
        newest = newest_run(results)
        if newest is None:
            raise UsageError(f"{results} has no run; make one, e.g. with: netbench run case3")
        return [newest]
    return [_path(run, results) for run in runs]


def _path(run: str, results: Path) -> Path:
    path = Path(run)
    if (path / FILE_NAME).is_file() or path.is_file():
        return path
    for folder in (results, results / "recorded"):
        if run and (folder / run / FILE_NAME).is_file():
            return folder / run
    newest = find_run(results, run)
    if newest is None:
        raise UsageError(
            f"{run} is neither a run's folder nor a scenario with a run in {results}; make one "
            f"with: {shlex.join(['netbench', 'run', run])}"
        )
    return newest


def _check_distinct(runs: list[Run]) -> None:
    """Raises UsageError for a run that is given twice."""
    ids = [run.run_id for run in runs]
    if again := [name for place, name in enumerate(ids) if name in ids[:place]]:
        raise UsageError(f"run {again[0]} is given twice; keep one of the two")


def _names(runs: list[Run]) -> str:
    return " and ".join(run.run_id for run in runs)
