"""Shape an interface, break something, and restore it: run by `test_agent_in_namespace` as root.

`agent_in_namespace.py AGENT SCENARIO` has a network, /run and /dev/shm of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STATE, MIRROR = Path("/run/netbench"), Path("/dev/shm/netbench")
HTB = "qdisc add dev eth0 root handle 6e62: htb default 0\n"
PATIENCE_S = 60.0


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def ask(operation: str, agent: str | Path = sys.argv[1], **fields: Any) -> Any:
    """Call the agent as the controller does, and return its answer."""
    owner = {"name": "a@b", "pid": 1, "session": "s", "runs": []}
    request = json.dumps({"owner": owner, "interface": "eth0", **fields}) + "\n"
    argv = [sys.executable, "-I", "-S", str(agent), operation]
    done = subprocess.run(argv, input=request, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert "ok" in answer, answer
    return answer["ok"]


def shape(lease_s: float) -> dict[str, Any]:
    """Replace a `pfifo` by HTB; return the record."""
    ask("arm", lease_s=lease_s)
    ask("apply", lease_s=lease_s, text=HTB, sysctls={}, max_segments=65535, replace=True)
    assert "htb 6e62: root" in root()
    found: dict[str, Any] = json.loads(next(STATE.glob("*.json")).read_text())
    return found


def root(interface: str = "eth0") -> str:
    return run("tc", "qdisc", "show", "dev", interface).splitlines()[0]


def renamed() -> str:
    """The timer finds it: `clear` is never called."""
    shape(lease_s=PATIENCE_S)
    ask("beat", lease_s=2.0)
    run("ip", "link", "set", "eth0", "down")
    run("ip", "link", "set", "eth0", "name", "lan0")
    run("ip", "link", "set", "lan0", "up")
    end = time.monotonic() + PATIENCE_S
    while STATE.exists() and time.monotonic() < end:
        time.sleep(0.1)
    return "lan0"


def await_idle(pid: int) -> None:
    """Wait until a process sleeps, with no signal to take."""
    end = time.monotonic() + PATIENCE_S
    while not is_idle(pid) and time.monotonic() < end:
        time.sleep(0.01)


def is_idle(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return status["State"].startswith("S") and int(status["ShdPnd"], 16) == 0


def lost() -> str:
    """Both copies of the record go; the timer writes them again while `clear` waits."""
    await_idle(shape(lease_s=PATIENCE_S)["deadman"]["pid"])
    for folder in (STATE, MIRROR):
        for path in folder.glob("*.json"):
            path.unlink()
    cleared = ask("clear", scope="owner")
    assert (cleared["cleared"], cleared["notes"]) == (True, []), cleared
    return "eth0"


def timer_killed() -> str:
    """Nothing is left but one whole copy; the agent that systemd would start restores it.

    The timer is stopped before the lease becomes short, so that it never ends the lease itself.
    """
    timer = shape(lease_s=PATIENCE_S)["deadman"]["pid"]
    await_idle(timer)  # stopped with the agent's lock, it would keep it
    os.kill(timer, signal.SIGSTOP)
    ask("beat", lease_s=0.5)
    os.kill(timer, signal.SIGKILL)
    os.truncate(next(STATE.glob("*.json")), 10)
    end = time.monotonic() + PATIENCE_S
    copy = next(STATE.glob("*.zip"))
    while not ask("guard", copy)["restored"] and time.monotonic() < end:
        time.sleep(0.1)
    return "eth0"


def main() -> None:
    for folder in ("/run", "/dev/shm"):
        run("mount", "-t", "tmpfs", "tmpfs", folder)
    run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "p0")
    run("ip", "link", "set", "eth0", "up")
    run(*["tc", "qdisc", "add", "dev", "eth0", "root", "handle", "7:", "pfifo", "limit", "77"])
    former = root()
    interface = {"renamed": renamed, "lost": lost, "timer_killed": timer_killed}[sys.argv[2]]()
    assert root(interface) == former, root(interface)
    assert not STATE.exists(), list(STATE.iterdir())
    assert not MIRROR.exists(), list(MIRROR.iterdir())
    print("as before")


if __name__ == "__main__":
    main()
