"""Controllers for the safety tests: command lines of `netbench`, each a process of its own."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import paramiko  # noqa: F401 -- what a command needs is imported once, not by each

import netbench.commands.net.apply
import netbench.commands.net.clear  # noqa: F401
from netbench import cli
from tests.testbed.safety_machines import await_that

CLONE_NEWUTS = 0x04000000
"""linux/sched.h: a host name of its own."""

END_S = 200.0
"""A command that waits for every deadline it has, one after the other, has ended."""

IN_MODIFY = 2
"""sys/inotify.h: a file was written to."""

_LIBC = ctypes.CDLL(None)
_FORK = multiprocessing.get_context("fork")


def host_s(folder: str) -> float:
    """Return the time of the host, also in a guest whose own time is virtual, seconds."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        return Path(file.name).stat().st_mtime


class Controller:
    """`netbench ARGUMENTS`, on a host called `host`."""

    def __init__(self, output: Path, host: str, *arguments: str) -> None:
        self._output = output
        self._output.write_bytes(b"")
        self._process = _FORK.Process(target=_become, args=(output, host, arguments))
        self._began_s = time.monotonic()
        self._process.start()

    @property
    def output(self) -> str:
        """Return the output so far, both streams."""
        return self._output.read_text()

    def await_output(self, words: str) -> None:
        """Until it has printed them. TimeoutError when it does not, or has ended before."""
        await_that(lambda: words in self.output or not self._process.is_alive(), words)
        if words not in self.output:
            raise TimeoutError(f"`{words}` was not printed, but: {self.output}")

    def await_lines(self, count: int) -> None:
        """Wait until it has printed `count` lines, or has ended.

        No virtual time passes after the last.
        """
        self._watch(lambda: self.output.count("\n") >= count)

    def await_at_once(self, words: str) -> None:
        """Do as `await_output` does, but notice the words while others keep the processor busy.

        Whoever sleeps in virtual time wakes up only when nobody has work.
        """
        self._watch(lambda: words in self.output)
        self.await_output(words)

    def _watch(self, is_there: Callable[[], bool]) -> None:
        watch = _LIBC.inotify_init1(os.O_CLOEXEC)
        try:
            _LIBC.inotify_add_watch(watch, os.fsencode(self._output), IN_MODIFY)
            while not is_there() and self.is_running:
                if select.select([watch], [], [], 1.0)[0]:
                    os.read(watch, 1 << 16)
        finally:
            os.close(watch)

    @property
    def is_running(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Nothing is left to its own devices."""
        self._process.kill()
        self._process.join()

    def end(self) -> int:
        """Its exit status, when it has one."""
        self._process.join(END_S)
        if self._process.exitcode is None:
            self.kill()
            raise TimeoutError(f"it runs after {END_S:g} s: {self.output}")
        return self._process.exitcode

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._began_s


def _become(output: Path, host: str, arguments: tuple[str, ...]) -> None:
    if _LIBC.unshare(CLONE_NEWUTS):
        raise OSError("no host name of its own")
    socket.sethostname(host)
    os.environ["XDG_STATE_HOME"] = str(output.parent / host)
    with output.open("ab", buffering=0) as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = ["netbench", *arguments]
    cli.main()
