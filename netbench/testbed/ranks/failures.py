"""Explain failures of ranks in one message: the cause, without secondary failures."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMED_RANKS = 8
"""Number of ranks that a message names; it counts the others."""


OOM_KILL = b"ut of memory: Killed process"
"""Part of the kernel's log message, for a machine and a control group. Source: mm/oom_kill.c."""

LOG_RECORD_BYTES = 8192
"""Upper bound of a record of /dev/kmsg, which returns one per read. Source: linux/printk.h."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Failure of rank `rank`. is_secondary: it lost a connection, so another rank failed first."""

    rank: int
    what: str
    is_secondary: bool = False


def failure_of(rank: int, message: dict[str, Any] | None) -> Failure | None:
    """Return the failure that a message reports, if any. message: None = the channel ended."""
    if message is None:
        return Failure(rank=rank, what="ended without a message")
    if message["event"] == "error":
        is_secondary = bool(message.get("follows"))
        return Failure(rank=rank, what=str(message["message"]), is_secondary=is_secondary)
    if message["event"] == "ended" and message["status"] != 0:
        return Failure(rank=rank, what=describe_status(message["status"]))
    return None


def describe_status(status: int) -> str:
    """Describe how a process ended. status: as in `subprocess`, so -9 is SIGKILL."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-status}"


def explain(
    failures: Sequence[Failure], name: Callable[[int], str], doing: str, num_oom_kills: int
) -> tuple[str, int]:
    """Return a message with the first failures and the number of secondary ones, and a first rank.

    failures: at least one, in order of arrival; the first of a rank is its reason. name: of a rank,
    with its node. doing: the step that failed. num_oom_kills: processes that the kernel killed for
    lack of memory since the ranks were started.
    """
    first: dict[int, Failure] = {}
    for failure in failures:
        first.setdefault(failure.rank, failure)
    causes = [c for c in first.values() if not c.is_secondary] or list(first.values())[:1]
    ranks_of: dict[str, list[int]] = {}
    for cause in causes:
        ranks_of.setdefault(cause.what, []).append(cause.rank)
    reasons = list(ranks_of)
    shown = [
        f"{name_ranks(sorted(ranks_of[what]), name)}: {what}" for what in reasons[:NAMED_RANKS]
    ]
    if rest := sum(len(ranks_of[what]) for what in reasons[NAMED_RANKS:]):
        shown.append(f"and {rest} more")
    killed = any("SIGKILL" in c.what or "without a message" in c.what for c in causes)
    memory = ""
    if killed and num_oom_kills > 0:  # a log may have lost its oldest
        memory = f" (out of memory: the kernel killed {num_oom_kills} since the ranks were started)"
    num_secondary = len(first) - len(causes)
    who = "1 other" if num_secondary == 1 else f"{num_secondary} others"
    others = f"; {who} then lost a connection" if num_secondary else ""
    return f"{'; '.join(shown)}{memory}, in {doing}{others}", causes[0].rank


def name_ranks(ranks: Sequence[int], name: Callable[[int], str]) -> str:
    """Name up to `NAMED_RANKS` ranks and count the others."""
    rest = f" and {len(ranks) - NAMED_RANKS} more" if len(ranks) > NAMED_RANKS else ""
    return ", ".join(name(rank) for rank in ranks[:NAMED_RANKS]) + rest


def count_oom_kills(vmstat: Path = Path("/proc/vmstat"), log: Path = Path("/dev/kmsg")) -> int:
    """Count processes that this kernel has killed for lack of memory since it booted.

    A kernel without that counter (the guest) is asked for its log, which may have lost old records.
    """
    for line in vmstat.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == "oom_kill":
            return int(value)
    return sum(record.count(OOM_KILL) for record in _read_log(log))


def _read_log(path: Path) -> Iterator[bytes]:
    """Yield the records of the kernel's log, oldest first; none if it cannot be read."""
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    record = b"none yet"
    try:
        while record:  # b"" is the end of a file
            with suppress(BrokenPipeError):  # it was overwritten meanwhile
                record = os.read(log, LOG_RECORD_BYTES)
                yield record
    except BlockingIOError:  # no more for now
        return
    finally:
        os.close(log)
