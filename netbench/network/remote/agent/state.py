"""Record of a shaped interface: who has it, until when, and what it had before.

Two files per interface and network namespace, on two file systems, and the timer's memory. Either
copy that is whole will do. Keys:

    checksum        CRC-32 of the other keys
    interface       the name that the interface has now
    armed_as        the name that it had when it was armed
    ifindex, boot_id
    owner, held, applied, since_s    as in `messages.Lease`
    lease_end_s     by `host.now_s`; null for a lease without end
    before          owner, held, since_s and lease_end_s of a network that was there when the
                    interface was armed
    former          qdiscs and gso_max_segs before the first change
    replaced        `tc -batch` text that restores a foreign root qdisc, or ""
    segments        gso_max_segs as set by netbench, or null
    sysctls         name -> {former, set}
    division        nodes that were made of this host, see `division`; missing if there are none
    deadman         pid and start time of the timer process
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from netbench.network.remote.agent import host
from netbench.network.remote.agent.host import AgentError
from netbench.network.remote.agent.messages import STATE_FOLDER, Lease, Request

STATE = Path(STATE_FOLDER)

MIRROR = Path("/dev/shm/netbench")
"""Folder of the second copies."""

LOCK_S = 10.0
"""Longest wait for another operation on this host, seconds."""

WRITTEN_AGAIN_S = 3.0
"""Time in which a timer writes a record again that was lost, seconds: it looks once a second."""

State = dict[str, Any]


def path_of(ifindex: int) -> Path:
    """Return the path of a record. Namespaces that share a file system share the folder."""
    return STATE / f"{ifindex}@{host.namespace()}.json"


def paths(pattern: str) -> list[Path]:
    """Return files of both folders. A folder of somebody else does not count."""
    found: list[Path] = []
    for folder in (STATE, MIRROR):
        if _is_own(folder):
            found += sorted(folder.glob(pattern))
    return found


def _is_own(folder: Path) -> bool:
    try:
        about = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def read(path: Path) -> State | None:
    """Return the record in a file; None if it is not whole."""
    try:
        record: State = json.loads(path.read_text())
        return record if record.pop("checksum") == _checksum(record) else None
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _checksum(record: State) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def records() -> list[State]:
    """Return the records of this boot and namespace, one per interface."""
    found: dict[str, State] = {}
    for path in paths(f"*@{host.namespace()}.json"):
        record = None if path.name in found else read(path)
        if record is not None and record["boot_id"] == host.boot_id():
            record["interface"] = host.ifname(record["ifindex"]) or record["interface"]
            found[path.name] = record
    return list(found.values())


def find(ifindex: int) -> State | None:
    return next((record for record in records() if record["ifindex"] == ifindex), None)


def load(interface: str) -> State | None:
    """Return the record of an interface; None for one that netbench has not changed.

    Its index counts, because it may have been renamed. One that has gone is found by its name.
    """
    if not re.fullmatch(r"[^-/\s][^/\s]{0,14}", interface) or interface in (".", ".."):
        raise AgentError(f"{interface!r} is not the name of an interface")
    index = host.ifindex(interface)
    found = records()
    same = [record for record in found if record["ifindex"] == index]
    gone = [
        record
        for record in found
        if record["armed_as"] == interface
        and (index is None or host.ifname(record["ifindex"]) is None)
    ]
    return next(iter(same + gone), None)


def recorded(interface: str) -> State | None:
    """Return the record like `load`; wait for the timer if that of a shaped interface is lost.

    Do not call this inside `locked`, which the timer needs.
    """
    end = time.monotonic() + WRITTEN_AGAIN_S
    while (record := load(interface)) is None and host.is_shaped(interface):
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return record


def is_whole(record: State) -> bool:
    """Return whether both copies of a record can be read."""
    return len([path for path in paths(path_of(record["ifindex"]).name) if read(path)]) == 2


def save(record: State) -> None:
    """Replace both copies, each in one step. The second one may fail: its file system is full."""
    path = path_of(record["ifindex"])
    data = json.dumps({**record, "checksum": _checksum(record)})
    write(path, data.encode())
    with suppress(AgentError, OSError):
        MIRROR.mkdir(mode=0o700, exist_ok=True)
        if _is_own(MIRROR):
            write(MIRROR / path.name, data.encode())


def write(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise AgentError(f"cannot write {path}: {error.strerror}") from None


def drop(ifindex: int) -> None:
    """Remove the record, and the copy of the agent that was armed."""
    path = path_of(ifindex)
    for found in paths(f"{path.stem}.*"):
        found.unlink(missing_ok=True)


@contextmanager
def locked() -> Iterator[None]:
    """Allow one operation at a time in this namespace. Raises AgentError if another does not end.

    The last one to leave removes the folders, if no record is left.
    """
    lock = STATE / f"@{host.namespace()}.lock"
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
            raise AgentError(f"another operation has held this host for {LOCK_S:g} s")
        time.sleep(0.02)
    try:
        yield
    finally:
        if not paths(f"*@{host.namespace()}.json"):
            lock.unlink(missing_ok=True)
            for folder in (STATE, MIRROR):
                with suppress(OSError):  # not empty
                    folder.rmdir()
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
