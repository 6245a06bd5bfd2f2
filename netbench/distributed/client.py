"""Submit cells to the workers of a Dask cluster: the client's side of `--dask`."""

import functools
import hashlib
import json
import math
import pickle
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from distributed import Client

from netbench.distributed.address import parse_address
from netbench.distributed.connect import WorkerState, check_resources, connect, workers_of
from netbench.distributed.token import Heartbeat
from netbench.distributed.worker import CORES, MEMORY, Assignment, CellEnd, run_cell
from netbench.errors import TestbedError
from netbench.pool import OnMessage, Work, ignore
from netbench.records import HASH_DIGITS

if TYPE_CHECKING:
    from distributed import Future

    CellFuture = Future[CellEnd]

PER_CORE = 2
"""Cells submitted per core, so that a worker need not wait for the next one."""

BATCHES_PER_CORE = 4
"""Least number of batches per core: small enough to balance."""

CHECK_S = 5.0
"""Interval of looks at the workers, seconds."""

NO_WORKER_S = 60.0
"""Time without a worker that can run a cell after which a run fails, seconds."""

FETCH_S = 30.0
"""Deadline for a finished result to arrive, seconds."""

LOG_LINES = 12
"""Number of lines of a failed cell's output in an error message."""

Reports = queue.SimpleQueue["tuple[int, CellEnd | TestbedError | None, Any]"]
"""Reports of other threads to the caller's: index of an item, end of its cell or a message."""

OnEnd = Callable[["CellEnd | TestbedError"], None]


@dataclass(kw_only=True, slots=True)
class _Running:
    """A cell that was submitted. num_passed: messages passed on, of this attempt."""

    name: str
    on_message: Callable[[Any], None]
    on_end: OnEnd
    future: "CellFuture | None" = None
    attempt: str = ""
    num_passed: int = 0


class DaskPool:
    """The workers of a Dask cluster, as a `netbench.pool.Pool`. Use it as a context manager.

    address: of a scheduler, or `local[:N]`. dashboard: address of its web page.
    """

    def __init__(self, address: str) -> None:
        self._where = parse_address(address)
        self.address = address
        self.dashboard = ""
        self._stack = ExitStack()
        self._run = f"netbench-{secrets.token_hex(4)}"
        self._lock = threading.RLock()
        self._cells: dict[int, _Running] = {}
        self._count = 0
        self._done: Counter[str] = Counter()
        self._workers: list[WorkerState] = []
        self._asked_s = -math.inf

    def __enter__(self) -> Self:
        try:
            self._client: Client = self._stack.enter_context(connect(self._where))
            self.dashboard = self._client.dashboard_link
            self._heartbeat = Heartbeat(self._client, self._run)
            self._stack.callback(self._leave)
            self._client.subscribe_topic(self._run, self._on_event)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def client(self) -> Client:
        """Client of the scheduler."""
        return self._client

    def workers(self) -> list[WorkerState]:
        """Return the workers that were there in the last `CHECK_S`.

        Raises TestbedError if the scheduler has gone.
        """
        if time.monotonic() < self._asked_s + CHECK_S:
            return self._workers
        try:
            self._workers = workers_of(self._client)
            self._asked_s = time.monotonic()
            return self._workers
        except Exception as error:  # comm errors of several kinds
            raise TestbedError(f"{self._gone()}: {error}") from None

    def num_cells(self, memory_bytes: int) -> int:
        """Return how many cells can run at the same time now.

        Raises UsageError if none ever can.
        """
        workers = self.workers()
        check_resources(workers, memory_bytes)
        return sum(worker.num_cells(memory_bytes) for worker in workers)

    def wait_for_cores(self, memory_bytes: int) -> int:
        """Return the number of cells that can run, once there are any.

        Raises TestbedError after `NO_WORKER_S` without a worker.
        """
        end_s = time.monotonic() + NO_WORKER_S
        while not (cores := sum(one.num_cells(memory_bytes) for one in self.workers())):
            if time.monotonic() > end_s:
                raise TestbedError(
                    f"{self.address} has had no worker that can run a cell for {NO_WORKER_S:g} s; "
                    "earlier records are kept; start workers, and continue with --resume"
                )
            time.sleep(1.0)
        return cores

    def describe(self) -> str:
        """Describe how many cells each worker has finished."""
        counts = sorted(self._done.items())
        return ", ".join(f"{name}: {count}" for name, count in counts)

    def run(
        self, work: Work, items: Sequence[Any], on_message: OnMessage = ignore
    ) -> Iterator[tuple[int, Any]]:
        """Yield the index and the result of every item as cells end, in any order.

        See `netbench.pool.Pool.run`. Unfinished cells end when the iterator is closed. A cell whose
        worker dies runs again on another.
        """
        if not items:
            return
        size = self._batch_size(work, len(items))
        waiting = iter(range(0, len(items), size))
        reports: Reports = queue.SimpleQueue()
        running: dict[int, int] = {}  # index of a batch's first item -> number of its cell
        try:
            while True:
                most = PER_CORE * self.wait_for_cores(work.memory_bytes)
                while len(running) < most and (first := next(waiting, None)) is not None:
                    running[first] = self.submit(
                        work,
                        items[first : first + size],
                        on_message=functools.partial(_put_message, reports, first),
                        on_end=functools.partial(_put_end, reports, first),
                    )
                if not running:
                    return
                try:
                    first, end, message = reports.get(timeout=CHECK_S)
                except queue.Empty:
                    continue
                if end is None:
                    on_message(first, message)
                    continue
                del running[first]
                for offset, result in enumerate(results_of(work, end)):
                    yield first + offset, result
        finally:
            for number in running.values():
                self.cancel(number)

    def submit(
        self,
        work: Work,
        items: Sequence[Any],
        *,
        on_message: Callable[[Any], None],
        on_end: OnEnd,
        key: str = "",
        worker: str = "",
    ) -> int:
        """Start one cell for all of `items`, and return its number.

        on_message, on_end: called in another thread; the end comes last, and once. A cell that runs
        again repeats its messages. key: hash of what it does. worker: address of the only one that
        may run it.
        """
        call = pickle.dumps((work.function, list(items)), pickle.HIGHEST_PROTOCOL)
        key = key or hashlib.sha256(call).hexdigest()[:HASH_DIGITS]
        with self._lock:
            number = self._count
            self._count += 1
            running = _Running(name=f"{work.name} {key}", on_message=on_message, on_end=on_end)
            self._cells[number] = running
        assignment = Assignment(run=self._run, number=number, work=work, call=call)
        running.future = self._client.submit(
            run_cell,
            assignment,
            key=f"{work.name}-{key}-{self._run}-{number}",
            pure=False,
            resources={CORES: 1, MEMORY: work.memory_bytes},
            workers=[worker] if worker else None,
        )
        running.future.add_done_callback(lambda future: self._on_done(number, future))
        return number

    def cancel(self, number: int) -> None:
        """End a cell, wherever it is. Its `on_end` is not called any more."""
        with self._lock:
            if self._cells.pop(number, None) is not None:
                self._heartbeat.cancel(number)

    def _batch_size(self, work: Work, num_items: int) -> int:
        cores = self.num_cells(work.memory_bytes)
        return max(1, min(work.max_batch, num_items // (cores * BATCHES_PER_CORE)))

    def _on_event(self, event: tuple[float, dict[str, Any]]) -> None:
        """Pass on a message that came through the scheduler."""
        _, message = event
        with self._lock:
            running = self._cells.get(message["cell"])
            if running is None:
                return
            if message["number"] == 0 and message["attempt"] != running.attempt:
                running.attempt, running.num_passed = message["attempt"], 0
            # Others are late ones of an attempt that was given up, or follow one that was lost.
            if (message["attempt"], message["number"]) == (running.attempt, running.num_passed):
                running.num_passed += 1
                running.on_message(json.loads(message["text"]))

    def _on_done(self, number: int, future: "CellFuture") -> None:
        if future.status == "finished":
            try:
                end: CellEnd | TestbedError = future.result(timeout=FETCH_S)
            except Exception as problem:  # its worker has just died, or the scheduler has
                end = TestbedError(f"the result of a finished cell was lost: {problem}")
        elif future.status == "error":
            error = future.exception()
            end = TestbedError(f"{self._name(number)} failed: {type(error).__name__}: {error}")
        else:  # nobody here cancels futures
            end = TestbedError(self._gone())
        self._end(number, end)

    def _end(self, number: int, end: CellEnd | TestbedError) -> None:
        with self._lock:
            running = self._cells.pop(number, None)
            if running is None:
                return
            if isinstance(end, CellEnd):
                self._done[end.host] += 1
                for text in end.messages[running.num_passed :]:
                    running.on_message(json.loads(text))
            running.on_end(end)

    def _name(self, number: int) -> str:
        running = self._cells.get(number)
        return running.name if running else f"cell {number}"

    def _gone(self) -> str:
        return (
            f"the Dask scheduler at {self.address} has gone; earlier records are kept; continue "
            "with --resume"
        )

    def _leave(self) -> None:
        """End the cells that are left."""
        with self._lock:
            self._cells.clear()
        self._heartbeat.close()


def _put_message(reports: Reports, first: int, message: Any) -> None:
    reports.put((first, None, message))


def _put_end(reports: Reports, first: int, end: CellEnd | TestbedError) -> None:
    reports.put((first, end, None))


def results_of(work: Work, end: CellEnd | TestbedError) -> list[Any]:
    """Return the results of a cell. Raises its error, or TestbedError if it was killed."""
    if isinstance(end, TestbedError):
        raise end
    if end.error is not None:
        error = pickle.loads(end.error)
        assert isinstance(error, Exception)
        raise error
    if end.result is None:
        raise TestbedError(describe_failure(work, end))
    found = pickle.loads(end.result)
    assert isinstance(found, list)
    return found


def describe_failure(work: Work, end: CellEnd) -> str:
    """Describe a cell that was killed, with the last lines of its output."""
    lines = end.log.splitlines()[-LOG_LINES:]
    output = "".join(f"\n  | {line}" for line in lines)
    return (
        f"a cell ({work.name}) failed on worker {end.host}: {end.killed}; earlier records are "
        f"kept; continue with --resume{f'. Its last lines:{output}' if lines else ''}"
    )
