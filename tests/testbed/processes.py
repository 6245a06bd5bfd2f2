"""Which processes of a controller and its guests are alive."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from netbench.testbed.guest.boot import HANG_S


def processes() -> list[tuple[int, int, int, str]]:
    """Process id, parent, session and arguments of all that live (a zombie does not)."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,sess=,stat=,args="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    fields = [line.split(None, 4) for line in listed.splitlines()]
    return [(int(f[0]), int(f[1]), int(f[2]), f[4]) for f in fields if not f[3].startswith("Z")]


def guests_of(controller: int) -> list[int]:
    """Its guests: each is the leader of a session of its own."""
    return [pid for pid, parent, _, args in processes() if parent == controller and "init=" in args]


def leftovers(controller: int, guests: list[int]) -> list[str]:
    """Return the live processes of a controller and of its guests' sessions."""
    sessions = {controller, *guests}
    return [args for pid, _, session, args in processes() if sessions & {pid, session}]


def left_after_a_while(controller: int, guests: list[int], patience_s: float = HANG_S) -> list[str]:
    """Return the processes that are alive once the kernel has had time to end the killed ones."""
    deadline = time.monotonic() + patience_s
    while (left := leftovers(controller, guests)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def processes_in(namespace: str) -> list[int]:
    """Processes in a named network namespace of this kernel."""
    wanted = Path("/run/netns", namespace).stat().st_ino
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if path.stat().st_ino == wanted:
                found.append(int(path.parents[1].name))
        except OSError:  # it has ended
            continue
    return sorted(found)
