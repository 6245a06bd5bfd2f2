"""Iteration times of nodes that share machines, and of the local testbed: run in a guest, as root.

`python -m tests.testbed.shared_times_in_guest SYSTEM` prints a line of JSON: the times of four
nodes of the local testbed, of two machines with two nodes each for every overlay, and of this guest
as the only machine, all in seconds. Expects virtual time, and /run private.
"""

from __future__ import annotations

import json
import sys
import time

from tests.testbed.cluster_times_in_guest import (
    BATCH_PER_MACHINE,
    SCENARIO,
    SCRATCH,
    measure,
    skewed_inventory,
    times_s,
)
from tests.testbed.safety_machines import Machines

NUM_MACHINES, NODES_EACH = 2, 2


def main(system: str) -> None:
    machines = Machines(SCRATCH)
    total = NUM_MACHINES * NODES_EACH
    text = SCENARIO.format(half=total // 2, batch=total * BATCH_PER_MACHINE)
    (SCRATCH / "case3-small.yaml").write_text(text)
    here, _ = measure("local", system, str(SCRATCH), "--testbed", "local:native")
    found = {"local": times_s(here)}
    inventories = {
        overlay: skewed_inventory(machines, NUM_MACHINES, NODES_EACH, overlay)
        for overlay in ("routes", "vxlan")
    }
    inventories["localhost"] = SCRATCH / "localhost.yaml"
    inventories["localhost"].write_text("hosts: [localhost]\n")
    before = [machines.snapshot(node) for node in range(NUM_MACHINES)]
    for name, path in inventories.items():
        run, _ = measure(name, system, str(SCRATCH), "--inventory", str(path), "--replace")
        found[name] = times_s(run)
    print(json.dumps(found), flush=True)
    time.sleep(1.0)  # what has been ended has ended
    assert [machines.snapshot(node) for node in range(NUM_MACHINES)] == before


if __name__ == "__main__":
    main(sys.argv[1])
