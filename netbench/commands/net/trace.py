"""`netbench net trace`: write traces of links that change, and look at one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from netbench.commands.files import write_text
from netbench.commands.quantity import SHARE, TIME
from netbench.errors import UsageError
from netbench.network.patterns import diurnal, outages
from netbench.network.trace import Change, networks, parse_link, read_trace, write_trace
from netbench.scenario import Scenario, load_scenario
from netbench.units import counted, format_bandwidth, format_percent, format_time

SCENARIO = click.argument("scenario", metavar="SCENARIO")
LINK = click.option(
    "--link", "links", required=True, multiple=True, help='"A -> B", "A <-> B", or "A" (inside).'
)
OUTPUT = click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File; otherwise it is printed."
)


@click.group()
def trace() -> None:
    """Write a trace of links that change, for `netbench net replay`."""


@trace.command()
@SCENARIO
@LINK
@click.option("--up", "up_s", required=True, type=TIME, help="Time between failures.")
@click.option("--down", "down_s", required=True, type=TIME, help="Time until it is back.")
@click.option("--until", "end_s", required=True, type=TIME, help="Nothing fails after that.")
@click.option("--seed", type=int, help="Draw the times, exponentially, with these as means.")
@OUTPUT
def outage(
    scenario: str, links: Sequence[str], output: Path | None, **options: float | int | None
) -> None:
    """A link that fails and comes back."""
    _write(scenario, links, output, outages, options)


@trace.command("diurnal")
@SCENARIO
@LINK
@click.option("--low", required=True, type=SHARE, help="The least of the link's rate, e.g. 30%.")
@click.option(
    "--period", "period_s", default="24h", show_default=True, type=TIME, help="Length of a day."
)
@click.option("--steps", "num_steps", default=96, show_default=True, help="Changes per period.")
@click.option("--periods", "num_periods", default=1, show_default=True, help="Days.")
@click.option(
    "--peak", "phase_s", default="0s", show_default=True, type=TIME, help="When it is highest."
)
@OUTPUT
def diurnal_command(
    scenario: str, links: Sequence[str], output: Path | None, **options: float | int | None
) -> None:
    """A rate that follows the day, a cosine down to a share."""
    _write(scenario, links, output, diurnal, options)


@trace.command()
@SCENARIO
@click.argument("file", type=click.Path(path_type=Path))
def show(scenario: str, file: Path) -> None:
    """Print what a trace makes of a scenario's links, and when."""
    loaded = load_scenario(scenario)
    regions = loaded.network.regions
    changes = read_trace(file, regions)
    table = Table(box=None, pad_edge=False)
    for column in ("time", "link", "one-way delay", "bandwidth", "loss"):
        table.add_column(column, justify="left" if column == "link" else "right")
    for time_s, network in networks(loaded.network, changes):
        for change in changes:
            if change.time_s == time_s:
                link = network.links[change.src][change.dst]
                table.add_row(
                    format_time(time_s),
                    f"{regions[change.src]} -> {regions[change.dst]}",
                    format_time(link.one_way_delay_s, 4),
                    format_bandwidth(link.bandwidth_bps, 4),
                    "down" if link.loss == 1 else format_percent(link.loss, 4),
                )
    Console(soft_wrap=True).print(table)


def _write(
    name: str, links: Sequence[str], output: Path | None, make: Any, options: dict[str, Any]
) -> None:
    scenario = load_scenario(name)
    try:
        changes = [
            change
            for src, dst in _ends(scenario, links)
            for change in make(src, dst, scenario.network.links[src][dst], **options)
        ]
    except ValueError as error:
        raise UsageError(str(error)) from error
    text = write_trace(sorted(changes, key=_time), scenario.network.regions)
    write_text(output, text, counted(len(changes), "change"))


def _ends(scenario: Scenario, links: Sequence[str]) -> list[tuple[int, int]]:
    return [end for link in links for end in parse_link(link, scenario.network.regions, "--link")]


def _time(change: Change) -> float:
    return change.time_s
