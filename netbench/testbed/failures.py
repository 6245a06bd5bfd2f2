"""What went wrong with ranks, in one message: the cause, not those that only lost a peer by it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMED_RANKS = 8
"""Ranks that a message names; of more it says how many."""


OOM_KILL = b"ut of memory: Killed process"
"""In the kernel's log, of a machine and of a control group. Source: mm/oom_kill.c."""

LOG_RECORD_BYTES = 8192
"""At least the longest record of /dev/kmsg, which is read one by one. Source: linux/printk.h."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Complaint:
    """What ended rank `rank`. follows: it lost a connection, so somebody else was first."""

    rank: int
    what: str
    follows: bool = False


def complaint_of(rank: int, message: dict[str, Any] | None) -> Complaint | None:
    """What a message of a rank (None: its channel ended) complains of; None: of nothing."""
    if message is None:
        return Complaint(rank=rank, what="ended without a word")
    if message["event"] == "error":
        follows = bool(message.get("follows"))
        return Complaint(rank=rank, what=str(message["message"]), follows=follows)
    if message["event"] == "ended" and message["status"] != 0:
        return Complaint(rank=rank, what=describe_status(message["status"]))
    return None


def describe_status(status: int) -> str:
    """How a process ended, from its status as `subprocess` gives it: -9 is SIGKILL."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-status}"


def explain(
    complaints: Sequence[Complaint], name: Callable[[int], str], doing: str, num_oom_kills: int
) -> tuple[str, int]:
    """One message, who was first and why, and how many only followed; and the rank that was first.

    complaints: in the order in which they came, at least one; what a rank says first is its reason.
    name: of a rank, with its node. doing: what all were at. num_oom_kills: processes that the
    kernel ended for lack of memory since the ranks were started.
    """
    first: dict[int, Complaint] = {}
    for complaint in complaints:
        first.setdefault(complaint.rank, complaint)
    causes = [c for c in first.values() if not c.follows] or list(first.values())[:1]
    ranks_of: dict[str, list[int]] = {}
    for cause in causes:
        ranks_of.setdefault(cause.what, []).append(cause.rank)
    reasons = list(ranks_of)
    shown = [
        f"{name_ranks(sorted(ranks_of[what]), name)}: {what}" for what in reasons[:NAMED_RANKS]
    ]
    if rest := sum(len(ranks_of[what]) for what in reasons[NAMED_RANKS:]):
        shown.append(f"and {rest} more")
    killed = any("SIGKILL" in c.what or "without a word" in c.what for c in causes)
    memory = ""
    if killed and num_oom_kills > 0:  # a log may have lost its oldest
        memory = f" (out of memory: the kernel killed {num_oom_kills} since the ranks were started)"
    num_followers = len(first) - len(causes)
    who = "1 other" if num_followers == 1 else f"{num_followers} others"
    others = f"; {who} lost a connection by it" if num_followers else ""
    return f"{'; '.join(shown)}{memory}, in {doing}{others}", causes[0].rank


def name_ranks(ranks: Sequence[int], name: Callable[[int], str]) -> str:
    """Up to `NAMED_RANKS` of them, and how many more."""
    rest = f" and {len(ranks) - NAMED_RANKS} more" if len(ranks) > NAMED_RANKS else ""
    return ", ".join(name(rank) for rank in ranks[:NAMED_RANKS]) + rest


def count_oom_kills(vmstat: Path = Path("/proc/vmstat"), log: Path = Path("/dev/kmsg")) -> int:
    """Processes that this kernel has ended for lack of memory: ever, or as far as its log goes back
    where it does not count (the guest kernel)."""
    for line in vmstat.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == "oom_kill":
            return int(value)
    return sum(record.count(OOM_KILL) for record in _read_log(log))


def _read_log(path: Path) -> Iterator[bytes]:
    """The records of the kernel's log, oldest first; none where it may not be read."""
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        with suppress(BlockingIOError):  # no more for now
            while record := _read_record(log):
                yield record
    finally:
        os.close(log)


def _read_record(log: int) -> bytes:
    """The next one; a record that was overwritten meanwhile is one too. b"": the end of a file."""
    try:
        return os.read(log, LOG_RECORD_BYTES)
    except BrokenPipeError:
        return b"overwritten"
