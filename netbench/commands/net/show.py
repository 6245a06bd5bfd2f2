"""`netbench net show`: compare what hosts hold with the scenario."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from netbench.commands.net.hosts import host_table, nodes_options, open_console, open_fleet
from netbench.commands.output import print_line
from netbench.errors import EXIT_NOT_TRUSTWORTHY
from netbench.network.remote.fleet import Shown
from netbench.network.remote.preflight import Inspection, inspect
from netbench.network.shaping.readback import unwanted_drops
from netbench.scenario import load_scenario
from netbench.testbed.persistent.scenario import read_back_scenario

SHOWN_DIFFERENCES = 5


@click.command("show")
@nodes_options
@click.option("--all", "everything", is_flag=True, help="Print every difference, not only a few.")
def command(scenario: str, inventory: Path | None, everything: bool) -> int:
    """Print the lease of every host, how it differs from SCENARIO, and packets that were dropped
    although the scenario asks for no loss.

    Exit code 3: something differs. Exit code 1: a host could not be asked.
    """
    console = open_console()
    if inventory is None:
        return _show_local(console, scenario, everything)
    with open_fleet(scenario, inventory, console) as (hosts, fleet):
        found = inspect(fleet, hosts.scenario.network, hosts.exempt_ports)
        shown = fleet.show()
    return _print(console, hosts.names, found, shown, everything)


def _print(
    console: Console,
    names: Sequence[str],
    found: Inspection,
    shown: dict[int, Shown | Exception],
    everything: bool,
) -> int:
    table = host_table("interface", "lease", "differences", "dropped")
    differing: dict[str, tuple[str, ...]] = {}
    failed = False
    for node, name in enumerate(names):
        now, program = shown[node], found.programs.get(node)
        if isinstance(now, Exception) or program is None:
            failed = True
            why = now if isinstance(now, Exception) else found.facts[node]
            text = str(why) if isinstance(why, Exception) else "addresses of hosts are not known"
            table.add_row(name, "", "", f"not known: {text}", "")
            continue
        problems = now.problems(program)
        differing |= {name: problems} if problems else {}
        lease = now.lease.who if now.lease else "none"
        drops = unwanted_drops(program, now.found)
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
            print_line(console, f"{name}: {problem}")
        if len(shown) < len(problems):
            console.print(f"{name}: and {len(problems) - len(shown)} more (--all)")


def _show_local(console: Console, scenario: str, everything: bool) -> int:
    table = host_table("differences", "dropped")
    differing: dict[str, tuple[str, ...]] = {}
    for name, found in read_back_scenario(load_scenario(scenario)).items():
        table.add_row(name, str(len(found.problems)), str(found.dropped_packets))
        differing |= {name: found.problems} if found.problems else {}
    console.print(table)
    _print_differences(console, differing, everything)
    return EXIT_NOT_TRUSTWORTHY if differing else 0
