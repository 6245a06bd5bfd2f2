"""Find or start a Dask cluster, and check that it can run cells."""

import logging
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster

from netbench.distributed.versions import check_versions, software
from netbench.distributed.worker import CORES, MEMORY, Resources
from netbench.errors import TestbedError, UsageError
from netbench.units import counted, format_bytes

CONNECT_S = 15.0
"""Deadline for a scheduler to answer, seconds."""

FIRST_WORKER_S = 60.0
"""Deadline for the first worker to be there, seconds: a job queue may start it."""

CLOSE_S = 10.0
"""Deadline for a client, or a local cluster, to end, seconds."""

LOGGERS = ("distributed", "distributed.client", "tornado.application", "asyncio")
"""Loggers to which Dask gives levels of their own; netbench says what is wrong."""

OPTIONS = {
    "logging": {"distributed": "critical"},
    "distributed.comm.timeouts.connect": f"{CONNECT_S}s",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerState:
    """A worker. cores: cells at the same time. memory_bytes: of all its cells together."""

    address: str
    name: str
    host: str
    cores: int
    memory_bytes: float

    def num_cells(self, memory_bytes: int) -> int:
        """Return how many cells with a memory limit can run on it at the same time."""
        return max(0, min(self.cores, int(self.memory_bytes // memory_bytes)))


@contextmanager
def connect(where: str | int | Path) -> Iterator[Client]:
    """Connect to the scheduler at an address, or start a cluster: with a number of workers here, or
    with one on each host of an inventory.

    Raises TestbedError if nobody answers, or if the cluster's software differs.
    """
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(OPTIONS))
        target: str | int | Path | LocalCluster = where
        num_workers = 1
        if isinstance(where, int):
            target = stack.enter_context(_local_cluster(where))
        elif isinstance(where, Path):
            target, num_workers = stack.enter_context(_cluster_of_hosts(where))
        try:
            client = Client(target, timeout=CONNECT_S, set_as_default=False, name="netbench")
        except (OSError, TimeoutError, ValueError) as error:
            raise TestbedError(
                f"no Dask scheduler answers at {where} within {CONNECT_S:g} s: {error}"
            ) from None
        stack.callback(_close, client)
        _wait_for_workers(client, num_workers, where)
        _compare(client)
        client.register_plugin(Resources())
        yield client


def _close(client: Client) -> None:
    with suppress(Exception):  # the scheduler has gone; there are several errors for that
        client.close(CLOSE_S)


@contextmanager
def _cluster_of_hosts(inventory: Path) -> Iterator[tuple[LocalCluster, int]]:
    """Start a scheduler here and a worker on each host of an inventory; yield how many."""
    from netbench.distributed.hosts import hosts_for_workers  # paramiko: for hosts only

    with (
        hosts_for_workers(inventory) as hosts,
        _local_cluster(0, hosts.scheduler_address()) as cluster,
        hosts.workers(cluster.scheduler_address),
    ):
        yield cluster, hosts.num_hosts


@contextmanager
def _local_cluster(num_workers: int, host: str = "127.0.0.1") -> Iterator[LocalCluster]:
    """Start a scheduler at an address of this machine, and workers. They ignore Ctrl-C, which the
    client handles."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by the workers
    try:
        cluster = LocalCluster(
            n_workers=num_workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,  # the nanny does not count child processes; `worker` does
            host=host,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        )
    finally:
        signal.signal(signal.SIGINT, handler)
    try:
        yield cluster
    finally:
        with suppress(TimeoutError):  # the workers end with this process
            cluster.close(CLOSE_S)


def _wait_for_workers(client: Client, num_workers: int, where: str | int | Path) -> None:
    try:
        client.wait_for_workers(num_workers, timeout=FIRST_WORKER_S)
    except TimeoutError:
        if isinstance(where, Path):
            there = sorted(worker.name for worker in workers_of(client))
            raise TestbedError(
                f"of {counted(num_workers, 'worker')} on the hosts of {where}, "
                f"{', '.join(there) or 'none'} reached the scheduler at "
                f"{client.scheduler_info()['address']} within {FIRST_WORKER_S:g} s; let the hosts "
                "connect to this machine, or start workers yourself (docs/scaling.md)"
            ) from None
        raise TestbedError(
            f"the Dask scheduler at {where} has no worker after {FIRST_WORKER_S:g} s; start one: "
            f"dask worker {where} --memory-limit 0"
        ) from None


def _compare(client: Client) -> None:
    """Raises TestbedError if the software of the scheduler or a worker differs."""
    found: dict[str, Any] = dict(client.run(software, on_error="return"))
    try:
        found["scheduler"] = client.run_on_scheduler(software)
    except Exception as error:  # whatever it raises there
        found["scheduler"] = error
    check_versions(software(), found)


def workers_of(client: Client) -> list[WorkerState]:
    """Return the workers that are connected now, by name."""
    found = [
        WorkerState(
            address=address,
            name=str(info["name"]),
            host=str(info["host"]),
            cores=min(int(info["nthreads"]), int(info["resources"].get(CORES, 0))),
            memory_bytes=float(info["resources"].get(MEMORY, 0)),
        )
        for address, info in client.scheduler_info(n_workers=-1)["workers"].items()
    ]
    return sorted(found, key=lambda worker: (worker.host, worker.name))


def check_resources(workers: list[WorkerState], memory_bytes: int) -> None:
    """Raises UsageError if no worker can ever run a cell with a memory limit."""
    if any(worker.num_cells(memory_bytes) for worker in workers):
        return
    listed = "".join(
        f"\n  {worker.name} on {worker.host}: {counted(worker.cores, 'core')}, "
        f"{format_bytes(round(worker.memory_bytes), 3)}"
        for worker in workers
    )
    raise UsageError(
        f"no Dask worker can run a cell, which takes 1 core and {format_bytes(memory_bytes, 3)}: "
        f"start workers with e.g. --nthreads 2 --resources '{CORES}=2 {MEMORY}=8e9', or lower "
        f"NETBENCH_MEMORY. The workers have:{listed or ' (there are none)'}"
    )
