"""Options that say where plans run."""

from collections.abc import Callable
from typing import Any

import click

from netbench.commands.options import FILE


def inventory_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --inventory and --replace to a command."""
    replace = click.option(
        "--replace", is_flag=True, help="Set foreign root qdiscs of the hosts aside meanwhile."
    )
    inventory = click.option(
        "--inventory",
        type=FILE,
        metavar="FILE",
        help="Run on the hosts of this inventory (YAML), in the order of the scenario's nodes.",
    )
    return inventory(replace(function))
