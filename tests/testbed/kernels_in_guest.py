"""Runs on machines with kernels of their own, of which one fails: the controller, in a guest.

`python -m tests.testbed.kernels_in_guest COUNT KEYS FAULT...` starts a run of scripts per fault,
passes on its lines, and says as JSON what is left on the machines afterwards. The faults are
injected by the one who reads this (`test_kernels`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from netbench.errors import NetbenchError
from netbench.testbed.cluster.code import RUN_VARIABLE
from netbench.testbed.ssh.inventory import load_inventory
from netbench.testbed.ssh.machines import Hosts
from tests.testbed.kernel_machine import INTERFACE, OWN, address

SCENARIO = """\
name: kernels
regions: [A]
nodes: [{{region: A, count: {count}, device: Box}}]
network: {{inside: {{one_way_delay: 5ms, bandwidth: 4Mbit}}}}
devices: {{Box: {{flops: 10TFLOPS, memory: 16GB, source: made up}}}}
workload: {{layers: 8, hidden: 512, heads: 8, sequence: 1024, batch: 16}}
"""

SCRIPT_NAME = "script.py"
"""Name of the script among the files of every machine."""

SCRIPT = """\
import json, os, subprocess, time
subprocess.run(["sh", "-c", "setsid sleep 86400 & exit"], check=True)
for index in range(int(os.environ["NETBENCH_ITERATIONS"])):
    time.sleep(1.0)
    print(json.dumps({"netbench": "iteration", "iteration_s": 1.0}), flush=True)
"""

LOOK = f"""\
import glob, json, os, subprocess
processes = []
for path in glob.glob("/proc/[0-9]*"):
    if int(path[6:]) in (os.getpid(), os.getppid()):
        continue
    try:
        words = open(path + "/cmdline").read().replace("\\0", " ")
        mark = "{RUN_VARIABLE}=" in open(path + "/environ", errors="replace").read()
    except OSError:
        continue
    if mark or "netbench-" in words or "86400" in words:
        processes.append(words)
settings = [open("/proc/sys/net/ipv4/tcp_" + name).read() for name in ("rmem", "wmem")]
folders = ("/tmp", "/dev/shm", "/var/tmp", "/run/netbench")
print(json.dumps({{
    "processes": processes,
    "files": [path for folder in folders for path in glob.glob(folder + "/*")],
    "qdiscs": subprocess.getoutput("tc qdisc show dev {INTERFACE}"),
    "settings": settings,
}}))
"""
"""Program for any Python: print everything that a run may leave on a machine."""

ITERATIONS = 1000

REACH_S = 120.0
"""Deadline for a machine that boots again, seconds."""


def write_files(count: int) -> Path:
    """Write scenario and inventory; return the inventory."""
    (OWN / "kernels.yaml").write_text(SCENARIO.format(count=count))
    python = Path(sys.executable).resolve()
    lines = [
        f"ssh: {{user: root, key: {OWN}/client_key, agent: false, python: {python},",
        f"  known_hosts: {OWN}/known_hosts}}",
        "hosts:",
        *(f"  - {{name: host{number}, address: {address(number)}}}" for number in range(count)),
    ]
    path = OWN / "hosts.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def look(path: Path) -> dict[str, object]:
    """Return what is on every machine, by name; waits for those that boot."""
    inventory, found = load_inventory(path), dict[str, object]()
    for number, host in enumerate(inventory.hosts):
        end_s = time.monotonic() + REACH_S
        while host.name not in found and time.monotonic() < end_s:
            with suppress(NetbenchError), Hosts(inventory.hosts, inventory.known_hosts) as hosts:
                status, stdout, stderr = hosts[number].run([host.python, "-IS", "-c", LOOK])
                found[host.name] = json.loads(stdout) if status == 0 else stderr
    return found


def tell(**event: object) -> None:
    print(json.dumps(event), flush=True)


def main(count: int, faults: list[str]) -> None:
    inventory = write_files(count)
    before = look(inventory)
    command = f"{Path(sys.executable).resolve()} -S {OWN}/{SCRIPT_NAME}"
    for fault in faults:
        words = ["run", f"{OWN}/kernels.yaml", "--inventory", str(inventory), "--command", command]
        words += ["--iterations", str(ITERATIONS), "--results", f"{OWN}/results"]
        with subprocess.Popen(
            [sys.executable, "-u", "-m", "netbench", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                tell(fault=fault, line=line.rstrip())
        tell(fault=fault, status=process.returncode)
        after = look(inventory)
        tell(fault=fault, before=before, after=after)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
