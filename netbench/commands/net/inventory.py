"""`netbench net inventory FILE`: what an inventory means, without connecting to anything."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from netbench.commands.live import wide_console
from netbench.errors import UsageError
from netbench.testbed.inventory import Host, inventory_json_schema, load_inventory


@click.command("inventory")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--schema", is_flag=True, help="Print the JSON schema of inventories, for editors.")
def command(*, file: Path | None, schema: bool) -> None:
    """Print the hosts of an inventory as netbench would reach them. Connects to none."""
    if schema:
        click.echo(json.dumps(inventory_json_schema(), indent=2))
        return
    if file is None:
        raise UsageError("give the FILE of an inventory, or --schema")
    inventory = load_inventory(file)
    table = Table(box=None, pad_edge=False)
    for column in ("node", "host", "login", "through", "data address", "interface"):
        table.add_column(column, justify="right" if column == "node" else "left")
    for node, host in enumerate(inventory.hosts):
        table.add_row(
            str(node),
            escape(host.name),
            escape(host.login),
            escape(_way(host)),
            ", ".join(host.data_addresses) or "asked for",
            host.interface or "by address",
        )
    files = ", ".join(map(str, inventory.known_hosts))
    console = wide_console()
    console.print(table)
    console.print(f"host keys: {escape(files)}", soft_wrap=True)


def _way(host: Host) -> str:
    """Logins of the jump hosts, nearest first."""
    way: list[str] = []
    while host.jump is not None:
        host = host.jump
        way.insert(0, host.login)
    return ", ".join(way)
