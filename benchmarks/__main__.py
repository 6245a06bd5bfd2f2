"""`make bench`: what netbench does against the obvious other way, side by side in one run.

Prints one markdown table. The machine may be shared and noisy, so the ratio is the figure to
quote; both sides of a row run in the same guest, in real time, one after the other.
"""

from __future__ import annotations

import json
import sys

from netbench.testbed.guest import run_in_guest
from netbench.testbed.host import probe_host
from netbench.testbed.kernel import ensure_kernel

HEAD = ("what", "netbench", "s", "instead of", "s", "times faster")


def main() -> None:
    """Run every comparison and print the table."""
    ensure_kernel()
    argv = [sys.executable, "-m", "benchmarks.compare"]
    status, output = run_in_guest(probe_host(), argv, virtual_time=False, memory_bytes=4 << 30)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    if status != 0 or not rows:
        sys.exit(f"the comparison failed with status {status}:\n{output[-2000:]}")
    print(f"| {' | '.join(HEAD)} |")
    print("|---|---|---:|---|---:|---:|")
    for what, ours, ours_s, other, other_s in rows:
        ratio = other_s / ours_s
        print(f"| {what} | {ours} | {ours_s:.2f} | {other} | {other_s:.2f} | {ratio:.1f} |")


if __name__ == "__main__":
    main()
