"""Iteration times on machines, beside those of this kernel's own testbed: run in a guest, as root.

`python -m tests.testbed.cluster_times_in_guest MACHINES SYSTEM,... [NODES]` prints a line of JSON
per system: its name and the times of both, seconds. Expects virtual time, and /run private. The
plan is that of case 3 on fewer nodes. Each machine's clock is two seconds ahead of the one before.
NODES: of each machine; then the times of both overlays are printed, and those of one machine that
has all nodes, this guest itself.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from netbench.records import read_run
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


def times_s(name: str, system: str, *options: str) -> list[float]:
    """Run one system and return its measured iterations. Raises RuntimeError with the output."""
    results = SCRATCH / f"{name}-{system}"
    output = SCRATCH / f"{name}-{system}.txt"
    words = ["run", str(SCRATCH / "case3-small.yaml"), "--systems", system, "--results"]
    controller = Controller(output, "alpha", *words, str(results), *options)
    if controller.end() != 0:
        raise RuntimeError(f"{name}: {controller.output}")
    (run,) = results.iterdir()
    return [record.iteration_s for record in read_run(run).records if not record.warmup]


def main(count: int, systems: list[str], num_nodes: int) -> None:
    machines = Machines(SCRATCH)
    total = count * num_nodes
    text = SCENARIO.format(half=total // 2, batch=total * BATCH_PER_MACHINE)
    (SCRATCH / "case3-small.yaml").write_text(text)
    if num_nodes == 1:
        inventories = {"cluster": skewed_inventory(machines, count)}
    else:
        inventories = {
            overlay: skewed_inventory(machines, count, num_nodes, overlay)
            for overlay in ("routes", "vxlan")
        }
        inventories["localhost"] = SCRATCH / "localhost.yaml"
        inventories["localhost"].write_text("hosts: [localhost]\n")
    before = [machines.snapshot(node) for node in range(count)]
    for system in systems:
        found = {"local": times_s("local", system, "--testbed", "local:native")}
        for name, path in inventories.items():
            found[name] = times_s(name, system, "--inventory", str(path), "--replace")
        times = {f"{name}_s": values for name, values in found.items()}
        print(json.dumps({"system": system, **times}), flush=True)
    time.sleep(1.0)  # what has been ended has ended
    assert [machines.snapshot(node) for node in range(count)] == before


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]) if sys.argv[3:] else 1)
