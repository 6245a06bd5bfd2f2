"""`netbench net apply`: give machines the network of a scenario, all or none."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from netbench.commands.net.hosts import (
    check_deviations,
    check_where,
    clear_hosts,
    host_table,
    inventory_option,
    open_console,
    open_fleet,
    wait,
)
from netbench.commands.net.shell import describe
from netbench.commands.options import QuantityType
from netbench.errors import UsageError
from netbench.network.remote.agent.messages import MAX_LEASE_S
from netbench.network.remote.facts import settings
from netbench.network.remote.fleet import ARM_LEASE_S, Applied, Fleet
from netbench.network.remote.preflight import Inspection, inspect
from netbench.network.remote.runs import remember
from netbench.progress import open_progress
from netbench.scenario import Scenario, load_scenario
from netbench.testbed.machine.choose import PERSISTENT_REQUESTS
from netbench.testbed.persistent.client import find_persistent, keep_network
from netbench.testbed.persistent.scenario import choose_testbed, warning
from netbench.units import format_time, parse_time

NO_END = "none"

DEFAULT_LEASE = "1h"


def _lease(text: str) -> float | None:
    """Parse a lease: seconds, or None for one without end. Raises ValueError."""
    if text == NO_END:
        return None
    lease_s = parse_time(text)
    if not 1 <= lease_s <= MAX_LEASE_S:
        raise ValueError(f'"{text}": write 1s to {format_time(MAX_LEASE_S)}, or {NO_END}')
    return lease_s


@click.command("apply")
@click.argument("scenario", metavar="SCENARIO")
@inventory_option
@click.option(
    "--testbed",
    type=click.Choice(PERSISTENT_REQUESTS),
    help="Keep the network open on this machine instead, in namespaces.",
)
@click.option(
    "--lease",
    "lease_s",
    type=QuantityType("TIME", _lease),
    default=DEFAULT_LEASE,
    help=f"Time after which the hosts clear themselves. {NO_END}: they wait for `clear`.",
)
@click.option("--hold", is_flag=True, help="Stay, and clear the hosts on Ctrl-C.")
@click.option("--replace", is_flag=True, help="Set foreign root qdiscs aside until `clear`.")
@click.option("--anyway", is_flag=True, help="Try even if hosts cannot deliver all of it.")
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

    Only differences are sent, and packets stay shaped meanwhile. Before the first change, every
    host starts a timer. It restores the host when the lease ends, whatever happens to this command.
    With --hold the lease is short, and is renewed while the command runs.
    """
    check_where(inventory, testbed)
    lease_from = click.get_current_context().get_parameter_source("lease_s")
    if lease_from is ParameterSource.COMMANDLINE and (hold or inventory is None):
        raise UsageError(
            "--lease is for hosts that this command leaves; with --hold and --testbed the network "
            "stays as long as the command runs: leave --lease out"
        )
    if inventory is None:
        assert testbed is not None
        if hold or replace or anyway:
            raise UsageError(
                "--hold, --replace and --anyway are for hosts of an inventory; a network on this "
                "machine always lasts as long as the command, and nothing else is in it"
            )
        return _keep(load_scenario(scenario), testbed)
    console = open_console()
    with open_fleet(scenario, inventory, console) as (hosts, fleet):
        wanted = hosts.scenario
        found = inspect(fleet, wanted.network, hosts.exempt_ports, replace=replace)
        check_deviations(console, hosts, found, anyway=anyway)
        if not hold and not remember(inventory, fleet.session):
            console.print("this run could not be recorded; to clear it, `net clear` needs --force")
        results = fleet.apply(
            [found.programs[node] for node in sorted(found.programs)],
            settings(wanted.network),
            lease_s=ARM_LEASE_S if hold else lease_s,
            replace=replace,
            release=not hold,
        )
        _print_applied(console, fleet, found, results)
        if hold:
            return _hold(console, fleet, found, wanted)
    end = "until `netbench net clear`" if lease_s is None else f"for {format_time(lease_s)}"
    console.print(f"{wanted.name} is there, {end}")
    return 0


def _print_applied(
    console: Console, fleet: Fleet, found: Inspection, results: Mapping[int, Applied]
) -> None:
    table = host_table("interface", "tc commands", "notes")
    for node, result in sorted(results.items()):
        notes = [*result.notes]
        if result.replaced:
            notes.append(f"set aside: {result.replaced}")
        interface = found.programs[node].interface
        table.add_row(fleet.name(node), interface, str(result.num_commands), "; ".join(notes))
    console.print(table)


def _hold(console: Console, fleet: Fleet, found: Inspection, scenario: Scenario) -> int:
    programs = list(found.programs.values())
    try:
        console.print(f"{scenario.name} stays until Ctrl-C, which clears the hosts")
        fleet.keep_leases(programs, wait, lambda text: console.print(text))
    except KeyboardInterrupt:
        console.print()
    finally:
        left = clear_hosts(console, fleet)
    return 1 if left else 0


def _keep(scenario: Scenario, testbed: str) -> int:
    """Keep the scenario's network open until Ctrl-C, or `netbench net clear --testbed local`.

    testbed: one of `choose.PERSISTENT_REQUESTS`. Raises UsageError, TestbedError, NetworkError.
    """
    choice, host = choose_testbed(testbed)
    click.echo(f"testbed: {choice.testbed} ({choice.reason})")
    if text := warning(choice.testbed, scenario):
        click.echo(f"network: {text}")
    with ExitStack() as open_until_end:
        with open_progress() as progress:
            network = keep_network(
                scenario.name,
                scenario.network,
                [node.name for node in scenario.nodes],
                testbed=choice.testbed,
                machine=host,
                on_phase=progress.advance,
            )
            wait = open_until_end.enter_context(network)
        click.echo(describe(find_persistent(scenario.name)))
        first = scenario.nodes[0].name
        try:  # Ctrl-C counts from the line that offers it
            click.echo(
                f"\nEnter a node from another terminal:  netbench net shell {first}\n"
                f"Run one command there:               netbench net shell {first} -- ip route\n"
                "Ctrl-C ends the network."
            )
            wait()
        except KeyboardInterrupt:
            click.echo()
    click.echo(f"{scenario.name} is gone")
    return 0
