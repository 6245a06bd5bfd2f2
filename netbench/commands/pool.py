"""`--dask`: run cells on the workers of a Dask cluster instead of on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from netbench.commands.options import QuantityType
from netbench.distributed.address import parse_address
from netbench.errors import UsageError
from netbench.units import counted

if TYPE_CHECKING:
    from netbench.distributed.client import DaskPool

EXTRA = ("bokeh", "dask", "distributed", "psutil")
"""Packages of the extra that netbench or the dashboard imports."""


def check_address(text: str) -> str:
    """Return an address of --dask. Raises ValueError."""
    parse_address(text)
    return text


dask_option = click.option(
    "--dask",
    metavar="ADDRESS",
    type=QuantityType("ADDRESS", check_address),
    help="Run on the workers of a Dask cluster: its scheduler, e.g. tcp://10.0.0.1:8786, or "
    "local[:N] for N workers of this machine.",
)


@contextmanager
def open_pool(dask: str | None) -> "Iterator[DaskPool | None]":
    """Connect to a Dask cluster and say on standard error where it is. None: yield None.

    Raises UsageError without the extra, and TestbedError if nobody answers.
    """
    if dask is None:
        yield None
        return
    try:
        from netbench.distributed.client import DaskPool
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in EXTRA:
            raise
        raise UsageError(
            f"--dask needs the package {error.name}, of an optional extra; install it with: "
            "pip install 'netbench[cluster]' (docs/scaling.md)"
        ) from None
    with DaskPool(dask) as pool:
        workers = pool.workers()
        hosts = counted(len({worker.host for worker in workers}), "host")
        cores = counted(sum(worker.cores for worker in workers), "core")
        click.echo(
            f"dask: {counted(len(workers), 'worker')} on {hosts}, {cores}; "
            f"dashboard: {pool.dashboard}",
            err=True,
        )
        yield pool
