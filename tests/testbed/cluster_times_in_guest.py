"""Iteration times on machines, beside those of this kernel's own testbed: run in a guest, as root.

`python -m tests.testbed.cluster_times_in_guest MACHINES SYSTEM,... FOLDER` prints a line of JSON
per system, or "collective": its name, the times of both, and of the machines the time until the
first iteration was finished, by the clock of the host's file system, which has FOLDER. Of a system
also: in the trace of the machines the largest time by which a receive ends before its send starts,
and the stated error of clocks. All are in seconds. Expects virtual time, and /run private. The plan
is that of case 3 on fewer nodes.

Each machine's clock is two seconds ahead of the one before, and gains on it. No machine has DNS,
their host name resolves to loopback, and each has a docker0 with the same address.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from netbench.records import Run, read_run
from netbench.timelines import Timeline, messages, read_timeline, trace_path
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


def skewed_inventory(
    machines: Machines, count: int, num_nodes: int = 1, overlay: str = "routes"
) -> Path:
    """Write an inventory whose machines have clocks of their own. num_nodes: of each machine."""
    path = machines.inventory(range(count), num_nodes, overlay)
    lines = path.read_text().splitlines()
    for node in range(count):
        folder = SCRATCH / f"clock{node}"
        folder.mkdir(exist_ok=True)
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


UNTRUSTED = 3
"""Exit code of a run that is not trusted."""

FAST = "divides bytes, but not segments"
"""In the reason not to trust a scaled run, which may be compared with another one."""


def measure(name: str, system: str, folder: str, *options: str) -> tuple[Run, float]:
    """Run one system; return the run, and the time until an iteration was finished.

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
    status = controller.end()
    (path,) = results.iterdir()
    run = read_run(path)
    if status not in (0, UNTRUSTED) or any(FAST not in reason for reason in run.reasons):
        raise RuntimeError(f"{name}: {controller.output}")
    return run, first_s


def times_s(run: Run) -> list[float]:
    """Return the measured iterations."""
    return [record.iteration_s for record in run.records if not record.warmup]


def acausal_s(timeline: Timeline) -> float:
    """Return the largest time from the end of a receive to the start of its send, seconds."""
    late_s = (send.start_s - receive.end_s for send, receive in messages(timeline.slices))
    return max(late_s, default=0.0)  # the collectives of zero3 are recorded as such


def traced(run: Run) -> dict[str, Any]:
    """Return what the trace and the hosts' samples of a run show."""
    (key,) = run.plans
    trace = read_timeline(trace_path(run.path.parent, key))
    return {
        "acausal_s": acausal_s(trace),
        "clock_error_s": trace.clock_error_s,
        "hosts": [asdict(sample) for sample in run.records[-1].hosts],
    }


def main(count: int, systems: list[str], folder: str) -> None:
    machines = Machines(SCRATCH)
    text = SCENARIO.format(half=count // 2, batch=count * BATCH_PER_MACHINE)
    (SCRATCH / "case3-small.yaml").write_text(text)
    inventory = skewed_inventory(machines, count)
    make_odd(machines, count)
    for system in systems:
        trains = system != "collective"
        fast = ["--fast"] if trains else []  # as on hosts, where TCP's segments stay whole
        here, _ = measure("local", system, folder, "--testbed", "local:native", *fast)
        hosts = ["--inventory", str(inventory), "--replace"]
        there, first_s = measure(
            "cluster", system, folder, *hosts, *(["--trace"] if trains else [])
        )
        found = {"local_s": times_s(here), "cluster_s": times_s(there), "first_host_s": first_s}
        found |= traced(there) if trains else {}
        print(json.dumps({"system": system, **found}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3])
