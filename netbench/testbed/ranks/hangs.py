"""Detect ranks that do not answer and make no progress, and name the one to blame.

The evidence comes from the kernel that all ranks of a local testbed run on: bytes on its
interfaces, and state and processor time of processes. In virtual time computing takes no time, so
only bytes count there. A rank that computes for ever stops the virtual clock; only wall time can
detect that (`controller.STALL_S`).
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from netbench.testbed.ranks.failures import count_oom_kills, name_ranks

QUIET_S = 120.0
"""Time without traffic and computing after which ranks count as hung, by the session's clock. A TCP
connection with data to send retries at least as often (TCP_RTO_MAX)."""

BUSY_S = 600.0
"""The limit if ranks compute all the time but nothing is sent: real layers may take minutes."""

WATCH_S = 30.0
"""Interval of snapshots, by the session's clock. A snapshot takes no virtual time."""

QUIET_BYTES, QUIET_BYTES_PER_RANK = 2000, 300
"""Fewer bytes in `QUIET_S` count as none: a stuck connection sends one or two probes of 66 bytes. A
link of 1 kbit/s would carry 15,000."""

COMPUTING = 0.2
"""Fraction of a core above which a process computes. Waiting ranks poll, every 10 ms in gloo."""

STOPPED = ("T", "t")
"""States of a process that was stopped by a signal or a debugger. Source: proc(5)."""

PID_BITS = 22
"""Process IDs of Linux are below 2^22. Source: PID_MAX_LIMIT of linux/threads.h."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


def process_number(kernel: int, pid: int) -> int:
    """Return a process ID that differs between kernels; that of kernel 0 is the process ID."""
    return kernel << PID_BITS | pid


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process. state: a letter of proc(5). cpu_s: processor time used so far, seconds."""

    session: int
    state: str
    cpu_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """Snapshot of the kernels that ranks run on.

    at_s: CLOCK_MONOTONIC, seconds. num_bytes: sent between nodes so far. processes: by
    `process_number`, as their sessions are. num_oom_kills: processes killed so far for lack of
    memory.
    """

    at_s: float
    num_bytes: int
    processes: Mapping[int, Process]
    num_oom_kills: int = 0


def read_bytes(path: Path = PROC / "net/dev") -> int:
    """Count bytes received on all interfaces of this network namespace, where all links end."""
    lines = path.read_text().splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[0]) for line in lines)


def read_processes(proc: Path = PROC) -> dict[int, Process]:
    """Return all processes of this kernel, or process namespace, by process ID."""
    found: dict[int, Process] = {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may contain anything.
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks = int(fields[11]) + int(fields[12])
        found[int(path.parent.name)] = Process(
            session=int(fields[3]), state=fields[0], cpu_s=ticks / TICKS_PER_S
        )
    return found


def read_activity() -> Activity:
    """Read the activity of this kernel."""
    return Activity(
        at_s=time.monotonic(),
        num_bytes=read_bytes(),
        processes=read_processes(),
        num_oom_kills=count_oom_kills(),
    )


class Watch:
    """Detects that awaited ranks hang, by comparing snapshots.

    pids: `process_number` of every rank; if it leads a session, its processes count too; 0 = not
    known yet. name: of a rank, with its node. allowed_s: how long ranks may sleep, as virtual
    devices do. blamed: the ranks that the last reason names.
    """

    def __init__(
        self,
        pids: Sequence[int],
        name: Callable[[int], str],
        allowed_s: float = 0.0,
        read: Callable[[], Activity] = read_activity,
    ) -> None:
        self._pids, self._name, self._allowed_s, self._read = tuple(pids), name, allowed_s, read
        self._sent = self._busy = self._previous = read()
        self.blamed: Sequence[int] = ()

    def check(self, missing: Sequence[int]) -> str:
        """Return why the `missing` ranks will never answer, or "" while they may."""
        now, previous = self._read(), self._previous
        self._previous = now
        fraction = (now.at_s - self._sent.at_s) / QUIET_S
        few = (QUIET_BYTES + QUIET_BYTES_PER_RANK * len(self._pids)) * fraction
        if now.num_bytes - self._sent.num_bytes > few:
            self._sent = self._busy = now
            return ""
        if any(self._core_fraction(rank, previous, now) > COMPUTING for rank in missing):
            self._busy = now
        silent_s, idle_s = now.at_s - self._sent.at_s, now.at_s - self._busy.at_s
        if idle_s < QUIET_S + self._allowed_s and silent_s < BUSY_S + self._allowed_s:
            return ""
        return f"nothing was sent for {silent_s:.0f} s; {self._blame(missing, now)}"

    def _blame(self, missing: Sequence[int], now: Activity) -> str:
        """Name the ranks that the others wait for, as far as the kernel knows."""
        stopped = [r for r in missing if any(p.state in STOPPED for p in self._of(r, now))]
        busy = [r for r in missing if self._core_fraction(r, self._sent, now) > COMPUTING]
        what = "all awaited ranks are waiting themselves"
        if stopped or busy:
            what = "stopped, by a signal or a debugger" if stopped else "computing all the time"
        self.blamed = stopped or busy or missing
        return f"{what}: {name_ranks(self.blamed, self._name)}"

    def _core_fraction(self, rank: int, start: Activity, end: Activity) -> float:
        used_s = sum(p.cpu_s for p in self._of(rank, end))
        used_s -= sum(p.cpu_s for p in self._of(rank, start))
        return used_s / max(end.at_s - start.at_s, 1.0)

    def _of(self, rank: int, activity: Activity) -> list[Process]:
        pid = self._pids[rank]
        if not pid:  # not known yet; 0 is the session of the kernel's own threads
            return []
        return [p for found, p in activity.processes.items() if pid in (found, p.session)]
