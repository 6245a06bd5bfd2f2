"""`netbench net import FILE...`: a scenario from measurements of a network that somebody has."""

from __future__ import annotations

from pathlib import Path

import click

from netbench.commands.files import write_text
from netbench.commands.quantity import RATE, TIME
from netbench.errors import ScenarioError, UsageError
from netbench.scenario.matrices import (
    Frame,
    Matrix,
    completed,
    matrix_csv,
    merge,
    renamed,
    scenario_yaml,
)
from netbench.scenario.model import Link
from netbench.scenario.readings import Reader, read_matrix


@click.command("import")
@click.argument("files", metavar="[SOURCE,DESTINATION=]FILE...", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here, not to stdout.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write the matrix too.")
@click.option("--name", help="Of the scenario.  [default: the output's]")
@click.option("--title", default="", help="Of the scenario, in words.")
@click.option("--rename", "renames", multiple=True, metavar="PLACE=NAME", help="Call a place NAME.")
@click.option("--symmetric", is_flag=True, help="What is missing one way is as the way back.")
@click.option("--round-trip", is_flag=True, help="Delays in tables are round trips: take half.")
@click.option("--delay-unit", default="", metavar="UNIT", help="Of bare delays in tables: ms.")
@click.option("--bandwidth-unit", default="", metavar="UNIT", help="Of bare bandwidths: Gbit.")
@click.option("--jitter", is_flag=True, help="Take jitter too, where there is any.")
@click.option("--nodes", default=1, type=click.IntRange(1), help="Per region.  [default: 1]")
@click.option("--device", default="V100", help="Of every node.  [default: V100]")
@click.option("--inside-delay", type=TIME, help="One way in a region.")
@click.option("--inside-bandwidth", type=RATE, help="In a region.")
@click.option("--inside-note", default="", help="Where the figures inside regions are from.")
@click.option("--comment", "comments", multiple=True, help="A line at the head of the file.")
def command(
    *,
    files: tuple[str, ...],
    output: Path | None,
    csv: Path | None,
    name: str | None,
    title: str,
    renames: tuple[str, ...],
    symmetric: bool,
    round_trip: bool,
    delay_unit: str,
    bandwidth_unit: str,
    jitter: bool,
    nodes: int,
    device: str,
    inside_delay: float | None,
    inside_bandwidth: float | None,
    inside_note: str,
    comments: tuple[str, ...],
) -> None:
    """Write a scenario from what was measured: FILEs of `iperf3 -J`, of ping, and tables in CSV.

    A table is square (places at its head and side, one file for delays, one for bandwidths) or has
    a row per pair: source, destination and columns such as rtt_ms, one_way_delay_ms,
    bandwidth_gbps. What ping printed needs SOURCE,DESTINATION= in front. Delays are one way: of a
    round trip half is taken.
    """
    reader = Reader(round_trip=round_trip, delay_unit=delay_unit, bandwidth_unit=bandwidth_unit)
    matrix = merge([_read(file, reader) for file in files])
    matrix = completed(renamed(matrix, dict(map(_rename, renames))), symmetric=symmetric)
    inside = None
    if inside_delay is not None:
        rate_bps = float("inf") if inside_bandwidth is None else inside_bandwidth
        inside = Link(one_way_delay_s=inside_delay, bandwidth_bps=rate_bps)
    elif inside_bandwidth is not None:
        raise UsageError("--inside-bandwidth needs --inside-delay")
    frame = Frame(
        name=name or (output.stem if output else "imported"),
        title=title,
        nodes_per_region=nodes,
        device=device,
        inside=inside,
        inside_note=inside_note,
        jitter=jitter,
        comments=comments,
    )
    if csv is not None:
        write_text(csv, matrix_csv(matrix), "the matrix")
    write_text(output, scenario_yaml(matrix, frame), f"{len(matrix.places)} places")


def _read(word: str, reader: Reader) -> Matrix:
    """The readings of a word of the command line: a file, or whose it is and a file."""
    pair, mark, file = word.rpartition("=")
    if mark and not Path(word).exists():
        ends = tuple(pair.split(","))
        if len(ends) != 2 or not all(ends):
            raise UsageError(
                f'"{word}": expected SOURCE,DESTINATION=FILE, e.g. ohio,tokyo=ping.txt'
            )
        reader = Reader(
            pair=(ends[0], ends[1]),
            delay_unit=reader.delay_unit,
            bandwidth_unit=reader.bandwidth_unit,
            round_trip=reader.round_trip,
        )
    else:
        file = word
    try:
        return read_matrix(file, Path(file).read_text(encoding="utf-8-sig"), reader)
    except OSError as error:
        raise ScenarioError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{file}: is not text in UTF-8: {error.reason}") from None


def _rename(word: str) -> tuple[str, str]:
    place, mark, name = word.partition("=")
    if not (place and mark and name):
        raise UsageError(f'--rename "{word}": expected PLACE=NAME, e.g. 10.0.0.5=ohio')
    return place, name
