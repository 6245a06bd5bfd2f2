"""`netbench net plan`: print what `apply` would do to each host, and whether it could deliver."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from netbench.commands.net.hosts import (
    host_table,
    nodes_options,
    open_console,
    open_fleet,
    open_hosts,
    print_deviations,
)
from netbench.errors import UsageError
from netbench.network.remote.facts import Facts
from netbench.network.remote.fleet import Shown
from netbench.network.remote.preflight import Inspection, inspect
from netbench.network.shaping.program import MAX_SEGMENTS, Program
from netbench.network.shaping.update import summary, update_text
from netbench.scenario import load_scenario
from netbench.testbed.persistent.scenario import programs_of


@click.command("plan")
@nodes_options
@click.option("--program", "full", is_flag=True, help="Print every tc configuration in full.")
@click.option("--offline", is_flag=True, help="Contact no host. Needs data addresses.")
@click.option("--replace", is_flag=True, help="Allow foreign root qdiscs, as `apply` does.")
def command(scenario: str, inventory: Path | None, full: bool, offline: bool, replace: bool) -> int:
    """Print what `apply` would do to every host, and the deviations it would have.

    Changes nothing. With --testbed local it starts nothing either. Exit code 1: a host cannot
    deliver its part of SCENARIO.
    """
    console = open_console()
    if inventory is None and (offline or replace):
        raise UsageError("--offline and --replace are for hosts of an inventory")
    if inventory is None:
        _print_programs(console, programs_of(load_scenario(scenario)), full)
        return 0
    if offline:
        with open_hosts(scenario, inventory) as hosts:
            _print_programs(console, hosts.offline_programs(), full)
        return 0
    with open_fleet(scenario, inventory, console) as (hosts, fleet):
        found = inspect(fleet, hosts.scenario.network, hosts.exempt_ports, replace=replace)
        shown = fleet.show(found.programs)
    _print_table(console, hosts.names, found, shown)
    if full:
        named = {hosts.names[node]: p for node, p in sorted(found.programs.items())}
        _print_programs(console, named, full)
    print_deviations(console, hosts.names, found.deviations)
    return 1 if found.has_errors else 0


def _print_programs(console: Console, programs: Mapping[str, Program], full: bool) -> None:
    """Print by name a summary of each, or if `full` all of it, with the setting of its link."""
    for name, program in programs.items():
        if not full:
            console.print(f"{name}: {summary(program.text)}")
            continue
        console.print(f"# {name}")
        if program.max_segments != MAX_SEGMENTS:
            limit = f"gso_max_segs {program.max_segments}"
            console.print(f"# ip link set dev {program.interface} {limit}")
        console.print(program.text, soft_wrap=True)


def _print_table(
    console: Console,
    names: Sequence[str],
    found: Inspection,
    shown: Mapping[int, Shown | Exception],
) -> None:
    table = host_table("interface", "now", "would change")
    for node, name in enumerate(names):
        host = found.facts[node]
        if not isinstance(host, Facts):
            table.add_row(name, "?", Text("not known", "red"), "")
            continue
        table.add_row(
            name,
            host.interface or "?",
            f"shaped by {host.shaped_by}" if host.shaped_by else host.qdisc,
            _change(found, shown, node),
        )
    console.print(table)


def _change(found: Inspection, shown: Mapping[int, Shown | Exception], node: int) -> str | Text:
    program, now = found.programs.get(node), shown.get(node)
    if program is None:
        return "not known: the addresses of all hosts are needed"
    if not isinstance(now, Shown):
        return Text(str(now), "red")
    return summary(update_text(program, now.found))
