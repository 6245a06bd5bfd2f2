"""Iteration times on machines, beside those of this kernel's own testbed: run in a guest, as root.

`python -m tests.testbed.cluster_times_in_guest MACHINES SYSTEM,... FOLDER` prints a line of JSON
per system, or "collective": its name, the times of both, and of the machines the time until the
first iteration was finished, by the clock of the host's file system, which has FOLDER; all in
seconds. Expects virtual time, and /run private. The plan is that of case 3 on fewer nodes.

Each machine's clock is two seconds ahead of the one before, and gains on it. No machine has DNS,
their host name resolves to loopback, and each has a docker0 with the same address.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

from netbench.records import read_run
from tests.testbed.safety_controllers import Controller, host_s
from tests.testbed.safety_machines import Machines

SCRATCH = Path("/run/safety")

SCENARIO = """\
name: case3-small
regions: [Ohio, Virginia]
nodes:
  - {{region: Ohio, count: {half}, device: V100}}
  - {{region: Virginia, count: {half}, device: V100}}
network:
  sharing: class
  inside: {{one_way_delay: 1ms, bandwidth: 5Gbit}}
  links:
    - {{between: [Ohio, Virginia], one_way_delay: 11ms, bandwidth: 1.12Gbit}}
devices: {{V100: builtin}}
workload: {{layers: 24, hidden: 2048, heads: 16, sequence: 2048, dtype: fp16, recomputation: true,
            micro_batch: 1, batch: {batch}, embedding_parameters: 64M}}
sweep: {{pipeline: {half}}}
"""

AHEAD_S, GAIN = 2.0, 20e-6
SKEW = """\
import time
_monotonic, _ahead_s, _rate = time.monotonic, {ahead_s}, {rate}
time.monotonic = lambda: _monotonic() * _rate + _ahead_s
"""
"""`sitecustomize` of a machine: a guest kernel has no namespaces of clocks. A quartz that is 20 ppm
off is an ordinary one."""

ODD = """\
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/resolv.conf /etc/resolv.conf
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up
"""

TELL = "import time; print(time.monotonic())"

COLLECTIVE = [
    "collective",
    "all-reduce",
    "--nodes",
    "2",
    "--bytes",
    "1MiB",
    "--delay",
    "5ms",
    "--rate",
    "100Mbit",
]
"""Words of the command for the system `collective`."""

RESOLVE = "import socket; print(socket.gethostbyname(socket.gethostname()))"

BATCH_PER_MACHINE = 4


def skewed_inventory(machines: Machines, count: int) -> Path:
    """Write an inventory whose machines have clocks of their own."""
    path = machines.inventory(range(count))
    lines = path.read_text().splitlines()
    for node in range(count):
        folder = SCRATCH / f"clock{node}"
        folder.mkdir()
        skew = SKEW.format(ahead_s=AHEAD_S * (node + 1), rate=1 + GAIN * node)
        (folder / "sitecustomize.py").write_text(skew)
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        told_s = float(machines.run(node, str(python), "-c", TELL))
        assert told_s - time.monotonic() > AHEAD_S * node, "the clock of a machine is ahead"
        lines[-count + node] = lines[-count + node].replace("}", f", python: {python}}}")
    path.write_text("\n".join(lines) + "\n")
    return path


def make_odd(machines: Machines, count: int) -> None:
    """Take DNS away, let the host's name be loopback, and add docker0."""
    folder = SCRATCH / "odd"
    folder.mkdir()
    name = socket.gethostname()
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
    (folder / "resolv.conf").write_text("")
    for node in range(count):
        machines.execute(node, "sh", "-ec", ODD.format(folder=folder))
        assert machines.execute(node, sys.executable, "-c", RESOLVE) == "127.0.1.1\n"


def times_s(name: str, system: str, folder: str, *options: str) -> tuple[list[float], float]:
    """Run one system; return its measured iterations, and the time until one was finished.

    Raises RuntimeError with the output.
    """
    results = SCRATCH / f"{name}-{system}"
    output = SCRATCH / f"{name}-{system}.txt"
    words = ["run", str(SCRATCH / "case3-small.yaml"), "--systems", system]
    words = COLLECTIVE if system == "collective" else words
    began_s = host_s(folder)
    controller = Controller(output, "alpha", *words, "--results", str(results), *options)
    controller.await_output("warm-up 0:")
    first_s = host_s(folder) - began_s
    if controller.end() != 0:
        raise RuntimeError(f"{name}: {controller.output}")
    (run,) = results.iterdir()
    records = read_run(run).records
    return [record.iteration_s for record in records if not record.warmup], first_s


def main(count: int, systems: list[str], folder: str) -> None:
    machines = Machines(SCRATCH)
    text = SCENARIO.format(half=count // 2, batch=count * BATCH_PER_MACHINE)
    (SCRATCH / "case3-small.yaml").write_text(text)
    inventory = skewed_inventory(machines, count)
    make_odd(machines, count)
    for system in systems:
        here, _ = times_s("local", system, folder, "--testbed", "local:native")
        hosts = ["--inventory", str(inventory), "--replace"]
        there, first_s = times_s("cluster", system, folder, *hosts)
        found = {"local_s": here, "cluster_s": there, "first_host_s": first_s}
        print(json.dumps({"system": system, **found}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3])
