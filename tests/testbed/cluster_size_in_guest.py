"""A run of scripts on many machines, each with `MaxStartups 3`: run in a guest, as root.

`python -m tests.testbed.cluster_size_in_guest COUNT FOLDER` prints a line of JSON: what was not as
it must be, and the seconds until all node servers were ready, by the clock of this process and by
that of the host's file system, which has FOLDER. Expects /run private.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from netbench.commands.run.observer import STEPS
from netbench.records import read_run
from tests.testbed.cluster_in_guest import REPORTS, SCRIPT
from tests.testbed.safety_controllers import Controller, host_s
from tests.testbed.safety_in_guest import SCENARIO, SCRATCH, expect, said
from tests.testbed.safety_machines import Machines

BUSY_S = 2.0
"""Time for which strangers keep one machine from taking more logins."""


def occupy(address: str) -> None:
    """Begin logins until sshd drops one; give up after a while."""
    made: list[socket.socket] = []
    os.register_at_fork(after_in_child=partial(close_all, made))  # a controller inherits nothing
    while not made or made[-1].recv(4) == b"SSH-":
        made.append(socket.create_connection((address, 22)))
    threading.Timer(BUSY_S, close_all, [made]).start()


def close_all(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def run(machines: Machines, count: int, folder: str) -> Iterator[str]:
    """Yield problems; the last line is the time."""
    (SCRATCH / "many.yaml").write_text(SCENARIO.format(name="many", half=count // 2))
    SCRIPT.write_text(REPORTS.format(body="pass"))
    results, inventory = SCRATCH / "results", str(machines.inventory(range(count)))
    before = [machines.snapshot(node) for node in range(count)]
    occupy(machines.hosts[count - 1].address)
    words = ["run", str(SCRATCH / "many.yaml"), "--inventory", inventory, "--replace"]
    what = ["--command", f"{sys.executable} -S {SCRIPT}", "--iterations", "1"]
    began_s = time.monotonic(), host_s(folder)
    controller = Controller(
        Path(folder) / "output", "alpha", *words, *what, "--results", str(results)
    )
    controller.await_at_once(STEPS["tune"])
    ready_s = time.monotonic() - began_s[0], host_s(folder) - began_s[1]
    yield from expect(controller.end(), 0, f"status of {controller.output}")
    yield from said(controller, f"hosts: nothing is left on {count} of {count} hosts")
    for path in results.iterdir():
        times = [record.iteration_s for record in read_run(path).records]
        yield from expect(times, [2.0 + (count - 1) / 10] * 2, "iteration times")
    time.sleep(1.0)
    changed = [node for node in range(count) if machines.snapshot(node) != before[node]]
    yield from expect(changed, [], "machines that are not as they were")
    print(json.dumps({"hosts": count, "own_s": ready_s[0], "host_s": ready_s[1]}), flush=True)


def main(count: int, folder: str) -> None:
    problems = [*run(Machines(SCRATCH, count), count, folder)]
    print(json.dumps({"problems": problems}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
