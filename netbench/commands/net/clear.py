"""`netbench net clear`: put machines back as they were."""

from __future__ import annotations

import time
from pathlib import Path

import click

from netbench.commands.net.local import end_held
from netbench.commands.net.machines import host_table, open_console, open_machines
from netbench.commands.net.nodes import check_where, nodes_options
from netbench.network.courier import Refused
from netbench.network.fleet import Cleared
from netbench.scenario import load_scenario


@click.command("clear")
@nodes_options
@click.option("--force", is_flag=True, help="Also what somebody else has shaped.")
def command(scenario: str, inventory: Path | None, testbed: str | None, force: bool) -> int:
    """Put the hosts of SCENARIO back as they were: qdiscs and settings, and only netbench's own.

    Fine where nothing is shaped. Exit code 1: a host was not cleared; it says which and when it
    will do that itself.
    """
    check_where(inventory, testbed)
    if inventory is None:
        return end_held(load_scenario(scenario).name)
    console = open_console()
    with open_machines(scenario, inventory, console) as machines:
        results = machines.fleet.clear("any" if force else "owner")
        left_s = machines.fleet.cleared_by(results)
    table = host_table("result", "notes")
    num_left = 0
    for node, result in results.items():
        name = machines.names[node]
        if isinstance(result, Cleared):
            outcome = "cleared" if result.cleared else "nothing there"
            table.add_row(name, outcome, "; ".join(result.notes))
        else:
            num_left += 1
            when = "" if isinstance(result, Refused) else f"; {_itself(left_s)}"
            table.add_row(name, "[red]not cleared[/red]", f"{result}{when}")
    console.print(table)
    return 1 if num_left else 0


def _itself(left_s: float | None) -> str:
    """When a host that was not reached clears itself: as the others would have."""
    if left_s is None:
        return "if it is shaped it clears itself when its lease ends"
    end = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() + left_s))
    return f"if it was shaped with the others it clears itself by {end} (in {left_s:.0f} s)"
