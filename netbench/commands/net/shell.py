"""`netbench net shell [NODE [-- COMMAND...]]`: a shell, or one command, in a held network."""

from __future__ import annotations

import os
import time

import click

from netbench.testbed.hold import Held, find_held, held_networks
from netbench.testbed.terminal import attach, terminal_size

FALLBACK_SHELL = "/bin/sh"


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--network", help="Which of several that are held open.")
@click.argument("node", required=False)
@click.argument("argv", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def command(network: str | None, node: str | None, argv: tuple[str, ...]) -> int:
    """Get a shell in NODE of a network that `netbench net apply SCENARIO --testbed local` holds
    open, or run one command there: `netbench net shell node3 -- ping -c 3 node7`.

    NODE: a name, or a number from 0. Without one: what is held. Inside, nodes know each other as
    node0, node1, ... and by name; files are this machine's own. Input, output and exit status are
    the command's; it has a terminal where all of these are one.
    """
    if node is None:
        found = (find_held(network),) if network else held_networks()
        click.echo("\n\n".join(describe(held) for held in found) or NOTHING)
        return 0
    held = find_held(network)
    words = argv[1:] if argv[:1] == ("--",) else argv
    size = terminal_size()
    index = held.node(node)
    with held.start(index, words or (os.environ.get("SHELL", FALLBACK_SHELL),), size) as connection:
        return attach(connection, size)


NOTHING = (
    "No local network is held open. Open one with: netbench net apply SCENARIO --testbed local"
)


def describe(held: Held) -> str:
    """A held network and its nodes, for people."""
    minutes = (time.time() - held.started_at) / 60
    head = f"{held.name}: {held.mode}, for {minutes:.0f} min, by process {held.pid}"
    regions = held.network.regions
    width = max(len(name) for name in held.node_names)
    rows = [
        f"  {index:>4}  {name:{width}}  {address:15}  {regions[region]}"
        for index, (name, address, region) in enumerate(
            zip(held.node_names, held.addresses, held.network.node_regions, strict=True)
        )
    ]
    return "\n".join([head, *rows])
