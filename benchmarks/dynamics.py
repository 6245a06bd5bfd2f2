"""Compare TCP on divided networks with TCP at full size, and with published transfers.

    python -m benchmarks.dynamics [--quick]

In a guest in virtual time, one connection carries a message of 8 MiB when it is new, and another a
transfer of 64 MiB, 8 MiB after two seconds of idleness, and 64 and 128 MiB after one second each.
This is done at full size and at scales that divide segments too, and once more to see whether times
repeat. Prints markdown tables. Transfers of 64 and 128 MiB are compared with those of gloo in
results/published/p2p_under_tc.csv, whose clock starts one delay after the sender's.
--quick: one network only.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.guest import run_in_guest, shaped_nodes
from netbench.network.probing.dynamics import send_messages
from netbench.network.probing.measure import Endpoints
from netbench.network.probing.samples import LinkSample
from netbench.network.probing.slow_start import message_s, tcp_path
from netbench.network.shaping.segments import divided
from netbench.plan.benchmark import uniform_network
from netbench.scenario.model import Network, Tcp
from netbench.testbed import namespaces
from netbench.testbed.guest.cache import ensure_kernel
from netbench.testbed.machine.capabilities import probe_machine

MIB = 1 << 20
MTU_BYTES = 9001

PATHS = ((0.001, 5e9), (0.010, 1e9), (0.050, 1e9), (0.134, 342e6))
"""One-way delay, seconds, and rate, bit/s."""

SCALES = (1.0, 16.0, 32.0)

NAMES = ("cold 8 MiB", "cold 64 MiB", "8 MiB after 2 s", "64 MiB after 1 s", "128 MiB after 1 s")

MESSAGES = ((64 * MIB, 0.0), (8 * MIB, 2.0), (64 * MIB, 1.0), (128 * MIB, 1.0))
"""Size, bytes, and idle time before, seconds, of the messages of the second connection."""

LINUX = Tcp()

TIMEOUT_S = 3000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Seconds of the messages `NAMES` on one path at one scale."""

    delay_s: float
    rate_bps: float
    scale: float
    times_s: tuple[float, ...]


def full_network(delay_s: float, rate_bps: float, tcp: Tcp) -> Network:
    """Return two nodes with jumbo frames, as the published transfers had."""
    network = uniform_network(
        2, one_way_delay_s=delay_s, bandwidth_bps=rate_bps, mtu_bytes=MTU_BYTES
    )
    return replace(network, tcp=tcp)


def measure_cells(
    paths: Sequence[tuple[float, float]], scales: Sequence[float], tcp: Tcp
) -> Iterator[Cell]:
    """Measure every path at every scale. Needs root and a private /run: runs in a guest."""
    sample = LinkSample(kind="link", src=0, dsts=(1,))
    for delay_s, rate_bps in paths:
        for scale in scales:
            network = divided(full_network(delay_s, rate_bps, tcp), scale)
            with shaped_nodes(("left", "right"), network) as nodes:
                reached = namespaces.namespace_nodes(nodes)
                endpoints = Endpoints(addresses=[(n.address,) for n in nodes], nodes=reached)
                times_s: list[float] = []
                for messages in (((8 * MIB, 0.0),), MESSAGES):
                    sizes = [round(size / scale) for size, _ in messages]
                    idle_s = [wait_s for _, wait_s in messages]
                    times_s += send_messages([sample], sizes, idle_s, endpoints)[sample]
            yield Cell(delay_s=delay_s, rate_bps=rate_bps, scale=scale, times_s=tuple(times_s))


def measured(
    paths: Sequence[tuple[float, float]] = PATHS, scales: Sequence[float] = SCALES, tcp: Tcp = LINUX
) -> list[Cell]:
    """Measure in a guest of its own."""
    job = {"paths": paths, "scales": scales, "congestion": tcp.congestion}
    argv = [sys.executable, "-m", "benchmarks.dynamics", "--inside", json.dumps(job)]
    status, output = run_in_guest(probe_machine(), argv, timeout_s=TIMEOUT_S)
    if status:
        sys.exit(f"the guest ended with status {status}:\n{output[-2000:]}")
    lines = [line for line in output.splitlines() if line.startswith('{"delay_s"')]
    cells = [json.loads(line) for line in lines]
    return [Cell(**{**cell, "times_s": tuple(cell["times_s"])}) for cell in cells]


def differences(cells: Sequence[Cell]) -> dict[tuple[float, float, float], tuple[float, ...]]:
    """Return the relative difference of every time from that at full size, by path and scale."""
    full = {(c.delay_s, c.rate_bps): c.times_s for c in cells if c.scale == 1}
    return {
        (c.delay_s, c.rate_bps, c.scale): tuple(
            mine / whole - 1
            for mine, whole in zip(c.times_s, full[c.delay_s, c.rate_bps], strict=True)
        )
        for c in cells
        if c.scale > 1
    }


def table(cells: Sequence[Cell]) -> str:
    """Return seconds at full size, and differences at other scales, as markdown."""
    lines = [f"| path | scale | {' | '.join(NAMES)} |", f"|---|---|{'--:|' * len(NAMES)}"]
    apart = differences(cells)
    for cell in cells:
        key = cell.delay_s, cell.rate_bps, cell.scale
        path = f"{cell.delay_s * 1e3:g} ms, {cell.rate_bps / 1e9:g} Gbit/s"
        shown = (
            [f"{time_s:.4g} s" for time_s in cell.times_s]
            if cell.scale == 1
            else [f"{difference:+.2%}" for difference in apart[key]]
        )
        lines.append(f"| {path} | {cell.scale:g} | {' | '.join(shown)} |")
    return "\n".join(lines)


def closed_form_table(cells: Sequence[Cell]) -> str:
    """Return how far cold messages are from slow start in closed form, at full size."""
    lines = ["| path | cold 8 MiB | closed form | difference |", "|---|--:|--:|--:|"]
    for cell in cells:
        if cell.scale != 1:
            continue
        path = tcp_path(full_network(cell.delay_s, cell.rate_bps, Tcp()), 0, 1)
        expected_s = message_s(path, 8 * MIB, path.first_window)
        lines.append(
            f"| {cell.delay_s * 1e3:g} ms, {cell.rate_bps / 1e9:g} Gbit/s | "
            f"{cell.times_s[0] * 1e3:.1f} ms | {expected_s * 1e3:.1f} ms | "
            f"{cell.times_s[0] / expected_s - 1:+.1%} |"
        )
    return "\n".join(lines)


def published_table(cells: Sequence[Cell]) -> str:
    """Return gloo's published transfers beside those after a second of idleness."""
    lines = [
        "| delay, ms | rate, Gbit/s | MiB | published, ms | emulated, ms | error |",
        "|---|---|--:|--:|--:|--:|",
    ]
    from benchmarks.calibrate_transport import read_transfers  # numba: not in a guest

    at_full = {(c.delay_s, c.rate_bps): c.times_s for c in cells if c.scale == max(SCALES)}
    for row in read_transfers():
        times_s = at_full.get((row.delay_s, row.bandwidth_bps))
        if row.backend != "gloo" or times_s is None:
            continue
        found_s = times_s[{64 * MIB: 3, 128 * MIB: 4}[row.size_bytes]] - row.delay_s
        lines.append(
            f"| {row.delay_s * 1e3:g} | {row.bandwidth_bps / 1e9:g} | {row.size_bytes // MIB} | "
            f"{row.published_s * 1e3:.0f} | {found_s * 1e3:.1f} | "
            f"{found_s / row.published_s - 1:+.1%} |"
        )
    return "\n".join(lines)


def published_paths() -> tuple[tuple[float, float], ...]:
    """Return the paths of gloo's published transfers that a rate limits, beside `PATHS`."""
    from benchmarks.calibrate_transport import read_transfers  # numba: not in a guest

    found = {
        (row.delay_s, row.bandwidth_bps): None
        for row in read_transfers()
        if row.backend == "gloo" and math.isfinite(row.bandwidth_bps)
    }
    return tuple(path for path in found if path not in PATHS)


def largest_difference(rows: Iterable[Sequence[float]]) -> float:
    """Return the largest absolute value."""
    return max(abs(value) for row in rows for value in row)


def main() -> None:
    """Measure and print, or with --inside do what a guest is to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one network only")
    arguments = parser.parse_args()
    if arguments.inside:
        job = json.loads(arguments.inside)
        tcp = Tcp(congestion=job["congestion"])
        for cell in measure_cells([tuple(p) for p in job["paths"]], job["scales"], tcp):
            fields = {name: getattr(cell, name) for name in ("delay_s", "rate_bps", "scale")}
            print(json.dumps({**fields, "times_s": cell.times_s}), flush=True)
        return
    ensure_kernel()
    paths = PATHS[1:2] if arguments.quick else PATHS
    cells = measured(paths)
    print(table(cells))
    print(f"\nlargest difference: {largest_difference(differences(cells).values()):.2%}\n")
    again = measured(paths[:2], SCALES[-1:])
    first = {(c.delay_s, c.rate_bps): c.times_s for c in cells if c.scale == SCALES[-1]}
    repeats = {
        (c.delay_s, c.rate_bps): tuple(
            a / b - 1 for a, b in zip(c.times_s, first[c.delay_s, c.rate_bps], strict=True)
        )
        for c in again
    }
    print(f"measured twice: {largest_difference(repeats.values()):.4%}\n")
    print(closed_form_table(cells))
    if not arguments.quick:
        others = measured(published_paths(), (max(SCALES),))
        print(f"\n{published_table([*cells, *others])}")


if __name__ == "__main__":
    if not Path("results").is_dir():
        sys.exit("run it in the repository: python -m benchmarks.dynamics")
    main()
