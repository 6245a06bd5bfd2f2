"""What went wrong with ranks, in one message: the cause, not those that only lost a peer by it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMED_RANKS = 8
"""Ranks that a message names; of more it says how many."""


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
    shown = [f"{name(c.rank)}: {c.what}" for c in causes[:NAMED_RANKS]]
    if len(causes) > NAMED_RANKS:
        shown.append(f"and {len(causes) - NAMED_RANKS} more")
    killed = any("SIGKILL" in c.what or "without a word" in c.what for c in causes)
    memory = ""
    if killed and num_oom_kills:
        memory = f" (out of memory: the kernel killed {num_oom_kills} since the ranks were started)"
    num_followers = len(first) - len(causes)
    others = f"; {num_followers} others lost a connection by it" if num_followers else ""
    return f"{'; '.join(shown)}{memory}, in {doing}{others}", causes[0].rank


def count_oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Processes that this kernel has ever ended for lack of memory."""
    for line in vmstat.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == "oom_kill":
            return int(value)
    return 0
