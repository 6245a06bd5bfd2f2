"""`netbench runs clean`: end what runs have left on hosts."""

from pathlib import Path

import click
from rich.text import Text

from netbench.commands.options import FILE


@click.group()
def runs() -> None:
    """End what runs have left on hosts."""


@runs.command("clean")
@click.option("--inventory", type=FILE, metavar="FILE", required=True, help="The hosts (YAML).")
def clean_command(inventory: Path) -> int:
    """Remove what ended runs have left on hosts.

    Ends their processes, deletes their files and restores the network. Runs that are still under
    way are left alone. Exit code 1: something is left, or unknown.
    """
    from netbench.commands.net.hosts import host_table, open_console
    from netbench.testbed.cluster.certificate import clean
    from netbench.testbed.ssh.inventory import load_inventory
    from netbench.testbed.ssh.machines import Hosts
    from netbench.testbed.ssh.scenario_hosts import fleet_of

    found, console = load_inventory(inventory), open_console()
    with (
        console.status("connecting") as status,
        Hosts(found.hosts, found.known_hosts) as hosts,
        fleet_of(found, found.hosts, hosts, status.update) as fleet,
    ):
        nodes = range(len(found.hosts))
        left = clean(hosts, nodes, fleet.clear("owner"))
    table = host_table("left")
    for node, what in left.items():
        table.add_row(found.hosts[node].name, Text(str(what), "" if what.is_good else "red"))
    console.print(table)
    return 0 if all(what.is_good for what in left.values()) else 1
