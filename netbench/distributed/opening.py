"""Connect to a Dask cluster, if one is asked for and its packages are installed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from netbench.errors import UsageError
from netbench.units import counted

if TYPE_CHECKING:
    from netbench.distributed.client import DaskPool

EXTRA = ("bokeh", "dask", "distributed", "psutil")
"""Packages of the extra that netbench or the dashboard imports."""


@contextmanager
def open_pool(dask: str | None, say: Callable[[str], None]) -> "Iterator[DaskPool | None]":
    """Connect to a Dask cluster and say where it is. dask: its address; None: yield None.

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
        say(
            f"dask: {counted(len(workers), 'worker')} on {hosts}, {cores}; "
            f"dashboard: {pool.dashboard}"
        )
        yield pool
