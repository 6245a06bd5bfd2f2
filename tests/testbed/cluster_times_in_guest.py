"""Iteration times on machines, beside those of this kernel's own testbed: run in a guest, as root.

`python -m tests.testbed.cluster_times_in_guest MACHINES SYSTEM,...` prints a line of JSON per
system: its name, the times of both, and in the trace of the machines the largest time by which a
receive ends before its send starts, and the stated error of clocks, all in seconds. Expects virtual
time, and /run private. The plan is that of case 3 on fewer nodes. Each machine's clock is two
seconds ahead of the one before.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from netbench.plan.timeline import Timeline, messages, read_timeline, trace_path
from netbench.records import Run, read_run
from tests.testbed.safety_controllers import Controller
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

AHEAD_S = 2.0
SKEW = """\
import time
_monotonic, _ahead_s = time.monotonic, {ahead_s}
time.monotonic = lambda: _monotonic() + _ahead_s
"""
"""`sitecustomize` of a machine: a guest kernel has no namespaces of clocks."""

TELL = "import time; print(time.monotonic())"

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
        (folder / "sitecustomize.py").write_text(SKEW.format(ahead_s=AHEAD_S * (node + 1)))
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        told_s = float(machines.run(node, str(python), "-c", TELL))
        assert told_s - time.monotonic() > AHEAD_S * node, "the clock of a machine is ahead"
        lines[-count + node] = lines[-count + node].replace("}", f", python: {python}}}")
    path.write_text("\n".join(lines) + "\n")
    return path


def measure(name: str, system: str, *options: str) -> Run:
    """Run one system. Raises RuntimeError with the output."""
    results = SCRATCH / f"{name}-{system}"
    output = SCRATCH / f"{name}-{system}.txt"
    words = ["run", str(SCRATCH / "case3-small.yaml"), "--systems", system, "--results"]
    controller = Controller(output, "alpha", *words, str(results), *options)
    if controller.end() != 0:
        raise RuntimeError(f"{name}: {controller.output}")
    (run,) = results.iterdir()
    return read_run(run)


def times_s(run: Run) -> list[float]:
    return [record.iteration_s for record in run.records if not record.warmup]


def acausal_s(timeline: Timeline) -> float:
    """Return the largest time from the end of a receive to the start of its send, seconds."""
    return max(send.start_s - receive.end_s for send, receive in messages(timeline.slices))


def main(count: int, systems: list[str]) -> None:
    machines = Machines(SCRATCH)
    text = SCENARIO.format(half=count // 2, batch=count * BATCH_PER_MACHINE)
    (SCRATCH / "case3-small.yaml").write_text(text)
    inventory = skewed_inventory(machines, count)
    for system in systems:
        here = measure("local", system, "--testbed", "local:native")
        where = ("--inventory", str(inventory), "--replace", "--trace")
        there = measure("cluster", system, *where)
        (key,) = there.plans
        trace = read_timeline(trace_path(there.path.parent, key))
        found = {
            "system": system,
            "local_s": times_s(here),
            "cluster_s": times_s(there),
            "acausal_s": acausal_s(trace),
            "clock_error_s": trace.clock_error_s,
            "hosts": [asdict(sample) for sample in there.records[-1].hosts],
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].split(","))
