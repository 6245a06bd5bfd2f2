"""`netbench net plan`: what would be done to each machine, and whether it could deliver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as changed
from pathlib import Path

import click
from rich.console import Console

from netbench.commands.net.local import local_programs
from netbench.commands.net.machines import (
    Looked,
    Machines,
    changes,
    host_table,
    look,
    open_console,
    open_machines,
    print_problems,
)
from netbench.commands.net.nodes import check_where, nodes_options
from netbench.commands.net.target import open_target
from netbench.errors import UsageError
from netbench.network.fleet import Shown
from netbench.network.preflight import Facts
from netbench.network.program import MAX_SEGMENTS, Program, compile_program
from netbench.network.update import update_text
from netbench.scenario import load_scenario

UNKNOWN_INTERFACE = "INTERFACE"
"""Stands in an offline program for an interface that only the host knows."""


@click.command("plan")
@nodes_options
@click.option("--program", "full", is_flag=True, help="Print the whole `tc` program of every host.")
@click.option("--offline", is_flag=True, help="Contact no host; needs data addresses.")
@click.option("--replace", is_flag=True, help="As for `apply`: foreign root qdiscs may go.")
def command(
    scenario: str,
    inventory: Path | None,
    testbed: str | None,
    full: bool,
    offline: bool,
    replace: bool,
) -> int:
    """Say what `apply` would do to every host, and what speaks against it. Changes nothing, and
    starts nothing with --testbed local.

    Exit code 1 where a host cannot deliver its part of SCENARIO.
    """
    check_where(inventory, testbed)
    console = open_console()
    if inventory is None and (offline or replace):
        raise UsageError("--offline and --replace are for hosts of an inventory")
    if inventory is None:
        _print_programs(console, local_programs(load_scenario(scenario)), full)
        return 0
    if offline:
        _print_programs(console, _offline(scenario, inventory), full)
        return 0
    with open_machines(scenario, inventory, console) as machines:
        found = look(machines, replace=replace)
        shown = machines.fleet.show(found.programs)
    _print_table(console, machines, found, shown)
    if full:
        named = {machines.names[node]: p for node, p in sorted(found.programs.items())}
        _print_programs(console, named, full)
    print_problems(console, machines.names, found.problems)
    return 1 if found.has_errors else 0


def _offline(scenario: str, inventory: Path) -> dict[str, Program]:
    with open_target(scenario, inventory) as target:
        unknown = [host.name for host in target.nodes if not host.data_addresses]
        if unknown:
            raise UsageError(
                f"{target.inventory.path}: {', '.join(unknown)}: no `data_address:`, which "
                "--offline needs; add it, or leave --offline away and the hosts are asked"
            )
        network = target.scenario.network
        addresses = [host.data_addresses for host in target.nodes]
        programs = {
            host.name: compile_program(
                network, node, addresses, host.interface or UNKNOWN_INTERFACE
            )
            for node, host in enumerate(target.nodes)
        }
        ports = target.exempt_ports
        return {name: changed(program, exempt_ports=ports) for name, program in programs.items()}


def _print_programs(console: Console, programs: Mapping[str, Program], full: bool) -> None:
    """By name: what each adds, or all of it with the setting of the link that goes with it."""
    for name, program in programs.items():
        if not full:
            console.print(f"{name}: {changes(program.text)}", markup=False)
            continue
        console.print(f"# {name}", markup=False)
        if program.max_segments != MAX_SEGMENTS:
            limit = f"gso_max_segs {program.max_segments}"
            console.print(f"# ip link set dev {program.interface} {limit}", markup=False)
        console.print(program.text, markup=False, soft_wrap=True)


def _print_table(
    console: Console, machines: Machines, found: Looked, shown: Mapping[int, Shown | Exception]
) -> None:
    table = host_table("interface", "now", "would change")
    for node, name in enumerate(machines.names):
        host = found.facts[node]
        if not isinstance(host, Facts):
            table.add_row(name, "?", "[red]not known[/red]", "")
            continue
        table.add_row(
            name, host.interface or "?", _now(host), _change(found, shown, node), style=None
        )
    console.print(table)


def _now(host: Facts) -> str:
    return f"shaped by {host.shaped_by}" if host.shaped_by else host.qdisc


def _change(found: Looked, shown: Mapping[int, Shown | Exception], node: int) -> str:
    program, held = found.programs.get(node), shown.get(node)
    if program is None:
        return "not known: the addresses of all hosts are needed"
    if not isinstance(held, Shown):
        return f"[red]{held}[/red]"
    return changes(update_text(program, held.found))
