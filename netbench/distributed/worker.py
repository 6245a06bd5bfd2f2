"""A task of Dask: starts one cell on its worker, watches it and passes on what it sends."""

import threading
import time
from dataclasses import dataclass

from dask.system import CPU_COUNT
from distributed import Worker, WorkerPlugin, get_worker
from distributed.core import Status
from distributed.system import MEMORY_LIMIT

from netbench.distributed.cells import ERROR, MESSAGE, Cell, CellServer
from netbench.distributed.token import Watch
from netbench.errors import TestbedError
from netbench.pool import Work
from netbench.units import format_bytes

CORES, MEMORY = "CORES", "MEMORY"
"""Resources of workers: cells at the same time, and their memory in bytes."""

POLL_S = 0.5
"""Longest time without a look at the cell's limits, seconds."""

MEMORY_S = 5.0
"""Interval of measurements of a cell's memory, seconds: of a guest, one takes 50 ms."""

LOG_BYTES = 64 << 10
"""Length of the end of a failed cell's output that comes back."""

STREAMED_BYTES = 256 << 10
"""Longest message that passes through the scheduler. Longer ones come with the result."""

_SERVER = CellServer()


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """A cell that a client wants. run: name of its token, and topic of messages. number: of it."""

    run: str
    number: int
    work: Work
    call: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class CellEnd:
    """End of a cell. result, error: pickled, or None. killed: why, "" = it ended by itself.

    messages: all that it sent, JSON. log: end of its output, if it failed. host: where it ran.
    """

    host: str
    messages: tuple[str, ...]
    result: bytes | None = None
    error: bytes | None = None
    killed: str = ""
    log: str = ""


def run_cell(assignment: Assignment) -> CellEnd:
    """Run a cell to its end. It is killed if its client says so or has gone, if this worker ends,
    or if it needs more memory than it may."""
    worker = get_worker()
    host = str(worker.name)
    try:
        cell = _SERVER.start(assignment.work, assignment.call)
    except TestbedError as error:
        return CellEnd(host=host, messages=(), killed=str(error))
    try:
        return _Follower(worker, assignment, cell).follow(host)
    finally:
        cell.close()


class _Follower:
    """Passes on what a cell sends until it ends."""

    def __init__(self, worker: Worker, assignment: Assignment, cell: Cell) -> None:
        self._worker = worker
        self._assignment = assignment
        self._cell = cell
        self._watch = Watch(assignment.run, assignment.number)
        self._key = worker.get_current_task()
        self._attempt = f"{worker.id} {threading.get_ident()} {time.monotonic_ns()}"
        self._messages: list[str] = []
        self._streams = True
        self._measured_s = time.monotonic()

    def follow(self, host: str) -> CellEnd:
        """Return how the cell ended."""
        result = error = None
        killed = ""
        try:
            while not (killed := self._why_kill()):
                found = self._cell.receive(POLL_S)
                if found is None:
                    continue
                kind, data = found
                if kind == MESSAGE:
                    self._pass_on(data.decode())
                elif kind == ERROR:
                    error = data
                else:
                    result = data
        except EOFError:
            code = self._cell.exit_code()
            if result is None and error is None:
                killed = _describe_exit(code)
        return CellEnd(
            host=host,
            messages=tuple(self._messages),
            result=None if killed else result,
            error=error,
            killed=killed,
            log="" if result is not None and not killed else self._cell.log_tail(LOG_BYTES),
        )

    def _pass_on(self, text: str) -> None:
        """Send a message to the client at once, unless it is long, or one before it was."""
        number = len(self._messages)
        self._messages.append(text)
        self._streams = self._streams and len(text) <= STREAMED_BYTES
        if self._streams:
            event = {
                "cell": self._assignment.number,
                "attempt": self._attempt,
                "number": number,
                "host": str(self._worker.name),
                "text": text,
            }
            self._worker.log_event(self._assignment.run, event)

    def _why_kill(self) -> str:
        if self._worker.status not in (Status.running, Status.paused):
            return "its worker was closed"
        task = self._worker.state.tasks.get(self._key)
        if task is None or task.state == "cancelled":
            return "its client has gone"
        if time.monotonic() > self._measured_s + MEMORY_S:
            self._measured_s = time.monotonic()
            limit_bytes = self._assignment.work.memory_bytes
            used_bytes = self._cell.memory_bytes()
            if used_bytes > limit_bytes:
                return (
                    f"it used {format_bytes(used_bytes, 3)} of memory; its limit is "
                    f"{format_bytes(limit_bytes, 3)}"
                )
        return self._watch.why_end()


def _describe_exit(code: int) -> str:
    return f"signal {-code} killed it" if code < 0 else f"it ended with exit code {code}"


class Resources(WorkerPlugin):
    """Declares the cores and memory of workers that were started without --resources."""

    name = "netbench-resources"
    idempotent = True

    async def setup(self, worker: Worker) -> None:
        """Declare them: a thread is a core, and each core has an equal part of the memory."""
        declared = worker.state.total_resources
        threads = worker.state.nthreads
        own = {CORES: threads, MEMORY: MEMORY_LIMIT * min(1.0, threads / CPU_COUNT)}
        await worker.set_resources(
            **{name: amount for name, amount in own.items() if name not in declared}
        )
