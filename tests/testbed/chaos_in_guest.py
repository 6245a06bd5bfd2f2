"""Fleet of two machines whose agents and timers are killed: run in a guest as root, /run private.

`python -m tests.testbed.chaos_in_guest SPECS` plays a JSON list of faults and prints a line of JSON
for each: what is left once every lease has ended. Expects virtual time. `benchmarks.chaos` starts
it. A fault is one of

    {"kind": "count", "phase"}                        the agent's calls of tc, per machine
    {"kind": "crash", "phase", "node", "call", "how"} its n-th call of tc is its last
    {"kind": "timer", "after_s", "nodes"}             their timers and the controller are killed

phase: apply or clear. how: the agent ends before that call, or after, or with all processes of its
machine that a login started.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from netbench.network.remote.deployer import FOLDERS
from netbench.network.remote.fleet import ARM_LEASE_S
from tests.testbed.safety_in_guest import SCRATCH, SLACK_S, TWO, Lab
from tests.testbed.safety_machines import NAMES, STATE, TIMER, is_sshd

MIRROR = "/dev/shm/netbench"
"""Second folder of state of some versions."""

LEASE_S = 90.0
GUARD_S = 30.0
"""Interval at which a second guard looks, which may find a lease ended that late."""

STAND_INS = {
    "systemd-run": """\
while case $1 in --*) true ;; *) false ;; esac; do
  case $1 in --unit=*) unit=${1#--unit=} ;; --on-active=*) every=${1#--on-active=} ;; esac
  shift
done
pid=/run/units/$(stat -Lc %i /proc/self/ns/net)-$unit
[ ! -e "$pid" ] || { echo "$unit was already loaded" >&2; exit 1; }
setsid systemd-unit "$pid" "$every" "$@" < /dev/null > /dev/null 2>&1 &
while [ ! -e "$pid" ]; do sleep 0.01; done
""",
    "systemd-unit": """\
pid=$1 every=$2
shift 2
while true; do
  sleep "$every" &
  echo $$ $! > "$pid"
  wait $!
  echo $$ > "$pid"
  "$@"
done
""",
    "systemctl": """\
pid=/run/units/$(stat -Lc %i /proc/self/ns/net)-${2%.timer}
running=$(cat "$pid") && rm "$pid" && kill -9 $running
""",
}
"""Transient timers of systemd, in the few words in which a guard uses them: the guest has none."""

END_SESSIONS = """\
for folder in /proc/[0-9]*; do \
case $(cat $folder/comm) in sshd*|sleep|netbench-timer|systemd-unit|tc) ;; \
*) kill -9 ${folder#/proc/} ;; esac; done; exit"""
ACTIONS = {
    "before": "kill -9 $PPID; exit",
    "after": 'real "$@"; kill -9 $PPID; exit',
    "sessions": END_SESSIONS,
}
IS_CALL = (
    "case $(cat /proc/$PPID/comm) in python*) "
    "n=$(($(cat {count} 2>/dev/null || echo 0) + 1)); echo $n > {count}; [ $n = {call} ] ;; "
    "*) false ;; esac"
)
"""Shell condition: the agent calls tc for the n-th time. The timer's calls do not count."""


def stand_in_for_systemd() -> None:
    """Let every machine have `systemd-run`. Of the files of the host none is changed."""
    folder = Path("/usr/local/sbin")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    for name, script in STAND_INS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}")
        (folder / name).chmod(0o755)
    for path in ("/run/systemd/system", "/run/units"):
        Path(path).mkdir(parents=True)


def counting(lab: Lab, stack: ExitStack, node: int, call: int, action: str) -> Path:
    """Count the agent's calls of tc on a machine; do `action` at the n-th. Return the counter."""
    count = SCRATCH / f"calls{node}"
    count.unlink(missing_ok=True)
    when = IS_CALL.format(count=count, call=call)
    stack.enter_context(lab.machines.wrapped_tc(node, "*", action, when))
    return count


def carry_out(lab: Lab, phase: str) -> int:
    """Apply with a lease, or clear. Return the exit status."""
    command = lab.apply("--lease", f"{LEASE_S:g}s") if phase == "apply" else lab.netbench("clear")
    return command.end()


def count_calls(lab: Lab, fault: dict[str, Any]) -> dict[str, Any]:
    """Carry out a phase without a fault."""
    with ExitStack() as stack:
        if fault["phase"] == "clear":
            carry_out(lab, "apply")
        counters = [counting(lab, stack, node, 0, "true") for node in TWO]
        status = carry_out(lab, fault["phase"])
        calls = [int(counter.read_text()) for counter in counters]
    if fault["phase"] == "apply":
        carry_out(lab, "clear")
    return {"status": status, "calls": calls}


def crash(lab: Lab, fault: dict[str, Any]) -> dict[str, Any]:
    """An agent ends at a call of tc; nobody comes back."""
    with ExitStack() as stack:
        if fault["phase"] == "clear":
            carry_out(lab, "apply")
        counter = counting(lab, stack, fault["node"], fault["call"], ACTIONS[fault["how"]])
        status = carry_out(lab, fault["phase"])
        reached = int(counter.read_text()) >= fault["call"]
    time.sleep(LEASE_S + GUARD_S + SLACK_S)
    return {"status": status, "reached": reached, **left(lab)}


def kill_timers(lab: Lab, fault: dict[str, Any]) -> dict[str, Any]:
    """Timers and the controller of a network end at once; nobody comes back."""
    controller = lab.hold()
    time.sleep(fault["after_s"])
    for node in fault["nodes"]:
        lab.machines.signal(node, signal.SIGKILL, lambda name: name == TIMER)
    controller.kill()
    time.sleep(ARM_LEASE_S + GUARD_S + SLACK_S)
    return left(lab)


def left(lab: Lab) -> dict[str, Any]:
    """Return processes and files that are left, and machines that are not as they were."""
    processes, files, shaped = [], [], []
    for node in TWO:
        root, found = lab.machines.root(node), lab.machines.snapshot(node)
        names = lab.machines.processes(node).values()
        processes += [f"{NAMES[node]}: {name}" for name in names if not is_sshd(name)]
        paths = [path for folder in FOLDERS for path in root.glob(f"{folder[1:]}/netbench*")]
        for folder in (STATE, MIRROR):
            with suppress(FileNotFoundError):
                paths += (root / folder[1:]).iterdir()
        files += [f"{NAMES[node]}: {path.relative_to(root)}" for path in paths]
        former = lab.before[node]
        other = [key for key in former if key != "left behind" and found[key] != former[key]]
        shaped += [f"{NAMES[node]}: {', '.join(other)}"] if other else []
    return {"processes": processes, "files": files, "shaped": shaped}


PLAYS = {"count": count_calls, "crash": crash, "timer": kill_timers}


def main() -> int:
    """Play the faults of a file."""
    stand_in_for_systemd()
    lab = Lab()
    for fault in json.loads(Path(sys.argv[1]).read_text()):
        try:
            found = PLAYS[fault["kind"]](lab, fault)
        except Exception:
            found = {"error": traceback.format_exc()}
        print(json.dumps({"fault": fault, "found": found}), flush=True)
        if any(found.get(key) for key in ("error", "processes", "files", "shaped")):
            lab.repair()
    return 0


if __name__ == "__main__":
    sys.exit(main())
