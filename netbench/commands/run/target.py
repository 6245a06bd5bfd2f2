"""Options that say where plans run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from netbench.commands.options import FILE
from netbench.errors import UsageError

LOCAL = "local"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Testbed or hosts on which plans are to run.

    testbed: a value of `--testbed`. ssh: with an sshd per node. inventory: hosts to run on, instead
    of this machine. replace: set their foreign root qdiscs aside meanwhile. dask: address of a
    Dask cluster whose workers run the plans. Raises UsageError for options that exclude each other.
    """

    testbed: str = LOCAL
    ssh: bool = False
    inventory: Path | None = None
    replace: bool = False
    dask: str | None = None

    def __post_init__(self) -> None:
        if self.inventory is None and self.replace:
            raise UsageError("--replace is for the hosts of an inventory; add --inventory")
        if self.inventory is not None and (self.ssh or self.testbed != LOCAL):
            raise UsageError(
                "--inventory runs on its hosts, over SSH; leave out --testbed and --ssh"
            )
        if self.inventory is not None and self.dask is not None:
            raise UsageError(
                "--inventory runs one plan on many hosts, --dask many plans, each on one host; "
                "leave out one of the two"
            )


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
