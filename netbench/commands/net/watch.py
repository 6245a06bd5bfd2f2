"""`netbench net watch`: what the links carry, live."""

from __future__ import annotations

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

from netbench.commands.net.local import held_scenario, local_nodes, local_programs
from netbench.commands.net.machines import Machines, look, open_console, open_machines, some
from netbench.commands.net.nodes import check_where, nodes_options
from netbench.commands.quantity import TIME
from netbench.errors import NetworkError
from netbench.network.fleet import Shown
from netbench.network.program import Program
from netbench.network.usage import LinkUse, Look, busiest, link_uses
from netbench.scenario import Scenario, load_scenario
from netbench.testbed.counters_held import Looks, open_counters
from netbench.units import format_bandwidth, format_bytes

DIGITS = 3
ROWS_KEPT_FREE = 4
"""Of a terminal, for what is above and below the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """Nodes whose links are watched, wherever they are; routers are nodes too.

    names, programs: by node. nodes: address -> node. look: at all of them, now.
    """

    names: Sequence[str]
    programs: Mapping[int, Program]
    nodes: Mapping[str, int]
    look: Looks


@click.command("watch")
@nodes_options
@click.option(
    "--interval",
    "interval_s",
    type=TIME,
    default="1s",
    show_default=True,
    help="Between two looks.",
)
@click.option("--once", is_flag=True, help="Print one interval, every link, and end.")
def command(
    scenario: str, inventory: Path | None, testbed: str | None, interval_s: float, once: bool
) -> int:
    """Show what every link carries, drops and holds, until Ctrl-C; the busiest where there are
    more than fit.
    """
    check_where(inventory, testbed)
    console = open_console()
    if inventory is None:
        with _held(load_scenario(scenario)) as watched:
            return _watch(console, watched, interval_s, once)
    with open_machines(scenario, inventory, console) as machines:
        return _watch(console, _hosts(machines), interval_s, once)


@contextmanager
def _held(scenario: Scenario) -> Iterator[Watched]:
    nodes, programs = local_nodes(scenario), local_programs(scenario)
    with open_counters(held_scenario(scenario), nodes) as looks:
        yield Watched(
            names=tuple(programs),
            programs={program.node: program for program in programs.values()},
            nodes={node.address: node.index for node in nodes},
            look=looks,
        )


def _hosts(machines: Machines) -> Watched:
    """Raises NetworkError where not all hosts could be asked for their addresses."""
    found = look(machines)
    if not found.programs:
        raise NetworkError("not all hosts could be asked for their addresses; see `plan`")

    def look_at_all() -> dict[int, Look | Exception]:
        return {
            node: Look(at_s=shown.at_s, leaves=shown.found.leaves)
            if isinstance(shown, Shown)
            else shown
            for node, shown in machines.fleet.show().items()
        }

    return Watched(
        names=machines.names,
        programs=found.programs,
        nodes={
            address: node
            for node, host in found.facts.items()
            if not isinstance(host, Exception)
            for address in host.addresses
        },
        look=look_at_all,
    )


def _watch(console: Console, watched: Watched, interval_s: float, once: bool) -> int:
    before = watched.look()
    if once:
        uses, unknown = _next(watched, before, interval_s)[1:]
        console.print(_table(watched.names, uses, unknown))
        return 1 if unknown else 0
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                before, uses, unknown = _next(watched, before, interval_s)
                rows = max(console.height - ROWS_KEPT_FREE - len(unknown), 1)
                shown = busiest(uses, rows)
                live.update(_table(watched.names, shown, unknown), refresh=True)
        except KeyboardInterrupt:
            return 0


def _next(
    watched: Watched, before: Mapping[int, Look | Exception], interval_s: float
) -> tuple[dict[int, Look | Exception], tuple[LinkUse, ...], list[str]]:
    """The next look, what links carried since the last, and nodes that did not say."""
    time.sleep(interval_s)
    after = watched.look()
    uses: list[LinkUse] = []
    unknown = []
    for node, now in after.items():
        then = before[node]
        if isinstance(now, Exception):
            unknown.append(f"{watched.names[node]}: {now}")
        elif not isinstance(then, Exception) and node in watched.programs:
            uses += link_uses(watched.programs[node], watched.nodes, then, now)
    return after, tuple(uses), unknown


def _table(names: Sequence[str], uses: Sequence[LinkUse], unknown: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, caption="\n".join(unknown) or None)
    for column in ("from", "to", "now", "of", "dropped", "backlog"):
        table.add_column(column, justify="left" if column in ("from", "to") else "right")
    for use in uses:
        limit = format_bandwidth(use.bandwidth_bps, DIGITS) if use.bandwidth_bps < math.inf else "-"
        table.add_row(
            names[use.src],
            some([names[dst] for dst in use.dsts]),
            format_bandwidth(round(use.throughput_bps), DIGITS),
            limit,
            str(use.dropped_packets),
            f"{format_bytes(use.backlog_bytes, DIGITS)} in {use.backlog_packets}",
        )
    if not uses:
        table.add_row("no link", "is shaped", "", "", "", "")
    return table
