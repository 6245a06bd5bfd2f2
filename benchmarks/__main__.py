"""`make bench`: compare netbench with the obvious alternative, side by side in one run.

Prints one markdown table. The machine may be shared and noisy, so quote the ratio. Both sides of a
row run one after the other; those of the testbed run in one guest, in real time.
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks import cores, objective, simulator
from benchmarks.guest import run_in_guest
from netbench.testbed.guest.cache import ensure_kernel
from netbench.testbed.machine.capabilities import probe_machine

IN_GUEST = ("benchmarks.compare", "benchmarks.shaping")

HEAD = ("what", "netbench", "s", "instead of", "s", "times faster")

MODULES = """\
Each module also runs alone, as python -m benchmarks.NAME:
  simulator, objective                  rows of the simulator
  cores                                 the row of whole runs in a guest
  calibrate_transport, calibrate_v100   constants of the profiles, fitted
  hypotheses                            ideas on shared NICs, each with its own fit
  fidelity                              how closely testbeds deliver a network
  dynamics                              TCP on divided networks, and at full size
  dask                                  cells on Dask workers, and what these cost
  chaos                                 what is left after kills at random moments"""


def main() -> None:
    """Run every comparison and print the table; with --help, only print what can be run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare netbench with the obvious alternative and print one markdown table.",
        epilog=MODULES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    print(f"| {' | '.join(HEAD)} |")
    print("|---|---|---:|---|---:|---:|")
    for row in (*simulator.rows(), *objective.rows(), *testbed_rows(), *cores.rows()):
        print(render(*row), flush=True)


def render(what: str, own: str, own_s: float, other: str | None, other_s: float | None) -> str:
    """Return a line of the table, seconds to three digits; empty on the right without a peer."""
    if other is None or other_s is None:
        return f"| {what} | {own} | {own_s:.3g} | | | |"
    return f"| {what} | {own} | {own_s:.3g} | {other} | {other_s:.3g} | {other_s / own_s:.1f} |"


def testbed_rows() -> list[simulator.Row]:
    """Return the rows of the modules that run inside a guest, one guest each."""
    ensure_kernel()
    return [row for name in IN_GUEST for row in rows_in_guest(name)]


def rows_in_guest(module: str) -> list[simulator.Row]:
    argv = [sys.executable, "-m", module]
    status, output = run_in_guest(probe_machine(), argv, virtual_time=False, memory_bytes=4 << 30)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    if status != 0 or not rows:
        sys.exit(f"{module} failed with status {status}:\n{output[-2000:]}")
    return rows


if __name__ == "__main__":
    main()
