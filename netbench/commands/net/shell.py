"""`netbench net shell [NODE [-- COMMAND...]]`: a shell or a command in a persistent network."""

import os
import time

import click

from netbench.testbed.persistent.client import (
    PersistentNetwork,
    find_persistent,
    persistent_networks,
)
from netbench.testbed.persistent.terminal import attach, terminal_size

FALLBACK_SHELL = "/bin/sh"


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--network", help="Name of the persistent network, if there are several.")
@click.argument("node", required=False)
@click.argument("argv", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def command(network: str | None, node: str | None, argv: tuple[str, ...]) -> int:
    """Open a shell in NODE of a persistent network (`netbench net apply SCENARIO --testbed local`),
    or run a command there: `netbench net shell node3 -- ping -c 3 node7`.

    NODE: a name, or a number from 0. Without it, the persistent networks are listed. In a node, the
    others are node0, node1, ... or have their names, and files are those of this machine. Input,
    output and exit status are the command's. It has a terminal if all of its streams are one.
    """
    if node is None:
        found = (find_persistent(network),) if network else persistent_networks()
        click.echo("\n\n".join(map(describe, found)) or NOTHING)
        return 0
    persistent = find_persistent(network)
    command_argv = argv[1:] if argv[:1] == ("--",) else argv
    size = terminal_size()
    index = persistent.node(node)
    with persistent.start(
        index, command_argv or (os.environ.get("SHELL", FALLBACK_SHELL),), size
    ) as connection:
        return attach(connection, size)


NOTHING = (
    "There is no persistent network. Open one with: netbench net apply SCENARIO --testbed local"
)


def describe(network: PersistentNetwork) -> str:
    """Describe a persistent network and its nodes."""
    minutes = (time.time() - network.started_at) / 60
    head = f"{network.name}: {network.testbed}, for {minutes:.0f} min, by process {network.pid}"
    regions = network.network.regions
    width = max(len(name) for name in network.node_names)
    rows = [
        f"  {index:>4}  {name:{width}}  {address:15}  {regions[region]}"
        for index, (name, address, region) in enumerate(
            zip(network.node_names, network.addresses, network.network.node_regions, strict=True)
        )
    ]
    return "\n".join([head, *rows])
