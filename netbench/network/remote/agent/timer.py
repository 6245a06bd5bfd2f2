"""The dead-man timer: a process that restores an interface when its lease ends.

It needs neither the connection that started it nor the agent's file. It is armed before anything
is changed, and ends only when the interface is as before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from netbench.network.remote.agent import host, state
from netbench.network.remote.agent.messages import FOLDER_PREFIX
from netbench.network.remote.agent.restore import restore

POLL_S = 1.0
"""Longest interval at which the timer checks for a renewed lease, seconds."""

RETRY_S = 5.0
"""Pause after an interface could not be restored, seconds."""


def start_time(pid: int) -> str:
    """Return when a process started, in ticks; "" for one that has ended.

    The start time distinguishes a process from a later one with its pid. A process that has ended
    may stay listed, since the first process of a container often reaps nobody.
    """
    try:
        status, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if status in "ZX" else fields[18]


def is_running(record: state.State) -> bool:
    deadman = record.get("deadman")
    return deadman is not None and start_time(deadman["pid"]) == deadman["start"]


def ensure_running(record: state.State) -> None:
    """Save the record, with a running timer in it."""
    if not is_running(record):
        record.pop("deadman", None)
        state.save(record)
        start(record)
    state.save(record)


def start(record: state.State) -> None:
    """Start the timer process and note it in `record`."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _detach(keep=write_end)
                os.write(write_end, f"{os.getpid()}\n".encode())
                os.close(write_end)
                wait_for_end_of_lease(record["interface"])
        finally:
            os._exit(0)  # never back into the caller's code, which continues in the parent
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as report:
        pid = report.readline().strip()
    if not pid:
        raise host.AgentError("the dead-man timer did not start")
    record["deadman"] = {"pid": int(pid), "start": start_time(int(pid))}


def stop(record: state.State) -> None:
    if is_running(record) and record["deadman"]["pid"] != os.getpid():
        with suppress(ProcessLookupError):
            os.kill(record["deadman"]["pid"], signal.SIGKILL)


def _detach(keep: int) -> None:
    """Leave the terminal, the descriptors and the cgroup of the session; avoid the OOM killer."""
    os.chdir("/")
    for name in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number != keep:
            with suppress(OSError):
                os.close(number)
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)
    for file, text in (
        ("/proc/self/oom_score_adj", "-1000"),
        # systemd-logind may end every process of a session, which it finds by cgroup.
        ("/sys/fs/cgroup/cgroup.procs", "0"),
        ("/sys/fs/cgroup/systemd/cgroup.procs", "0"),
        ("/proc/self/comm", "netbench-timer"),
    ):
        with suppress(OSError):
            Path(file).write_text(text)


def wait_for_end_of_lease(interface: str) -> None:
    """Return when the interface is as before, restored by this process or another.

    A lease without end is watched too, because it may be given one. On SIGTERM the interface is
    restored at once: nobody else would do it.
    """
    own = {"pid": os.getpid()}
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    while True:
        try:
            record = state.load(interface)
            if record is None or record.get("deadman", own)["pid"] != own["pid"]:
                return  # nothing to restore, or another timer does
            if signals or state.expired(record):
                end_lease(interface, at_once=bool(signals))
            else:
                left = state.left_s(record)
                time.sleep(POLL_S if left is None else min(max(left, 0.0), POLL_S))
        except Exception:  # whatever it is, nobody else will restore the interface
            time.sleep(RETRY_S)


def end_lease(interface: str, at_once: bool) -> None:
    """Restore the interface and remove the agent, if the lease has ended or `at_once`."""
    with state.locked(interface):
        record = state.load(interface)
        if record is not None and (at_once or state.expired(record)):
            restore(record)
            state.drop(interface)
            _remove_agent()


def _remove_agent() -> None:
    """Delete the agent's file and folder, which a controller that vanished has not deleted."""
    file = Path(sys.argv[0])
    if file.parent.name.startswith(FOLDER_PREFIX):
        with suppress(OSError):
            file.unlink()
            file.parent.rmdir()


def sweep() -> list[str]:
    """Drop records of earlier boots; restore interfaces whose timer died. Return their names."""
    swept = []
    for path in sorted(state.STATE.glob("*.json")) if state.STATE.is_dir() else []:
        interface, _, inode = path.stem.rpartition("@")
        try:
            recorded = json.loads(path.read_text())["boot_id"]
        except (OSError, ValueError, KeyError):
            continue
        if recorded != host.boot_id():
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
            swept.append(interface)
        elif inode == str(host.namespace()):
            with state.locked(interface):
                record = state.load(interface)
                if record is not None and state.expired(record) and not is_running(record):
                    restore(record)
                    path.unlink(missing_ok=True)
                    swept.append(interface)
    return swept
