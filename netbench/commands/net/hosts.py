"""Say where a network is, open its hosts for a command, and print what was found there."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from netbench.commands.options import FILE
from netbench.commands.output import print_line, wide_console
from netbench.errors import NetworkError, UsageError
from netbench.network.probing.measure import Endpoints
from netbench.network.remote.fleet import ARM_LEASE_S, Cleared, Fleet
from netbench.network.remote.preflight import Deviation, Inspection, grouped
from netbench.scenario import Scenario, load_scenario
from netbench.testbed.persistent.scenario import find_network, persistent_endpoints
from netbench.testbed.ssh.inventory import load_inventory
from netbench.testbed.ssh.scenario_hosts import ScenarioHosts, open_scenario_hosts
from netbench.units import shortened

TABLE_COLUMNS = 140
"""Width of tables that go to a file or a pipe."""


@contextmanager
def open_hosts(
    scenario: str, inventory: Path, *, may_share: bool = False
) -> Iterator[ScenarioHosts]:
    """Open the hosts of a scenario's nodes; say so if the inventory has more.

    may_share: hosts may have several nodes.
    """
    found, machines = load_scenario(scenario), load_inventory(inventory)
    if not may_share:
        machines.one_node_each()
    with open_scenario_hosts(found, machines) as hosts:
        if len(hosts.nodes) < len(machines.hosts):
            click.echo(
                f"{found.name} has {len(found.nodes)} nodes: the first {len(hosts.nodes)} of "
                f"{len(machines.hosts)} hosts are used",
                err=True,
            )
        yield hosts


@contextmanager
def open_fleet(
    scenario: str, inventory: Path, console: Console, *, may_share: bool = False
) -> Iterator[tuple[ScenarioHosts, Fleet]]:
    """Open the hosts of a scenario as a fleet; show each step while it is under way.

    may_share: see `open_hosts`.
    """
    with (
        open_hosts(scenario, inventory, may_share=may_share) as hosts,
        console.status("connecting") as status,
        hosts.fleet(status.update) as fleet,
    ):
        yield hosts, fleet


def print_deviations(
    console: Console, names: Sequence[str], deviations: Sequence[Deviation]
) -> None:
    """Print one line per deviation, with the hosts that share it; errors first. names: of nodes."""
    for (is_error, text), hosts in grouped(deviations, names).items():
        kind = ("error  ", "red") if is_error else ("warning", "yellow")
        print_line(console, Text.assemble(kind, f" {shortened(hosts)}: {text}"))


def check_deviations(
    console: Console, hosts: ScenarioHosts, found: Inspection, *, anyway: bool = False
) -> None:
    """Print deviations. Raises NetworkError where hosts cannot deliver, unless `anyway`."""
    print_deviations(console, hosts.names, found.deviations)
    if not found.is_complete or (found.has_errors and not anyway):
        hint = " (--anyway tries it)" if found.is_complete else ""
        raise NetworkError(f"nothing was changed: see the errors above{hint}")


def wait(seconds: float) -> bool:
    """Wait for `Fleet.keep_leases`, until Ctrl-C."""
    time.sleep(seconds)
    return False


def clear_hosts(console: Console, fleet: Fleet) -> int:
    """Clear what this command did; print and count the hosts that could not be cleared.

    A host is as it was if its agent has read it back and found nothing else to say.
    """
    results = fleet.clear("session")
    failed = {node: r for node, r in results.items() if not isinstance(r, Cleared)}
    noted = {node: r.notes for node, r in results.items() if isinstance(r, Cleared) and r.notes}
    for node, error in failed.items():
        name = fleet.name(node)
        text = f"{name} was not cleared, and does it itself within {ARM_LEASE_S:g} s: {error}"
        print_line(console, text)
    for node, notes in noted.items():
        print_line(console, f"{fleet.name(node)}: {'; '.join(notes)}")
    num_restored = len(results) - len(failed) - len(noted)
    console.print(f"{num_restored} of {len(results)} hosts are as they were")
    return len(failed)


def host_table(*columns: str) -> Table:
    """Return an empty table with a row per host."""
    table = Table(box=None, pad_edge=False)
    for column in ("host", *columns):
        table.add_column(column, overflow="fold")
    return table


def open_console() -> Console:
    return wide_console(TABLE_COLUMNS)


inventory_option = click.option(
    "--inventory",
    type=FILE,
    metavar="FILE",
    help="The hosts, in the order of the scenario's nodes (YAML).",
)

LOCAL = "local"
"""Value of `--testbed` for a persistent network of this machine."""


def nodes_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add SCENARIO, --inventory and --testbed to a command, which gets no testbed: without an
    inventory it is for the persistent network of this machine."""

    @functools.wraps(function)
    def command(*, inventory: Path | None, testbed: str | None, **others: Any) -> Any:
        check_where(inventory, testbed)
        return function(inventory=inventory, **others)

    for option in (
        click.option(
            "--testbed", type=click.Choice([LOCAL]), help="The persistent network of this machine."
        ),
        inventory_option,
        click.argument("scenario", metavar="SCENARIO"),
    ):
        command = option(command)
    return command


def check_where(inventory: Path | None, testbed: str | None) -> None:
    """Raises UsageError unless exactly one of the two options was given."""
    if (inventory is None) == (testbed is None):
        raise UsageError(
            "say where: --inventory FILE for your own hosts, or --testbed local for a network "
            "that `netbench net apply SCENARIO --testbed local` holds open; one of the two"
        )


@contextmanager
def open_endpoints(
    scenario: str, inventory: Path | None
) -> Iterator[tuple[Scenario, tuple[str, ...], Endpoints]]:
    """Open the nodes that the options name: the scenario, their names, and how to measure there."""
    if inventory is not None:
        with open_hosts(scenario, inventory) as hosts:
            yield hosts.scenario, hosts.names, hosts.endpoints()
    else:
        found = load_scenario(scenario)
        network = find_network(found)
        yield found, network.node_names, persistent_endpoints(network)
