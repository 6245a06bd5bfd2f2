"""`netbench net apply`: give machines the network of a scenario, all or none."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from netbench.commands.net.local import hold_scenario
from netbench.commands.net.machines import (
    Looked,
    Machines,
    check_problems,
    clear_hosts,
    host_table,
    look,
    open_console,
    open_machines,
    wait,
)
from netbench.commands.net.nodes import check_where
from netbench.commands.quantity import Quantity
from netbench.errors import UsageError
from netbench.network.agent import MAX_LEASE_S
from netbench.network.fleet import ARM_LEASE_S, settings
from netbench.scenario import load_scenario
from netbench.testbed.choose import HELD_REQUESTS
from netbench.units import format_time, parse_time

NO_END = "none"

DEFAULT_LEASE = "1h"


def _lease(text: str) -> float | None:
    """Seconds, None without end. Raises ValueError."""
    if text == NO_END:
        return None
    lease_s = parse_time(text)
    if not 1 <= lease_s <= MAX_LEASE_S:
        raise ValueError(f'"{text}": write 1s to {format_time(MAX_LEASE_S)}, or {NO_END}')
    return lease_s


@click.command("apply")
@click.argument("scenario", metavar="SCENARIO")
@click.option(
    "--inventory",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The hosts, in the order of the scenario's nodes (YAML).",
)
@click.option(
    "--testbed", type=click.Choice(HELD_REQUESTS), help="Hold it open on this machine instead."
)
@click.option(
    "--lease",
    "lease_s",
    type=Quantity("TIME", _lease),
    default=DEFAULT_LEASE,
    show_default=True,
    help=f"After this the hosts clear themselves; {NO_END}: they wait for `clear`.",
)
@click.option("--hold", is_flag=True, help="Stay, and clear the hosts on Ctrl-C.")
@click.option("--replace", is_flag=True, help="Put foreign root qdiscs aside until `clear`.")
@click.option("--anyway", is_flag=True, help="Try although hosts cannot deliver all of it.")
def command(
    scenario: str,
    inventory: Path | None,
    testbed: str | None,
    lease_s: float | None,
    hold: bool,
    replace: bool,
    anyway: bool,
) -> int:
    """Give the hosts the network of SCENARIO: all of them, or none.

    Only what differs is sent, and nothing is unshaped in between. From before the first change a
    timer on every host puts back what was there when the lease ends, whatever happens to this
    command; with --hold the lease is short, and renewed as long as the command runs.
    """
    check_where(inventory, testbed)
    lease_from = click.get_current_context().get_parameter_source("lease_s")
    if lease_from is ParameterSource.COMMANDLINE and (hold or inventory is None):
        raise UsageError(
            "--lease is for hosts that this command leaves; with --hold and --testbed the network "
            "is there as long as the command runs: leave --lease out"
        )
    if inventory is None:
        assert testbed is not None
        if hold or replace or anyway:
            raise UsageError(
                "--hold, --replace and --anyway are for hosts of an inventory; a network on this "
                "machine is always held, and nothing else is in it"
            )
        return hold_scenario(load_scenario(scenario), testbed)
    console = open_console()
    with open_machines(scenario, inventory, console) as machines:
        found = look(machines, replace=replace)
        check_problems(console, machines, found, anyway=anyway)
        _apply(console, machines, found, ARM_LEASE_S if hold else lease_s, hold, replace)
        if hold:
            return _hold(console, machines, found)
    end = "until `netbench net clear`" if lease_s is None else f"for {format_time(lease_s)}"
    console.print(f"{machines.target.scenario.name} is there, {end}")
    return 0


def _apply(
    console: Console,
    machines: Machines,
    found: Looked,
    lease_s: float | None,
    hold: bool,
    replace: bool,
) -> None:
    results = machines.fleet.apply(
        [found.programs[node] for node in sorted(found.programs)],
        settings(machines.target.scenario.network),
        lease_s=lease_s,
        replace=replace,
        release=not hold,
    )
    table = host_table("interface", "tc commands", "notes")
    for node, result in sorted(results.items()):
        notes = [*result.notes]
        if result.replaced:
            notes.append(f"put aside: {result.replaced}")
        interface = found.programs[node].interface
        table.add_row(machines.names[node], interface, str(result.num_commands), "; ".join(notes))
    console.print(table)


def _hold(console: Console, machines: Machines, found: Looked) -> int:
    console.print(f"{machines.target.scenario.name} is held; Ctrl-C clears the hosts")
    programs = list(found.programs.values())
    try:
        machines.fleet.hold(programs, wait, lambda text: console.print(text, markup=False))
    except KeyboardInterrupt:
        console.print()
    finally:
        left = clear_hosts(console, machines)
    return 1 if left else 0
