"""Whether ranks that do not answer still do anything, and which of them is to blame.

Seen from the kernel that all ranks of a local testbed run on: bytes on its interfaces, and the
state and processor time of processes. In virtual time computing takes no time, so there it is the
bytes alone, and a rank that computes for ever stops the clock: only wall time finds that
(`local.STALL_S`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from netbench.testbed.failures import name_ranks

QUIET_S = 120.0
"""After so long without bytes or computing ranks are taken for hung, by the session's clock. A TCP
connection that still has something to send tries at least as often (TCP_RTO_MAX)."""

BUSY_S = 600.0
"""The same where some compute all the time but nothing is sent: real layers may take minutes."""

WATCH_S = 30.0
"""Between two looks, by the session's clock. A look takes no virtual time."""

QUIET_BYTES, QUIET_BYTES_PER_RANK = 2000, 300
"""Fewer bytes in `QUIET_S` are nothing: one or two probes of 66 bytes with their answers per
connection that is stuck. A link of 1 kbit/s would carry 15,000."""

COMPUTING = 0.2
"""Share of a core above which a process computes; those who wait only poll, every 10 ms in gloo."""

STOPPED = ("T", "t")
"""States of a process that was stopped by a signal or a debugger. Source: proc(5)."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """state: a letter of proc(5). cpu_s: processor time it has used, seconds."""

    session: int
    state: str
    cpu_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """at_s: CLOCK_MONOTONIC. num_bytes: received on all interfaces of this namespace, in all."""

    at_s: float
    num_bytes: int
    processes: Mapping[int, Process]


def read_bytes(path: Path = PROC / "net/dev") -> int:
    """Bytes received on all interfaces of this network namespace; a node's link ends in it."""
    lines = path.read_text().splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[0]) for line in lines)


def read_processes(proc: Path = PROC) -> dict[int, Process]:
    """All processes of this kernel, or process namespace, by id."""
    found: dict[int, Process] = {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may hold anything.
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks = int(fields[11]) + int(fields[12])
        found[int(path.parent.name)] = Process(
            session=int(fields[3]), state=fields[0], cpu_s=ticks / TICKS_PER_S
        )
    return found


def read_sample() -> Sample:
    """What goes on now."""
    return Sample(at_s=time.monotonic(), num_bytes=read_bytes(), processes=read_processes())


class Watch:
    """Looks now and then at ranks that are waited for; says when they hang, and who.

    pids: process of every rank, and of all in its session where it leads one; 0: not known yet.
    name: of a rank, with its node. allowed_s: for how long ranks may sleep: virtual devices do
    while they compute.
    """

    def __init__(
        self,
        pids: Sequence[int],
        name: Callable[[int], str],
        allowed_s: float = 0.0,
        read: Callable[[], Sample] = read_sample,
    ) -> None:
        self._pids, self._name, self._allowed_s, self._read = tuple(pids), name, allowed_s, read
        self._sent = self._busy = self._previous = read()

    def look(self, missing: Sequence[int]) -> str:
        """Why `missing`, who have not answered, never will; "" while they may."""
        now, previous = self._read(), self._previous
        self._previous = now
        share = (now.at_s - self._sent.at_s) / QUIET_S
        few = (QUIET_BYTES + QUIET_BYTES_PER_RANK * len(self._pids)) * share
        if now.num_bytes - self._sent.num_bytes > few:
            self._sent = self._busy = now
            return ""
        if any(self._share_of_core(rank, previous, now) > COMPUTING for rank in missing):
            self._busy = now
        silent_s, idle_s = now.at_s - self._sent.at_s, now.at_s - self._busy.at_s
        if idle_s < QUIET_S + self._allowed_s and silent_s < BUSY_S + self._allowed_s:
            return ""
        return f"nothing was sent for {silent_s:.0f} s; {self._blame(missing, now)}"

    def _blame(self, missing: Sequence[int], now: Sample) -> str:
        """The ranks that others wait for, as far as the kernel knows."""
        stopped = [r for r in missing if any(p.state in STOPPED for p in self._of(r, now))]
        if stopped:
            return f"stopped, by a signal or a debugger: {self._names(stopped)}"
        busy = [r for r in missing if self._share_of_core(r, self._sent, now) > COMPUTING]
        if busy:
            return f"computing all the time: {self._names(busy)}"
        return f"all that are waited for wait themselves: {self._names(missing)}"

    def _names(self, ranks: Sequence[int]) -> str:
        return name_ranks(ranks, self._name)

    def _share_of_core(self, rank: int, start: Sample, end: Sample) -> float:
        used_s = sum(p.cpu_s for p in self._of(rank, end))
        used_s -= sum(p.cpu_s for p in self._of(rank, start))
        return used_s / max(end.at_s - start.at_s, 1.0)

    def _of(self, rank: int, sample: Sample) -> list[Process]:
        pid = self._pids[rank]
        if not pid:  # not known yet; 0 is the session of the kernel's own threads
            return []
        return [p for found, p in sample.processes.items() if pid in (found, p.session)]
