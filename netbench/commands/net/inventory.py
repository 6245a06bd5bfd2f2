"""`netbench net inventory FILE`: print the hosts of an inventory without connecting to any."""

import json
from pathlib import Path

import click

from netbench.commands.options import FILE
from netbench.commands.output import plain_table, print_line, wide_console
from netbench.errors import UsageError
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.inventory import inventory_json_schema, load_inventory


@click.command("inventory")
@click.argument("file", required=False, type=FILE)
@click.option("--schema", is_flag=True, help="Print the JSON schema of inventories, for editors.")
def command(*, file: Path | None, schema: bool) -> None:
    """Print the hosts of an inventory as netbench would reach them. Connects to none."""
    if schema:
        click.echo(json.dumps(inventory_json_schema(), indent=2))
        return
    if file is None:
        raise UsageError("give the FILE of an inventory, or --schema")
    inventory = load_inventory(file)
    heads = ("node", "host", "login", "through", "data address", "interface")
    table = plain_table(*heads, right=("node",))
    first = 0
    for host in inventory.hosts:
        table.add_row(
            _numbers(first, host.nodes),
            host.name,
            host.login,
            _way(host),
            ", ".join(host.data_addresses) or "asked for",
            host.interface or "by address",
        )
        first += host.nodes
    files = ", ".join(map(str, inventory.known_hosts))
    console = wide_console()
    console.print(table)
    if inventory.is_divided:
        joined = f"joined by {inventory.overlay}, " if len(inventory.hosts) > 1 else ""
        what = f"{joined}with addresses of {inventory.node_network}"
        print_line(console, f"nodes: network namespaces of the hosts, {what}")
    print_line(console, f"host keys: {files}")


def _numbers(first: int, count: int) -> str:
    """Return the numbers of a host's nodes, from `first`; count 0: as many as a scenario has."""
    if count == 1:
        return str(first)
    return f"{first}-{first + count - 1}" if count else "all"


def _way(host: Host) -> str:
    """Return the logins of the jump hosts, nearest first."""
    way: list[str] = []
    while host.jump is not None:
        host = host.jump
        way.insert(0, host.login)
    return ", ".join(way)
