"""Which processes of a controller and its guests are alive."""

from __future__ import annotations

import subprocess
import time


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
    """What is alive of a controller and the sessions of its guests."""
    sessions = {controller, *guests}
    return [args for pid, _, session, args in processes() if sessions & {pid, session}]


def left_after_a_while(controller: int, guests: list[int], patience_s: float = 10.0) -> list[str]:
    """What is still alive when the kernel has had time to end what was killed: not at once."""
    deadline = time.monotonic() + patience_s
    while (left := leftovers(controller, guests)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
