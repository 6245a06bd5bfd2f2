"""Record of a shaped interface: who has it, until when, and what it had before.

One file per interface and network namespace, with these keys:

    interface, ifindex, boot_id
    owner, held, applied, since_s    as in `messages.Lease`
    lease_end_s     by `host.now_s`; null for a lease without end
    before          lease_end_s and held of a network that was there when the interface was armed
    former          qdiscs and gso_max_segs before the first change
    replaced        `tc -batch` text that restores a foreign root qdisc, or ""
    segments        gso_max_segs as set by netbench, or null
    sysctls         name -> {former, set}
    leaving         present while the sysctls are being restored
    deadman         pid and start time of the timer process
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from netbench.network.remote.agent import host
from netbench.network.remote.agent.host import AgentError
from netbench.network.remote.agent.messages import Lease, Request

STATE = Path("/run/netbench")
"""Folder of the records. It goes with the last of them, and on a reboot, as shaping does."""

LOCK_S = 10.0
"""Longest wait for another operation on the same interface, seconds."""

State = dict[str, Any]


def state_path(interface: str) -> Path:
    """Return the path of a record. Namespaces that share a file system share the folder."""
    if not re.fullmatch(r"[^-/\s][^/\s]{0,14}", interface) or interface in (".", ".."):
        raise AgentError(f"{interface!r} is not the name of an interface")
    return STATE / f"{interface}@{host.namespace()}.json"


def load(interface: str) -> State | None:
    """Return the record of this boot; None for an interface that netbench has not changed."""
    try:
        found: State = json.loads(state_path(interface).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise AgentError(f"{state_path(interface)} cannot be read ({error}); remove it") from None
    return found if found["boot_id"] == host.boot_id() else None


def save(record: State) -> None:
    """Replace the record in one step."""
    path = state_path(record["interface"])
    fresh = path.with_suffix(".new")
    try:
        fresh.write_text(json.dumps(record))
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise AgentError(f"cannot write {path}: {error.strerror}") from None


def drop(interface: str) -> None:
    state_path(interface).unlink(missing_ok=True)


@contextmanager
def locked(interface: str) -> Iterator[None]:
    """Allow one operation at a time per interface. Raises AgentError if another does not end."""
    lock = state_path(interface).with_suffix(".lock")
    end = time.monotonic() + LOCK_S
    while True:
        with suppress(FileExistsError):
            STATE.mkdir(mode=0o700, parents=True)
        with suppress(FileNotFoundError):  # another process has just removed the empty folder
            opened = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous owner of the lock may have removed the file that we opened.
                if os.fstat(opened).st_ino == lock.stat().st_ino:
                    break
            os.close(opened)
        if time.monotonic() > end:
            raise AgentError(f"another operation has held {interface} for {LOCK_S:g} s")
        time.sleep(0.02)
    try:
        yield
    finally:
        if not state_path(interface).exists():
            lock.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                STATE.rmdir()
        os.close(opened)


def left_s(record: State) -> float | None:
    """Return the seconds until the lease ends; None for a lease without end."""
    end: float | None = record["lease_end_s"]
    return None if end is None else end - host.now_s()


def expired(record: State) -> bool:
    left = left_s(record)
    return left is not None and left <= 0


def lease_of(record: State) -> dict[str, Any]:
    """Return the `messages.Lease` of an interface, as a dict."""
    told = {key: record[key] for key in ("owner", "held", "applied", "since_s")}
    return Lease(**told, left_s=left_s(record), who=who(record))._asdict()


def who(record: State) -> str:
    """Format as `a@b (pid 7) since 2026-01-31 12:00:00 UTC, until 12:00:30 UTC (in 12 s)`."""
    owner, left = record["owner"], left_s(record)
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(record["since_s"]))
    if left is None:
        until = "until it is cleared"
    else:
        end = time.strftime("%H:%M:%S UTC", time.gmtime(time.time() + left))
        until = f"until {end} (in {max(left, 0):.0f} s)"
    return f"{owner['name']} (pid {owner['pid']}) since {since}, {until}"


def caller_state(request: Request) -> State:
    """Return the record, if the lease is in force and belongs to the caller's session."""
    interface = request["interface"]
    record = load(interface)
    if record is None or expired(record):
        raise AgentError(
            f"{interface} is not armed: the lease has ended and the node has cleared itself, "
            "somebody has cleared it, or it was restarted"
        )
    if record["owner"]["session"] != request["owner"]["session"]:
        raise AgentError(f"{interface} was taken over by {who(record)}")
    return record
