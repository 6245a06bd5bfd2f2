"""`make bench`: what netbench does against the obvious other way, side by side in one run.

Prints one markdown table. The machine may be shared and noisy, so the ratio is the figure to
quote; both sides of a row run one after the other, those of the testbed in one guest, in real time.
"""

from __future__ import annotations

import json
import sys

from benchmarks import objective, placement, simulator
from netbench.testbed.guest import run_in_guest
from netbench.testbed.host import probe_host
from netbench.testbed.kernel import ensure_kernel

IN_GUEST = ("benchmarks.compare", "benchmarks.shaping")

HEAD = ("what", "netbench", "s", "instead of", "s", "times faster")


def main() -> None:
    """Run every comparison and print the table."""
    print(f"| {' | '.join(HEAD)} |")
    print("|---|---|---:|---|---:|---:|")
    for row in (*simulator.rows(), *objective.rows(), *placement.rows(), *testbed_rows()):
        print(render(*row), flush=True)


def render(what: str, ours: str, ours_s: float, other: str | None, other_s: float | None) -> str:
    """A line of the table, seconds to three digits; nothing on the right without another way."""
    if other is None or other_s is None:
        return f"| {what} | {ours} | {ours_s:.3g} | | | |"
    return f"| {what} | {ours} | {ours_s:.3g} | {other} | {other_s:.3g} | {other_s / ours_s:.1f} |"


def testbed_rows() -> list[simulator.Row]:
    """Those of the modules that run inside a guest, one guest each."""
    ensure_kernel()
    return [row for name in IN_GUEST for row in rows_in_guest(name)]


def rows_in_guest(module: str) -> list[simulator.Row]:
    argv = [sys.executable, "-m", module]
    status, output = run_in_guest(probe_host(), argv, virtual_time=False, memory_bytes=4 << 30)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    if status != 0 or not rows:
        sys.exit(f"{module} failed with status {status}:\n{output[-2000:]}")
    return rows


if __name__ == "__main__":
    main()
