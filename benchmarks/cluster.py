"""Runs on many machines over SSH: how fast they are ready, and whether they measure the same.

    python -m benchmarks.cluster [--hosts N] [--machines N] [--systems NAME,...]

The machines are those of the tests, all in one guest, each with an sshd that takes three logins at
a time. Prints a markdown table. Seconds are those of the host, which the guest reads off a file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.guest import run_in_guest
from netbench.testbed.guest.cache import ensure_kernel
from netbench.testbed.machine.capabilities import probe_machine

MEMORY_BYTES = 8 << 30

SIZE = "tests.testbed.cluster_size_in_guest"
TIMES = "tests.testbed.cluster_times_in_guest"

READY_S, FIRST_S = 90.0, 60.0
"""Wanted: all node servers of 64 hosts are ready, and 8 machines begin to iterate, within this."""

SAME = 0.005
"""Wanted: relative difference of iterations on machines and on the local testbed."""

SYSTEMS = "dtfm-scheduled,dtfm-random,megatron,zero3"


def in_guest(*argv: str) -> list[dict[str, Any]]:
    """Run a module in a guest; return the JSON lines it prints. Exits if it fails."""
    machine = probe_machine()
    status, output = run_in_guest(
        machine, [sys.executable, "-m", *argv], memory_bytes=MEMORY_BYTES, timeout_s=7200.0
    )
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if status or not lines:
        sys.exit(f"{' '.join(argv)} failed with status {status}:\n{output[-3000:]}")
    return lines


def ready(count: int) -> list[str]:
    """Return the row on the start of many hosts."""
    with tempfile.TemporaryDirectory() as folder:
        *found, last = in_guest(SIZE, str(count), folder)
    if last["problems"]:
        sys.exit("\n".join(last["problems"]))
    (took,) = found
    return [
        f"{count} hosts, MaxStartups 3: login, code, node servers ready",
        f"{took['host_s']:.1f} s",
        f"{READY_S:g} s",
    ]


def same(count: int, systems: str) -> list[list[str]]:
    """Return the rows on iterations of case 3 on fewer machines."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for found in in_guest(TIMES, str(count), systems, folder):
            what = f"case 3 on {count} machines, {found['system']}"
            differences = [
                abs(there / here - 1)
                for there, here in zip(found["cluster_s"], found["local_s"], strict=True)
            ]
            rows.append([f"{what}: difference", f"{max(differences):.3%}", f"{SAME:.1%}"])
            first = f"{what}: until the first iteration"
            rows.append([first, f"{found['first_host_s']:.1f} s", f"{FIRST_S:g} s"])
    return rows


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description="Time runs on many machines over SSH."
    )
    parser.add_argument("--hosts", type=int, default=64, help="of the first row; 0: none")
    parser.add_argument("--machines", type=int, default=8, help="of the others; 0: none")
    parser.add_argument("--systems", default=SYSTEMS)
    asked = parser.parse_args(arguments)
    ensure_kernel()
    print("| what | found | wanted: at most |\n|---|--:|--:|", flush=True)
    if asked.hosts:
        print(f"| {' | '.join(ready(asked.hosts))} |", flush=True)
    for row in same(asked.machines, asked.systems) if asked.machines else []:
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
