"""`netbench net trace`: write and print traces of links that change."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from netbench.commands.options import FILE, PERCENT, TIME
from netbench.commands.output import plain_console, plain_table, write_text
from netbench.errors import UsageError
from netbench.limits import MAX_CHANGES
from netbench.network.traces.patterns import diurnal, outages
from netbench.network.traces.trace import networks, parse_link, read_trace, write_trace
from netbench.scenario import load_scenario
from netbench.units import counted, format_bandwidth, format_percent, format_time

SCENARIO = click.argument("scenario", metavar="SCENARIO")
LINK = click.option(
    "--link",
    "links",
    required=True,
    multiple=True,
    help='Link to change: "A -> B", "A <-> B", or "A" (inside).',
)
OUTPUT = click.option("-o", "--output", type=FILE, help="File to write instead of stdout.")


@click.group()
def trace() -> None:
    """Write a trace of links that change, for `netbench net replay`."""


@trace.command()
@SCENARIO
@LINK
@click.option("--up", "up_s", required=True, type=TIME, help="Time between failures.")
@click.option("--down", "down_s", required=True, type=TIME, help="Time until recovery.")
@click.option("--until", "end_s", required=True, type=TIME, help="End of the failures.")
@click.option(
    "--seed",
    type=int,
    help="Seed. Draws the times from exponential distributions with these means.",
)
@OUTPUT
def outage(
    scenario: str, links: Sequence[str], output: Path | None, **options: float | int | None
) -> None:
    """Let a link fail and recover."""
    _write(scenario, links, output, outages, options)


@trace.command("diurnal")
@SCENARIO
@LINK
@click.option(
    "--low", required=True, type=PERCENT, help="Lowest rate as a fraction of the link's, e.g. 30%."
)
@click.option("--period", "period_s", default="24h", type=TIME, help="Length of a day.")
@click.option(
    "--steps",
    "num_steps",
    default=96,
    type=click.IntRange(2, MAX_CHANGES),
    help="Changes per period.",
)
@click.option(
    "--periods",
    "num_periods",
    default=1,
    type=click.IntRange(1, MAX_CHANGES),
    help="Number of periods.",
)
@click.option("--peak", "phase_s", default="0s", type=TIME, help="Time of the peak.")
@OUTPUT
def diurnal_command(
    scenario: str, links: Sequence[str], output: Path | None, **options: float | int | None
) -> None:
    """Vary a rate over the day: a cosine from the link's rate to --low."""
    _write(scenario, links, output, diurnal, options)


@trace.command()
@SCENARIO
@click.argument("file", type=FILE)
def show(scenario: str, file: Path) -> None:
    """Print the links of a scenario that a trace changes, over time."""
    loaded = load_scenario(scenario)
    regions = loaded.network.regions
    changes = read_trace(file, regions)
    figures = ("one-way delay", "bandwidth", "loss")
    table = plain_table("time", "link", *figures, right=("time", *figures))
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
    plain_console().print(table, soft_wrap=True)


def _write(
    name: str, links: Sequence[str], output: Path | None, make: Any, options: dict[str, Any]
) -> None:
    scenario = load_scenario(name)
    try:
        changes = [
            change
            for link in links
            for src, dst in parse_link(link, scenario.network.regions, "--link")
            for change in make(src, dst, scenario.network.links[src][dst], **options)
        ]
    except ValueError as error:
        raise UsageError(str(error)) from error
    text = write_trace(sorted(changes, key=lambda change: change.time_s), scenario.network.regions)
    write_text(output, text, counted(len(changes), "change"))
