"""Sessions of emulated plans as cells: one guest per cell, on the workers of a Dask cluster.

Workers send events; the controller on the client records them. A cell that runs again on another
worker, because its own has died, repeats its events, and those that are recorded are left out.
"""

import functools
import queue
import socket
from collections.abc import Callable, Mapping
from typing import Any

from netbench.distributed.client import DaskPool, describe_failure
from netbench.distributed.kernel import provide_kernels
from netbench.distributed.worker import CellEnd
from netbench.errors import TestbedError
from netbench.network.probing.fidelity import TOLERANCE
from netbench.plan.experiment import experiment_hash
from netbench.pool import Work
from netbench.testbed.guest.cache import ensure_shim
from netbench.testbed.machine.capabilities import probe_machine
from netbench.testbed.machine.choose import choose
from netbench.testbed.runs.controller import Event, SessionSetup, SessionTask
from netbench.testbed.runs.launch import start_session
from netbench.units import counted

TESTBED = "guest-virtual"
"""The only testbed whose times do not depend on what else its host does."""

GUEST_BYTES = 3 << 29
GUEST_BYTES_PER_RANK = 32 << 20
"""Memory of a cell with a guest, which is less than the sparse memory that the guest may use."""


def run_session(job: Mapping[str, Any], report: Callable[[Any], None]) -> None:
    """Run the session of a job on this host, in a cell, and report its events."""
    report({"event": "place", "host": socket.gethostname()})
    machine, shim = probe_machine(), ensure_shim()
    choose("local:guest", machine, job["num_ranks"])  # raises TestbedError with the remedy
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    environment = {"LD_PRELOAD": str(shim)} if shim else {}
    whole = {**job, "rank_environment": environment}
    session = start_session(TESTBED, machine, whole, job["num_ranks"], events.put)
    try:
        for event in iter(events.get, None):
            if event["event"] == "error":
                event["message"] += session.console_tail(booted=True)
            report(event)
            if event["event"] in ("error", "done"):
                return
        ended = f"the session ended unexpectedly{session.console_tail()}"
        report({"event": "error", "message": ended})
    finally:
        session.close()


class DaskSession:
    """A session in a cell; see `testbed.runs.launch.SessionProcess`."""

    def __init__(
        self, pool: DaskPool, ssh: bool, task: SessionTask, on_event: Callable[[Event | None], None]
    ) -> None:
        self._pool = pool
        self._on_event = on_event
        (plan,) = task.plans
        self._seen = set(task.finished[0])
        self._has_probe = self._is_over = False
        self._host = ""
        self._work = session_work(len(plan.device_nodes))
        job = {
            **task.to_json(),
            "ssh": ssh,
            "tolerance": TOLERANCE[TESTBED],
            "num_ranks": len(plan.device_nodes),
        }
        self._number = pool.submit(
            self._work, [job], on_message=self._take, on_end=self._end, key=experiment_hash(plan)
        )

    def console_tail(self, *, booted: bool = False) -> str:
        """Return "": the end of a failed cell's output is in the message itself."""
        return ""

    def close(self) -> None:
        """End the cell, wherever it is."""
        self._pool.cancel(self._number)

    def _take(self, event: Event) -> None:
        kind = event["event"]
        if kind in ("part", "iteration") and event["iteration"] in self._seen:
            return
        if kind == "iteration":
            self._seen.add(event["iteration"])
        elif kind == "probe":
            if self._has_probe:
                return
            self._has_probe = True
        elif kind == "place":
            self._host = event["host"]
        elif kind == "error":
            event = {**event, "message": f"{self._host}: {event['message']}"}
        self._is_over = self._is_over or kind in ("done", "error")
        self._on_event(event)

    def _end(self, end: CellEnd | TestbedError) -> None:
        if self._is_over:
            return
        message = describe_failure(self._work, end) if isinstance(end, CellEnd) else str(end)
        self._on_event({"event": "error", "message": message})


def session_work(num_ranks: int) -> Work:
    """Return the work of a session with a number of ranks."""
    memory_bytes = GUEST_BYTES + num_ranks * GUEST_BYTES_PER_RANK
    return Work(name="session", function=run_session, reports=True, memory_bytes=memory_bytes)


def prepare_sessions(
    pool: DaskPool, num_ranks: int, ssh: bool, say: Callable[[str], None]
) -> SessionSetup:
    """Give the hosts of `pool` what sessions need, and say where they will run."""
    work = session_work(num_ranks)
    pool.num_cells(work.memory_bytes)
    hows = provide_kernels(pool)
    hosts = ", ".join(f"{host} ({how})" for host, how in hows.items())
    say(f"testbed: {TESTBED}, one guest per cell; guest kernel on {hosts}")
    workers = pool.workers()
    return SessionSetup(
        testbed=TESTBED,
        start=functools.partial(DaskSession, pool, ssh),
        side_by_side=functools.partial(pool.wait_for_cores, work.memory_bytes),
        place=f"{counted(len(workers), 'Dask worker')} on {', '.join(hows)}",
    )
