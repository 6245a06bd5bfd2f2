"""Two independent guards that restore an interface when its lease ends.

The dead-man timer is a process. It needs neither the connection that started it nor any file: it
remembers the record, and writes lost copies of it again. It is armed before anything is changed,
and ends only when the interface is as before.

Where systemd runs, a transient unit of it starts the armed copy of the agent every `GUARD_S`
seconds, which does the same without the process.
"""

from __future__ import annotations

import os
import select
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

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

WATCH_MS = 1000
"""Interval at which the child that deletes the agent looks for its parent, milliseconds."""

GUARD_S = 30
"""Interval at which systemd starts the second guard, seconds."""

GUARD = "netbench-guard"
SYSTEMD = Path("/run/systemd/system")
"""Folder that exists where systemd is the first process (sd_booted(3))."""


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
                wait_for_end_of_lease(record)
        finally:
            os._exit(0)  # never back into the caller's code, which continues in the parent
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as report:
        pid = report.readline().strip()
    if not pid:
        raise host.AgentError("the dead-man timer did not start")
    record["deadman"] = {"pid": int(pid), "start": start_time(int(pid))}


def remember(record: state.State) -> None:
    """Save the record, and have the timer read it at once."""
    state.save(record)
    if is_running(record):
        with suppress(ProcessLookupError):
            os.kill(record["deadman"]["pid"], signal.SIGUSR1)


def stop(record: state.State) -> None:
    if is_running(record) and record["deadman"]["pid"] != os.getpid():
        with suppress(ProcessLookupError):
            os.kill(record["deadman"]["pid"], signal.SIGKILL)


def _detach(keep: int) -> None:
    """Leave the terminal, the descriptors and the cgroup of the session; avoid the OOM killer."""
    os.chdir("/")
    for name in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
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


def wait_for_end_of_lease(record: state.State) -> None:
    """Return when the interface is as before, restored by this process or another.

    A lease without end is watched too, because it may be given one. On SIGTERM the interface is
    restored at once: nobody else would do it.
    """
    got = 0
    while True:
        try:
            found = state.find(record["ifindex"])
            record = found or record
            if record.get("deadman", {}).get("pid", os.getpid()) != os.getpid():
                return  # another timer does it
            is_due = got == signal.SIGTERM or state.expired(record)
            is_lost = found is None or not state.is_whole(record)
            if (is_due or is_lost) and end_lease(record, at_once=got == signal.SIGTERM):
                remove_agent()
                return
            left = state.left_s(record)
            wait_s = POLL_S if left is None else min(max(left, 0.0), POLL_S)
            if signalled := signal.sigtimedwait(_SIGNALS, wait_s):
                got = signalled.si_signo
        except Exception:  # whatever it is, nobody else will restore the interface
            time.sleep(RETRY_S)


def end_lease(record: state.State, at_once: bool = False) -> bool:
    """Restore the interface if the lease has ended or `at_once`, else write lost copies again.

    Return whether the interface is as before. Without a record and without netbench's qdisc
    somebody else has cleared it, perhaps not to the end.
    """
    with state.locked():
        found = state.find(record["ifindex"])
        record = found or record
        is_live = found is not None or host.is_shaped(record["interface"])
        if is_live and not at_once and not state.expired(record):
            state.save(record)
            return False
        restore(record)
        release(record)
        return True


def arm_guard(record: state.State) -> list[str]:
    """Keep a copy of the agent, and have systemd start it; return a note if systemd refuses."""
    copy, sent = state.path_of(record["ifindex"]).with_suffix(".zip"), Path(sys.argv[0])
    if sent.suffix == ".zip" and sent != copy:
        state.write(copy, sent.read_bytes())
    if not _has_systemd():
        return []
    every = [f"--on-active={GUARD_S}", f"--on-unit-active={GUARD_S}"]
    unit = [
        "--quiet",
        "--collect",
        f"--unit={GUARD}-{record['ifindex']}",
        "--timer-property=AccuracySec=1s",
    ]
    python = [sys.executable, "-I", "-S", str(copy), "guard"]
    status, _, stderr = host.run_tool(["systemd-run", *unit, *every, *python])
    if status == 0 or "already" in stderr:  # of an earlier lease
        return []
    return [f"there is only one guard, the timer process: systemd-run: {' '.join(stderr.split())}"]


def _has_systemd() -> bool:
    """Return whether systemd runs, and in this network namespace: then it can be a guard of it."""
    try:
        return SYSTEMD.is_dir() and host.namespace("1") == host.namespace()
    except OSError:  # a container may not look at the first process
        return False


def release(record: state.State) -> None:
    """Drop the record of a restored interface, and end both guards."""
    state.drop(record["ifindex"])
    if _has_systemd():
        with suppress(host.AgentError):
            host.run_tool(["systemctl", "stop", f"{GUARD}-{record['ifindex']}.timer"])
    stop(record)


def remove_agent() -> None:
    """Delete the agent's file and folder, which a controller that vanished has not deleted."""
    file = Path(sys.argv[0])
    if file.parent.name.startswith(FOLDER_PREFIX):
        with suppress(OSError):
            file.unlink(missing_ok=True)
            file.parent.rmdir()


def remove_agent_at_the_end() -> None:
    """Have a child delete the agent when stdin or this process ends.

    An operation may last longer than the connection, and its process be killed with it.
    """
    parent = os.getpid()
    if os.fork() == 0:
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for output in (1, 2):  # whoever reads them is to see the end of the parent
                os.dup2(nowhere, output)
            stdin = select.poll()
            stdin.register(0, 0)  # only its end
            while not stdin.poll(WATCH_MS) and os.getppid() == parent:
                pass
            remove_agent()
        finally:
            os._exit(0)


def sweep() -> list[str]:
    """Drop records of earlier boots; restore where a lease has ended. Return the interfaces."""
    swept = set()
    for path in state.paths("*.json"):
        record = state.read(path)
        if record is not None and record["boot_id"] != host.boot_id():
            with state.locked():
                path.unlink(missing_ok=True)
                path.with_suffix(".zip").unlink(missing_ok=True)
            swept.add(record["interface"])
    for record in state.records():
        with suppress(host.AgentError):  # the others are restored all the same
            if state.expired(record) and end_lease(record):
                swept.add(record["interface"])
    return sorted(swept)
