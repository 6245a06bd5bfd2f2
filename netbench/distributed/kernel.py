"""The guest kernel on the hosts of workers: found, sent by checksum, or built once per host."""

import dataclasses
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from netbench.distributed.client import DaskPool, results_of
from netbench.distributed.connect import WorkerState
from netbench.distributed.worker import CellEnd
from netbench.errors import TestbedError
from netbench.pool import Work
from netbench.testbed.guest.build import Manifest
from netbench.testbed.guest.cache import (
    GOOD,
    ensure_kernel,
    ensure_shim,
    kernel_status,
    receive_kernel,
)

BYTES = 2 << 30
"""Memory of a cell, which may compile the kernel."""

HAS = "found"
SENT = "sent"
BUILT = "built"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """A guest kernel on its way to another machine."""

    kernel: bytes
    manifest: dict[str, Any]


def own_parcel() -> Parcel | None:
    """Return the guest kernel of this machine, if it has a good one."""
    status = kernel_status()
    if status.state != GOOD or status.manifest is None:
        return None
    return Parcel(kernel=status.path.read_bytes(), manifest=dataclasses.asdict(status.manifest))


def has_kernel(_: None) -> bool:
    """Return true if this host has a good guest kernel."""
    return kernel_status().state == GOOD


def provide_kernel(parcel: Parcel | None) -> str:
    """Give this host a guest kernel; return how. Raises TestbedError."""
    how = HAS
    if kernel_status().state != GOOD:
        if parcel is not None:
            receive_kernel(parcel.kernel, Manifest(**parcel.manifest))
            how = SENT
        else:
            ensure_kernel()
            how = BUILT
    ensure_shim()
    return how


def provide_kernels(pool: DaskPool) -> dict[str, str]:
    """Give every host of `pool` a guest kernel; return how, by host. Raises TestbedError."""
    workers = {worker.host: worker for worker in reversed(pool.workers())}
    look = Work(name="kernel", function=has_kernel, memory_bytes=BYTES)
    found = _on_each(pool, look, workers, lambda host: None)
    missing = [host for host, has in found.items() if not has]
    parcel = own_parcel() if missing else None
    hows = _on_each(
        pool,
        Work(name="kernel", function=provide_kernel, memory_bytes=BYTES),
        workers,
        lambda host: parcel if host in missing else None,
    )
    return dict(sorted(hows.items()))


def _on_each(
    pool: DaskPool,
    work: Work,
    workers: dict[str, WorkerState],
    item: Callable[[str], Parcel | None],
) -> dict[str, Any]:
    """Call the function of `work` once on every host. Raises TestbedError that lists hosts."""
    ends: dict[str, CellEnd | TestbedError] = {}
    is_over = threading.Event()

    def note(host: str, end: CellEnd | TestbedError) -> None:
        ends[host] = end
        if len(ends) == len(workers):
            is_over.set()

    for host, worker in workers.items():
        pool.submit(
            work,
            [item(host)],
            on_message=lambda message: None,
            on_end=functools.partial(note, host),
            worker=worker.address,
        )
    is_over.wait()
    results, errors = {}, []
    for host, end in sorted(ends.items()):
        try:
            (results[host],) = results_of(work, end)
        except TestbedError as error:
            errors.append(f"\n  {host}: {error}")
    if errors:
        raise TestbedError(f"hosts of workers have no guest kernel:{''.join(errors)}")
    return results
