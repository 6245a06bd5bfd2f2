"""Process that imports what cells need once, and forks a cell for every request.

Importing and loading the compiled simulator takes seconds, a fork some milliseconds. A worker
starts this process with `CellServer`. Every cell has its own session. It is killed with its process
group when its caller closes `Cell`, when the worker ends, or when this process ends.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, BinaryIO, NoReturn

import psutil

from netbench.errors import NetbenchError, TestbedError
from netbench.limits import MEMORY_VARIABLE
from netbench.pool import Work

PR_SET_PDEATHSIG = 1  # linux/prctl.h

MESSAGE, RESULT, ERROR = b"m", b"r", b"e"
"""First byte of what a cell sends: a message (JSON), its result (pickle), an error (pickle)."""

IDLE_S = 20.0
"""Time without a cell after which the process ends, seconds. The next cell starts another."""

GRACE_S = 10.0
"""Time that descendants in other sessions have to end after their cell, seconds: a guest clears
its folder first."""

WATCH_S = 1.0
"""Interval of looks at the worker while code is loaded or compiled, seconds."""

NUM_FILES = 4

TRIMMED = "MALLOC_TRIM_THRESHOLD_"
"""Variable with which Dask's nanny lets malloc return memory at every chance. A simulation, whose
arrays come and go, takes half as long again with it."""

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the process ignores: its worker ends it by closing the socket."""


class Cell:
    """A running cell, as its worker sees it."""

    def __init__(self, messages: Connection, status: Connection, log: BinaryIO) -> None:
        """Internal; use `CellServer.start`."""
        self._pid = 0
        self._messages = messages
        self._status = status
        self._log = log

    def receive(self, timeout_s: float) -> tuple[bytes, bytes] | None:
        """Return the kind and content of what the cell has sent next, or None after `timeout_s`.

        Raises EOFError at its end.
        """
        if not self._messages.poll(timeout_s):
            return None
        data = self._messages.recv_bytes()
        return data[:1], data[1:]

    def pid(self, timeout_s: float = 0.0) -> int:
        """Return the process of the cell, also its group and session; 0 if it has not started."""
        if not self._pid and self._status.poll(timeout_s):
            with contextlib.suppress(EOFError, OSError):  # the server was killed
                self._pid = int(self._status.recv_bytes())
        return self._pid

    def exit_code(self) -> int:
        """Return the exit code of a cell that has ended, negative: the signal that killed it."""
        if not (self.pid(GRACE_S) and self._status.poll(GRACE_S)):
            return -signal.SIGKILL
        try:
            return int(self._status.recv_bytes())
        except (EOFError, OSError):  # the server was killed, and its cells with it
            return -signal.SIGKILL

    def log_tail(self, num_bytes: int) -> str:
        """Return the end of what the cell has printed."""
        size = os.fstat(self._log.fileno()).st_size
        first = max(0, size - num_bytes)
        return os.pread(self._log.fileno(), num_bytes, first).decode(errors="replace")

    def memory_bytes(self) -> int:
        """Return the memory of the cell and its descendants; pages that they share count once."""
        total = 0
        for process in tree(self.pid()):
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    def close(self) -> None:
        """Kill the cell, if it runs, and forget it."""
        self._status.close()
        self._messages.close()
        self._log.close()


class CellServer:
    """Starts cells, from any thread. The process starts with the first cell, and again if it has
    ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def start(self, work: Work, call: bytes) -> Cell:
        """Start a cell. call: pickled `(function, batch of items)`. Raises TestbedError."""
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the cell
        reader, writer = os.pipe()
        status, theirs = socket.socketpair()
        messages, ended = Connection(reader, writable=False), Connection(status.detach())
        request = {
            "warm": work.warm and f"{work.warm.__module__}:{work.warm.__qualname__}",
            "module": work.function.__module__,
            "reports": work.reports,
            "memory_bytes": work.memory_bytes,
        }
        with tempfile.TemporaryFile() as calls:
            calls.write(call)
            calls.flush()
            files = [calls.fileno(), log.fileno(), writer, theirs.fileno()]
            try:
                self._send(json.dumps(request).encode(), files)
            finally:
                os.close(writer)
                theirs.close()
        return Cell(messages, ended, log)

    def _send(self, request: bytes, files: Sequence[int]) -> None:
        with self._lock:
            for _ in range(2):  # an idle process may end just now
                if self._process is None or self._process.poll() is not None:
                    self._spawn()
                assert self._requests is not None
                try:
                    socket.send_fds(self._requests, [request], files)
                    return
                except OSError:
                    self.close()
        raise TestbedError("cannot start the process that starts cells; see the worker's log")

    def _spawn(self) -> None:
        self.close()
        # A packet is one request.
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={name: value for name, value in os.environ.items() if name != TRIMMED},
                start_new_session=True,
            )

    def close(self) -> None:
        """End the process and all its cells."""
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            self._process.wait()
        self._process = self._requests = None


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants, those that are left. pid 0: none."""
    if not pid:
        return []
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


class _Forks:
    """The process that forks. It has one thread, so that a fork is safe."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._status: dict[int, Connection] = {}  # by process
        self._warmed: set[str] = set()
        self._doomed: list[tuple[float, list[psutil.Process]]] = []
        self._busy_s = time.monotonic()

    def run(self) -> None:
        """Serve requests until the worker ends, or nothing is asked for `IDLE_S`."""
        while self._status or self._doomed or time.monotonic() < self._busy_s + IDLE_S:
            for key, _ in self._selector.select(timeout=1.0):
                if key.fileobj is self._requests:
                    if not self._take():
                        return
                elif key.data[0] == "process":
                    self._reap(key.data[1], key.fd)
                else:
                    self._kill(key.data[1])
            self._kill_doomed()

    def end(self) -> None:
        """Kill every cell, and wait for the descendants to end."""
        for pid in list(self._status):
            self._kill(pid)
        end_s = time.monotonic() + GRACE_S
        while self._doomed and time.monotonic() < end_s:
            self._kill_doomed()
            time.sleep(0.05)
        for _, processes in self._doomed:
            _kill(processes)

    def _take(self) -> bool:
        """Start the cell of one request. Return False if the worker has gone."""
        data, files, _, _ = socket.recv_fds(self._requests, 1 << 16, NUM_FILES)
        if not data:
            return False
        request = json.loads(data)
        self._warm(request)
        calls, log, messages, status = files
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_cell(parent, request, files)
        for descriptor in (calls, log, messages):
            os.close(descriptor)
        connection = Connection(status)
        self._status[pid] = connection
        # A pidfd becomes readable when its process ends; the worker never writes to a status.
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, ("process", pid))
        self._selector.register(status, selectors.EVENT_READ, ("status", pid))
        with contextlib.suppress(OSError):  # the worker has closed it
            connection.send_bytes(str(pid).encode())
        self._busy_s = time.monotonic()
        return True

    def _warm(self, request: dict[str, Any]) -> None:
        """Load what a cell needs, which may take half a minute, unless the worker ends."""
        signal.signal(signal.SIGALRM, lambda *_: self._leave_if_alone())
        signal.setitimer(signal.ITIMER_REAL, WATCH_S, WATCH_S)
        try:
            self._load(request)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _leave_if_alone(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if not self._requests.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                self.end()
                os._exit(1)

    def _load(self, request: dict[str, Any]) -> None:
        for name in filter(None, (request["module"], request["warm"])):
            if name in self._warmed:
                continue
            self._warmed.add(name)
            module, _, function = name.partition(":")
            try:
                found = importlib.import_module(module)
                if function:
                    getattr(found, function)()
            except Exception:  # the cell will report it
                traceback.print_exc()
            # Objects that exist now never become garbage: their pages stay shared between cells.
            gc.collect()
            gc.freeze()

    def _become_cell(self, parent: int, request: dict[str, Any], files: Sequence[int]) -> NoReturn:
        code = 1
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            calls, log, messages, status = files
            os.close(status)
            os.dup2(log, sys.stdout.fileno())
            os.dup2(log, sys.stderr.fileno())
            for number in IGNORED:
                signal.signal(number, signal.SIG_DFL)
            os.environ[MEMORY_VARIABLE] = f"{request['memory_bytes']}B"
            code = _call(calls, Connection(messages, readable=False), request["reports"])
        except BaseException:
            traceback.print_exc()
        finally:
            # Not sys.exit, which would run the parent's clean-up.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _kill(self, pid: int) -> None:
        """Kill a cell that nobody waits for, and its descendants if they do not follow."""
        connection = self._status.get(pid)
        if connection is None:
            return
        self._forget_status(connection)
        self._doomed.append((time.monotonic() + GRACE_S, tree(pid)[1:]))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def _forget_status(self, connection: Connection) -> None:
        with contextlib.suppress(KeyError, OSError, ValueError):
            self._selector.unregister(connection.fileno())
        connection.close()

    def _reap(self, pid: int, descriptor: int) -> None:
        """Collect a cell that has ended, end the rest of its group, and report its exit code."""
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        connection = self._status.pop(pid)
        with contextlib.suppress(OSError):  # the worker has closed it
            connection.send_bytes(str(code).encode())
        self._forget_status(connection)
        self._busy_s = time.monotonic()

    def _kill_doomed(self) -> None:
        kept = []
        for end_s, processes in self._doomed:
            alive = [process for process in processes if process.is_running()]
            if time.monotonic() > end_s:
                _kill(alive)
            elif alive:
                kept.append((end_s, alive))
        self._doomed = kept


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):  # psutil compares start times: never another's
            process.kill()


def _call(calls: int, messages: Connection, reports: bool) -> int:
    """Carry out the call in a file and send its result. Return the exit code."""

    def report(message: Any) -> None:
        messages.send_bytes(MESSAGE + json.dumps(message).encode())

    try:
        with os.fdopen(calls, "rb") as file:
            file.seek(0)
            function, items = pickle.load(file)
        results = [function(item, report) if reports else function(item) for item in items]
        messages.send_bytes(RESULT + pickle.dumps(results))
    except NetbenchError as error:
        messages.send_bytes(ERROR + pickle.dumps(error))
    return 0


def main() -> None:
    """Fork cells for the worker at the other end of a socket, `python -m netbench... FD`."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    forks = _Forks(socket.socket(fileno=int(sys.argv[1])))
    try:
        forks.run()
    finally:
        forks.end()


if __name__ == "__main__":
    main()
