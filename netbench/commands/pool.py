"""`--dask`: run cells on the workers of a Dask cluster instead of on this machine."""

from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

import click

from netbench.commands.options import QuantityType
from netbench.distributed import opening
from netbench.distributed.address import parse_address

if TYPE_CHECKING:
    from netbench.distributed.client import DaskPool


def check_address(text: str) -> str:
    """Return an address of --dask. Raises ValueError."""
    parse_address(text)
    return text


dask_option = click.option(
    "--dask",
    metavar="ADDRESS",
    type=QuantityType("ADDRESS", check_address),
    help="Run on the workers of a Dask cluster: its scheduler, e.g. tcp://10.0.0.1:8786, "
    "local[:N] for N workers of this machine, or ssh:hosts.yaml for one on each host.",
)


def open_pool(dask: str | None) -> "AbstractContextManager[DaskPool | None]":
    """Connect to a Dask cluster, and say on standard error where it is. None: there is none."""
    return opening.open_pool(dask, partial(click.echo, err=True))
