"""`netbench net watch`: what the links carry, live."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.live import Live
from rich.table import Table

from netbench.commands.net.machines import Machines, look, open_console, open_machines, some
from netbench.commands.net.target import target_options
from netbench.commands.quantity import TIME
from netbench.errors import NetworkError
from netbench.network.fleet import Shown
from netbench.network.program import Program
from netbench.network.usage import LinkUse, busiest, link_uses
from netbench.units import format_bandwidth, format_bytes

DIGITS = 3
ROWS_KEPT_FREE = 4
"""Of a terminal, for what is above and below the table."""


@click.command("watch")
@target_options
@click.option("--interval", "interval_s", type=TIME, default="1s", show_default=True)
@click.option("--once", is_flag=True, help="Print one interval, every link, and end.")
def command(scenario: str, inventory: Path, interval_s: float, once: bool) -> int:
    """Show what every link carries, drops and holds, until Ctrl-C; the busiest where there are
    more than fit.
    """
    console = open_console()
    with open_machines(scenario, inventory, console) as machines:
        found = look(machines)
        if not found.programs:
            raise NetworkError("not all hosts could be asked for their addresses; see `plan`")
        nodes = {
            address: node
            for node, host in found.facts.items()
            if not isinstance(host, Exception)
            for address in host.addresses
        }
        before = machines.fleet.show()
        if once:
            uses, unknown = _next(machines, found.programs, nodes, before, interval_s)[1:]
            console.print(_table(machines, uses, unknown))
            return 1 if unknown else 0
        with Live(console=console, auto_refresh=False) as live:
            try:
                while True:
                    before, uses, unknown = _next(
                        machines, found.programs, nodes, before, interval_s
                    )
                    rows = max(console.height - ROWS_KEPT_FREE - len(unknown), 1)
                    shown = busiest(uses, rows)
                    live.update(_table(machines, shown, unknown), refresh=True)
            except KeyboardInterrupt:
                return 0


def _next(
    machines: Machines,
    programs: Mapping[int, Program],
    nodes: dict[str, int],
    before: dict[int, Shown | Exception],
    interval_s: float,
) -> tuple[dict[int, Shown | Exception], tuple[LinkUse, ...], list[str]]:
    """The next look, what links carried since the last, and hosts that did not say."""
    time.sleep(interval_s)
    after = machines.fleet.show()
    uses: list[LinkUse] = []
    unknown = []
    for node, now in after.items():
        then = before[node]
        if isinstance(now, Exception):
            unknown.append(f"{machines.names[node]}: {now}")
        elif not isinstance(then, Exception) and node in programs:
            uses += link_uses(programs[node], nodes, then, now)
    return after, tuple(uses), unknown


def _table(machines: Machines, uses: Sequence[LinkUse], unknown: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, caption="\n".join(unknown) or None)
    for column in ("from", "to", "now", "of", "dropped", "backlog"):
        table.add_column(column, justify="left" if column in ("from", "to") else "right")
    for use in uses:
        limit = format_bandwidth(use.bandwidth_bps, DIGITS) if use.bandwidth_bps < math.inf else "-"
        table.add_row(
            machines.names[use.src],
            some([machines.names[dst] for dst in use.dsts]),
            format_bandwidth(round(use.throughput_bps), DIGITS),
            limit,
            str(use.dropped_packets),
            f"{format_bytes(use.backlog_bytes, DIGITS)} in {use.backlog_packets}",
        )
    if not uses:
        table.add_row("no link", "is shaped", "", "", "", "")
    return table
