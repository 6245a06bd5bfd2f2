"""`netbench net show`: what the machines hold, against the scenario."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from netbench.commands.net.local import show_held
from netbench.commands.net.machines import (
    Looked,
    Machines,
    host_table,
    look,
    open_console,
    open_machines,
)
from netbench.commands.net.nodes import check_where, nodes_options
from netbench.errors import EXIT_NOT_TRUSTWORTHY
from netbench.network.fleet import Shown
from netbench.network.readback import unwanted_drops
from netbench.scenario import load_scenario

SHOWN_DIFFERENCES = 5


@click.command("show")
@nodes_options
@click.option("--all", "everything", is_flag=True, help="Every difference, not only the first.")
def command(scenario: str, inventory: Path | None, testbed: str | None, everything: bool) -> int:
    """Print what the hosts hold: whose, until when, what differs from SCENARIO, and what their
    queues dropped that should drop nothing.

    Exit code 3: something differs. 1: a host could not be asked.
    """
    check_where(inventory, testbed)
    console = open_console()
    if inventory is None:
        return _show_local(console, scenario, everything)
    with open_machines(scenario, inventory, console) as machines:
        found = look(machines)
        shown = machines.fleet.show()
    return _print(console, machines, found, shown, everything)


def _print(
    console: Console,
    machines: Machines,
    found: Looked,
    shown: dict[int, Shown | Exception],
    everything: bool,
) -> int:
    table = host_table("interface", "lease", "differences", "dropped")
    differing: dict[str, tuple[str, ...]] = {}
    failed = False
    for node, name in enumerate(machines.names):
        held, program = shown[node], found.programs.get(node)
        if isinstance(held, Exception) or program is None:
            failed = True
            why = held if isinstance(held, Exception) else found.facts[node]
            text = str(why) if isinstance(why, Exception) else "addresses of hosts are not known"
            table.add_row(name, "", "", f"not known: {text}", "")
            continue
        problems = held.problems(program)
        differing |= {name: problems} if problems else {}
        lease = held.lease.who if held.lease else "none"
        drops = unwanted_drops(program, held.found)
        table.add_row(name, program.interface, lease, str(len(problems)), str(drops))
    console.print(table)
    _print_differences(console, differing, everything)
    return 1 if failed else EXIT_NOT_TRUSTWORTHY if differing else 0


def _print_differences(
    console: Console, differing: dict[str, tuple[str, ...]], everything: bool
) -> None:
    for name, problems in differing.items():
        shown = problems if everything else problems[:SHOWN_DIFFERENCES]
        for problem in shown:
            console.print(f"{name}: {problem}", markup=False, soft_wrap=True)
        if len(shown) < len(problems):
            console.print(f"{name}: and {len(problems) - len(shown)} more (--all)")


def _show_local(console: Console, scenario: str, everything: bool) -> int:
    table = host_table("differences", "dropped")
    differing: dict[str, tuple[str, ...]] = {}
    for name, found in show_held(load_scenario(scenario)).items():
        table.add_row(name, str(len(found.problems)), str(found.dropped_packets))
        differing |= {name: found.problems} if found.problems else {}
    console.print(table)
    _print_differences(console, differing, everything)
    return EXIT_NOT_TRUSTWORTHY if differing else 0
