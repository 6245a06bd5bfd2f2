"""`netbench net watch`: show the traffic on links, live."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from netbench.commands.net.hosts import nodes_options, open_console, open_fleet
from netbench.commands.options import TIME
from netbench.commands.output import plain_table
from netbench.errors import NetworkError
from netbench.network.probing.usage import Counters, LinkTraffic, link_traffic
from netbench.network.remote.fleet import Fleet, Shown
from netbench.network.remote.preflight import inspect
from netbench.network.shaping.program import Program
from netbench.scenario import Scenario, load_scenario
from netbench.testbed.persistent.scenario import (
    ReadCounters,
    find_network,
    nodes_of,
    open_counters,
    programs_of,
)
from netbench.testbed.ssh.scenario_hosts import ScenarioHosts
from netbench.units import format_bandwidth, format_bytes, shortened

DIGITS = 3
ROWS_KEPT_FREE = 4
"""Rows of a terminal above and below the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """Nodes, including routers, whose links are watched.

    names, programs: by node. nodes: address -> node. read: reads the counters of all nodes.
    """

    names: Sequence[str]
    programs: Mapping[int, Program]
    nodes: Mapping[str, int]
    read: ReadCounters


@click.command("watch")
@nodes_options
@click.option(
    "--interval", "interval_s", type=TIME, default="1s", help="Interval between readings."
)
@click.option("--once", is_flag=True, help="Print every link for one interval, and exit.")
def command(scenario: str, inventory: Path | None, interval_s: float, once: bool) -> int:
    """Show throughput, drops and backlog of links until Ctrl-C. If they do not fit on the screen,
    only the busiest are shown.
    """
    console = open_console()
    if inventory is None:
        with _persistent(load_scenario(scenario)) as watched:
            return _watch(console, watched, interval_s, once)
    with open_fleet(scenario, inventory, console) as (hosts, fleet):
        return _watch(console, _hosts(hosts, fleet), interval_s, once)


@contextmanager
def _persistent(scenario: Scenario) -> Iterator[Watched]:
    nodes, programs = nodes_of(scenario), programs_of(scenario)
    with open_counters(find_network(scenario), nodes) as read:
        yield Watched(
            names=tuple(programs),
            programs={program.node: program for program in programs.values()},
            nodes={node.address: node.index for node in nodes},
            read=read,
        )


def _hosts(hosts: ScenarioHosts, fleet: Fleet) -> Watched:
    """Raises NetworkError unless all hosts could be asked for their addresses."""
    found = inspect(fleet, hosts.scenario.network, hosts.exempt_ports)
    if not found.programs:
        raise NetworkError("not all hosts could be asked for their addresses; see `plan`")

    def read_all() -> dict[int, Counters | Exception]:
        return {
            node: Counters(at_s=shown.at_s, leaves=shown.found.leaves)
            if isinstance(shown, Shown)
            else shown
            for node, shown in fleet.show().items()
        }

    return Watched(
        names=hosts.names,
        programs=found.programs,
        nodes={
            address: node
            for node, host in found.facts.items()
            if not isinstance(host, Exception)
            for address in host.addresses
        },
        read=read_all,
    )


def _watch(console: Console, watched: Watched, interval_s: float, once: bool) -> int:
    before = watched.read()
    if once:
        uses, unknown = _next(watched, before, interval_s)[1:]
        console.print(_table(watched.names, uses, unknown))
        return 1 if unknown else 0
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                before, uses, unknown = _next(watched, before, interval_s)
                rows = max(console.height - ROWS_KEPT_FREE - len(unknown), 1)
                shown = sorted(uses, key=lambda use: -use.throughput_bps)[:rows]
                live.update(_table(watched.names, shown, unknown), refresh=True)
        except KeyboardInterrupt:
            return 0


def _next(
    watched: Watched, before: Mapping[int, Counters | Exception], interval_s: float
) -> tuple[dict[int, Counters | Exception], tuple[LinkTraffic, ...], list[str]]:
    """Return the next reading, the traffic since `before`, and nodes that could not be read."""
    time.sleep(interval_s)
    after = watched.read()
    uses: list[LinkTraffic] = []
    unknown = []
    for node, now in after.items():
        then = before[node]
        if isinstance(now, Exception):
            unknown.append(f"{watched.names[node]}: {now}")
        elif not isinstance(then, Exception) and node in watched.programs:
            uses += link_traffic(watched.programs[node], watched.nodes, then, now)
    return after, tuple(uses), unknown


def _table(names: Sequence[str], uses: Sequence[LinkTraffic], unknown: Sequence[str]) -> Table:
    figures = ("now", "of", "dropped", "backlog")
    table = plain_table("from", "to", *figures, right=figures)
    table.caption = "\n".join(unknown) or None
    for use in uses:
        limit = format_bandwidth(use.bandwidth_bps, DIGITS) if use.bandwidth_bps < math.inf else "-"
        table.add_row(
            names[use.src],
            shortened([names[dst] for dst in use.dsts]),
            format_bandwidth(round(use.throughput_bps), DIGITS),
            limit,
            str(use.dropped_packets),
            f"{format_bytes(use.backlog_bytes, DIGITS)} in {use.backlog_packets}",
        )
    if not uses:
        table.add_row("no link", "is shaped", "", "", "", "")
    return table
