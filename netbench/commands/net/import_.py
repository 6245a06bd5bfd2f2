"""`netbench net import FILE...`: convert measurements of a real network to a scenario."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from netbench.commands.net.import_run import run_scenario
from netbench.commands.options import DELAY, FILE, RATE
from netbench.commands.output import check_writable, results_option, write_text
from netbench.errors import ScenarioError, UsageError
from netbench.files import read_text
from netbench.limits import MAX_DEVICES
from netbench.scenario.measured.export import Frame, matrix_csv, scenario_yaml
from netbench.scenario.measured.matrices import Matrix, completed, merge, renamed
from netbench.scenario.measured.readings import Reader, read_matrix
from netbench.scenario.model import Link

FOR_RUNS = ("run_path", "results", "output", "name", "title")
"""Parameters that apply to a run."""


@click.command("import")
@click.argument("files", metavar="[SOURCE,DESTINATION=]FILE...", nargs=-1)
@click.option(
    "--run",
    "run_path",
    metavar="RUN",
    help="Run whose measured network to import, instead of FILEs: its folder, or the name of a "
    "scenario for its newest run.",
)
@results_option
@click.option("-o", "--output", type=FILE, help="File to write instead of stdout.")
@click.option("--csv", type=FILE, help="File for the matrix.")
@click.option("--name", help="Name of the scenario.  [default: the output's]")
@click.option("--title", default="", show_default=False, help="Title of the scenario.")
@click.option(
    "--rename", "renames", multiple=True, metavar="PLACE=NAME", help="Rename a place to NAME."
)
@click.option("--symmetric", is_flag=True, help="Fill a missing direction with the opposite one.")
@click.option("--round-trip", is_flag=True, help="Delays in tables are round trips: halve them.")
@click.option(
    "--delay-unit",
    default="",
    show_default=False,
    metavar="UNIT",
    help="Unit of bare delays in tables: ms.",
)
@click.option(
    "--bandwidth-unit",
    default="",
    show_default=False,
    metavar="UNIT",
    help="Unit of bare bandwidths: Gbit.",
)
@click.option("--jitter", is_flag=True, help="Import jitter too, if there is any.")
@click.option("--nodes", default=1, type=click.IntRange(1, MAX_DEVICES), help="Nodes per region.")
@click.option("--device", default="V100", help="Device of every node.")
@click.option("--inside-delay", type=DELAY, help="One-way delay inside regions.")
@click.option("--inside-bandwidth", type=RATE, help="Bandwidth inside regions.")
@click.option(
    "--inside-note", default="", show_default=False, help="Source of the figures inside regions."
)
@click.option("--comment", "comments", multiple=True, help="Comment line at the head of the file.")
def command(
    *,
    files: tuple[str, ...],
    run_path: str | None,
    results: Path,
    output: Path | None,
    csv: Path | None,
    renames: tuple[str, ...],
    symmetric: bool,
    inside_delay: float | None,
    inside_bandwidth: float | None,
    **options: Any,
) -> None:
    """Write a scenario from measurements: FILEs of `iperf3 -J`, of ping, and tables in CSV; or a
    run (--run).

    A table is square, with places as its header row and first column, one file for delays and one
    for bandwidths; or it has a row per pair, with source, destination and columns such as rtt_ms,
    one_way_delay_ms and bandwidth_gbps. Output of ping needs the prefix SOURCE,DESTINATION=.
    Delays are one way: round trips are halved.
    """
    check_writable(output, csv)
    if run_path is not None:
        _check_alone(files, csv)
        name = options["name"] or (output.stem if output else "imported")
        text = run_scenario(run_path, results, name, options["title"])
        write_text(output, text, "the network of the run")
        return
    if not files:
        raise UsageError("nothing to import; give FILEs, or a run with --run")
    units = ("round_trip", "delay_unit", "bandwidth_unit")
    reader = Reader(**{name: options[name] for name in units})
    matrix = merge([_read(file, reader) for file in files])
    matrix = completed(renamed(matrix, dict(map(_rename, renames))), symmetric=symmetric)
    inside = None
    if inside_delay is not None:
        rate_bps = float("inf") if inside_bandwidth is None else inside_bandwidth
        inside = Link(one_way_delay_s=inside_delay, bandwidth_bps=rate_bps)
    elif inside_bandwidth is not None:
        raise UsageError("--inside-bandwidth needs --inside-delay")
    frame = Frame(
        name=options["name"] or (output.stem if output else "imported"),
        title=options["title"],
        nodes_per_region=options["nodes"],
        device=options["device"],
        inside=inside,
        inside_note=options["inside_note"],
        jitter=options["jitter"],
        comments=options["comments"],
    )
    if csv is not None:
        write_text(csv, matrix_csv(matrix), "the matrix")
    write_text(output, scenario_yaml(matrix, frame), f"{len(matrix.places)} places")


def _check_alone(files: Sequence[str], csv: Path | None) -> None:
    """Raises UsageError for arguments that do not apply to a run."""
    if files or csv is not None:
        raise UsageError("--run imports what the run measured; leave out FILEs and --csv")
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name not in FOR_RUNS:
            raise UsageError(f"{option.opts[-1]} is for FILEs; leave it out with --run")


def _read(argument: str, reader: Reader) -> Matrix:
    """Read an argument: a file, or SOURCE,DESTINATION=FILE."""
    pair, mark, file = argument.rpartition("=")
    if mark and not Path(argument).exists():
        ends = tuple(pair.split(","))
        if len(ends) != 2 or not all(ends):
            raise UsageError(
                f'"{argument}": expected SOURCE,DESTINATION=FILE, e.g. ohio,tokyo=ping.txt'
            )
        reader = replace(reader, pair=(ends[0], ends[1]))
    else:
        file = argument
    try:
        return read_matrix(file, read_text(Path(file)), reader)
    except OSError as error:
        raise ScenarioError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{file}: is not text in UTF-8: {error.reason}") from None


def _rename(argument: str) -> tuple[str, str]:
    place, mark, name = argument.partition("=")
    if not (place and mark and name):
        raise UsageError(f'--rename "{argument}": expected PLACE=NAME, e.g. 10.0.0.5=ohio')
    return place, name
