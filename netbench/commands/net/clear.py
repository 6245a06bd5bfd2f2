"""`netbench net clear`: put machines back as they were."""

import time
from pathlib import Path

import click
from rich.text import Text

from netbench.commands.net.hosts import host_table, nodes_options, open_console, open_fleet
from netbench.network.remote.deployer import AgentRefused
from netbench.network.remote.fleet import Cleared
from netbench.scenario import load_scenario
from netbench.testbed.persistent.client import find_persistent


@click.command("clear")
@nodes_options
@click.option("--force", is_flag=True, help="Clear even what another run has shaped.")
def command(scenario: str, inventory: Path | None, force: bool) -> int:
    """Restore qdiscs and settings of the hosts of SCENARIO that netbench changed, and only those.

    Does nothing where nothing is shaped. Exit code 1: a host was not cleared. The table names it
    and tells when it clears itself.
    """
    if inventory is None:
        network = find_persistent(load_scenario(scenario).name)
        network.stop()
        click.echo(f"{network.name} is gone; process {network.pid} kept it")
        return 0
    console = open_console()
    with open_fleet(scenario, inventory, console, may_share=True) as (hosts, fleet):
        results = fleet.clear("any" if force else "owner")
        left_s = fleet.cleared_by(results)
    table = host_table("result", "notes")
    num_left = 0
    for node, result in results.items():
        name = hosts.names[node]
        if isinstance(result, Cleared):
            outcome = "cleared" if result.cleared else "nothing there"
            table.add_row(name, outcome, "; ".join(result.notes))
        else:
            num_left += 1
            when = "" if isinstance(result, AgentRefused) else f"; {_itself(left_s)}"
            table.add_row(name, Text("not cleared", "red"), f"{result}{when}")
    console.print(table)
    return 1 if num_left else 0


def _itself(left_s: float | None) -> str:
    """Say when an unreachable host clears itself, given the leases of the others."""
    if left_s is None:
        return "if it is shaped it clears itself when its lease ends"
    end = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() + left_s))
    return f"if it was shaped with the others it clears itself by {end} (in {left_s:.0f} s)"
