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
    for node, host in enumerate(inventory.hosts):
        table.add_row(
            str(node),
            host.name,
            host.login,
            _way(host),
            ", ".join(host.data_addresses) or "asked for",
            host.interface or "by address",
        )
    files = ", ".join(map(str, inventory.known_hosts))
    console = wide_console()
    console.print(table)
    print_line(console, f"host keys: {files}")


def _way(host: Host) -> str:
    """Return the logins of the jump hosts, nearest first."""
    way: list[str] = []
    while host.jump is not None:
        host = host.jump
        way.insert(0, host.login)
    return ", ".join(way)
