"""Processes: whether they have ended, and a Dask cluster started by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil
from distributed import Client

END_S = 30.0
"""Time within which everything of a dead client, scheduler or worker has to be gone, seconds."""

START_S = 300.0
"""Deadline for something to start on a busy machine, seconds."""


def wait_until(holds: Callable[[], bool], limit_s: float = START_S) -> bool:
    """Return whether a condition holds within `limit_s`."""
    end_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


def living(pids: Iterable[int]) -> list[int]:
    """Return the processes that have not ended."""
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def all_end(pids: Iterable[int], limit_s: float = END_S) -> bool:
    """Return whether all these processes end within `limit_s`."""
    numbers = list(pids)
    return wait_until(lambda: not living(numbers), limit_s)


class HandMade:
    """A scheduler, and workers with one thread each, as a person would start them."""

    def __init__(self, folder: Path, num_workers: int) -> None:
        self._file = folder / "scheduler.json"
        options = ["--host", "127.0.0.1", "--no-dashboard"]
        self.scheduler = self._start("scheduler", "--port", "0", *options)
        self.workers = [
            self._start("worker", "--no-nanny", "--nthreads", "1", *options)
            for _ in range(num_workers)
        ]

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *words, "--scheduler-file", str(self._file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def address(self) -> str:
        """Return the address of the scheduler."""
        return str(json.loads(self._file.read_text())["address"])

    def _is_announced(self) -> bool:
        """Return whether the scheduler has written its file, to the end."""
        with suppress(FileNotFoundError, json.JSONDecodeError):
            return "address" in json.loads(self._file.read_text())
        return False

    def wait(self) -> None:
        """Wait until all workers are connected."""
        assert wait_until(self._is_announced)
        with Client(self.address, timeout=START_S, set_as_default=False) as client:
            client.wait_for_workers(len(self.workers), timeout=START_S)

    def pids(self) -> list[int]:
        """Return all processes of the cluster, with their descendants."""
        return [
            process.pid
            for root in (self.scheduler, *self.workers)
            if living([root.pid])
            for process in [psutil.Process(root.pid), *_descendants(root.pid)]
        ]

    def close(self) -> None:
        """Kill what is left."""
        for root in (self.scheduler, *self.workers):
            for process in _descendants(root.pid):
                process.kill()
            if root.poll() is None:
                os.killpg(root.pid, signal.SIGKILL)
            root.wait()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []
