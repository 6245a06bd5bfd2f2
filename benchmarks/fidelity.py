"""`make fidelity`: measure how closely each local testbed delivers a requested network.

    python -m benchmarks.fidelity [--testbeds guest-virtual,guest-real,native] [--quick]

Every testbed of this machine measures a grid of cells (`network.probing.fidelity.FidelityCell`):
simultaneous flows, each between a separate pair of nodes. Finished cells are written to
`results/fidelity/cells.csv`; a testbed that is measured again replaces its cells. Then
`results/fidelity.md` and its picture are written. Half of the cells measure a busy machine, so
nothing else should run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.fidelity_page import write_cells, write_fidelity
from benchmarks.guest import run_in_guest
from netbench.network.nodes import Node
from netbench.network.probing.fidelity import FidelityCell, cells_path, read_cells
from netbench.network.probing.measure import Endpoints, measure
from netbench.network.probing.packet_trains import FRAME_BYTES
from netbench.network.probing.samples import MEASURED_BDPS, WARMUP_BDPS, LinkSample
from netbench.network.shaping.apply import apply, clear
from netbench.network.shaping.program import Program, compile_programs, sysctls
from netbench.network.shaping.segments import goodput_ratio
from netbench.scenario.model import Link, Network
from netbench.testbed import namespaces
from netbench.testbed.guest.cache import ensure_kernel
from netbench.testbed.machine.capabilities import probe_machine

RATES_BPS = (10e6, 100e6, 1e9, 10e9)
DELAYS_S = (0.0, 0.001, 0.01, 0.05, 0.15, 0.3)
FLOWS = {"guest-virtual": (1, 8, 32, 64), "guest-real": (1, 8, 64), "native": (1, 4, 16, 64)}

LIMIT_BITS = {"guest-virtual": 60e9, "guest-real": 6e9, "native": 100e9}
"""Cells of several flows that would send more than this are skipped, since each takes minutes. (A
guest moves about 1.8 Gbit per second of its core. All single flows are measured.)"""

BUSY_LIMIT_BITS = 3e9
"""Limit on a busy machine in virtual time, where load should make no difference."""

TIMEOUT_S = 3600.0


def grid(testbed: str, busy: bool) -> Iterator[tuple[int, float, float]]:
    """Return cells (flows, rate bit/s, one-way delay s), fewest bits first."""
    limit, limit_single = LIMIT_BITS[testbed], float("inf")
    if busy and testbed == "guest-virtual":
        limit = limit_single = BUSY_LIMIT_BITS
    cells = [
        (num_flows, rate_bps, delay_s)
        for num_flows in FLOWS[testbed]
        for rate_bps in RATES_BPS
        for delay_s in DELAYS_S
        if _bits(num_flows, rate_bps, delay_s) <= (limit_single if num_flows == 1 else limit)
    ]
    return iter(sorted(cells, key=lambda cell: _bits(*cell)))


def _bits(num_flows: int, rate_bps: float, delay_s: float) -> float:
    return num_flows * rate_bps * (0.05 + (WARMUP_BDPS + MEASURED_BDPS) * 2 * delay_s)


def measure_cells(testbed: str, busy: bool, cores: int) -> Iterator[FidelityCell | str]:
    """Measure the grid; yield each cell, or why it failed. Needs network privileges and a private
    /run."""
    # A process on each of 128 nodes at once, with three pipes each.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    num_nodes = 2 * max(FLOWS[testbed])
    nodes = namespaces.node_addresses([f"node{i}" for i in range(num_nodes)])
    namespaces.build(nodes, mtu_bytes=1500)
    addresses = [(node.address,) for node in nodes]
    reached = namespaces.namespace_nodes(nodes)
    for num_flows, rate_bps, delay_s in grid(testbed, busy):
        pair = _pair(Link(one_way_delay_s=delay_s, bandwidth_bps=rate_bps))
        network = replace(
            pair, node_regions=(0, 1) * num_flows, nic_bps=(float("inf"),) * 2 * num_flows
        )
        programs = [
            program for flow in range(num_flows) for program in _programs(pair, addresses, flow)
        ]
        _tune(pair, reached[: 2 * num_flows])
        apply(programs, reached)
        samples = [
            LinkSample(kind="link", src=2 * flow, dsts=(2 * flow + 1,)) for flow in range(num_flows)
        ]
        found = measure(network, samples, Endpoints(addresses=addresses, nodes=reached))
        clear(programs, reached)
        errors = [measurement.error for measurement in found if measurement.error]
        if errors:
            yield f"{num_flows} x {rate_bps:g} bit/s, {delay_s:g} s: {errors[0]}"
            continue
        ratios = [
            (m.goodput_bps or 0.0) / (rate_bps * goodput_ratio(network.mtu_bytes)) for m in found
        ]
        way_s = delay_s + 8 * FRAME_BYTES / rate_bps
        ways = [way - way_s for m in found for way in m.one_way_s if way is not None]
        rtts = [rtt - 2 * way_s for m in found for rtt in m.rtt_s if rtt is not None]
        if len(ways) < num_flows or len(rtts) < num_flows:
            yield f"{num_flows} x {rate_bps:g} bit/s, {delay_s:g} s: an echo was lost"
            continue
        yield FidelityCell(
            testbed=testbed,
            busy=busy,
            cores=cores,
            num_flows=num_flows,
            bandwidth_bps=rate_bps,
            one_way_delay_s=delay_s,
            goodput_ratio=round(min(ratios), 6),
            fastest_ratio=round(max(ratios), 6),
            one_way_error_s=round(largest(ways), 9),
            rtt_error_s=round(largest(rtts), 9),
        )


def largest(errors: Sequence[float]) -> float:
    """Return the error with the largest absolute value, with its sign."""
    return max(errors, key=abs)


def _pair(link: Link) -> Network:
    return Network(
        regions=("left", "right"), links=((link, link), (link, link)), node_regions=(0, 1),
        sharing="pair", nic_bps=(float("inf"),) * 2,
    )  # fmt: skip


def _programs(pair: Network, addresses: Sequence[tuple[str]], flow: int) -> list[Program]:
    """Return the programs of the two nodes of a flow, with rules for each other only."""
    ends = addresses[2 * flow : 2 * flow + 2]
    programs = compile_programs(pair, ends, namespaces.INTERFACE)
    return [replace(program, node=2 * flow + program.node) for program in programs]


def _tune(pair: Network, nodes: Sequence[Node]) -> None:
    settings = [f"{name}={value}" for name, value in sysctls(pair).items()]
    for index, node in enumerate(nodes):
        status, _, stderr = node.run(("sysctl", "-qw", *settings))
        if status:
            sys.exit(f"node {index}: {stderr}")


@contextlib.contextmanager
def other_work(busy: bool) -> Iterator[None]:
    """With `busy`, run a busy loop on every core."""
    argv = [sys.executable, "-c", "while True: pass"]
    workers = [subprocess.Popen(argv) for _ in range(os.cpu_count() or 1)] if busy else []
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def measure_testbed(testbed: str, busy: bool) -> tuple[FidelityCell, ...]:
    """Run `measure_cells` in a kernel of the testbed; exit if that fails."""
    machine = probe_machine()
    argv = [sys.executable, "-m", "benchmarks.fidelity", "--inside", testbed]
    argv += ["--cores", str(machine.num_cores), *(["--busy"] if busy else [])]
    with other_work(busy), tempfile.TemporaryDirectory() as scratch:
        # Results go to the disk, not over the guest's serial line.
        cells = Path(scratch) / "cells"
        argv += ["--output", str(cells)]
        if testbed == "native":
            private = ["unshare", "--mount", "--net", "--", "sh", "-c"]
            mount = 'mount -t tmpfs run /run && exec "$@"'
            done = subprocess.run(
                [*private, mount, "sh", *argv], check=False, timeout=TIMEOUT_S, text=True,
                capture_output=True,
            )  # fmt: skip
            status, output = done.returncode, done.stderr
        else:
            status, output = run_in_guest(
                machine, argv, virtual_time=testbed == "guest-virtual", memory_bytes=8 << 30,
                timeout_s=TIMEOUT_S,
            )  # fmt: skip
        if status:
            sys.exit(f"measuring {testbed} failed with status {status}:\n{output[-2000:]}")
        found = [json.loads(line) for line in cells.read_text().splitlines()]
    for problem in found:
        if isinstance(problem, str):
            print(f"  not measured: {problem}")
    return tuple(FidelityCell(**cell) for cell in found if not isinstance(cell, str))


def main() -> None:
    """Measure the cells and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--testbeds", default="")
    parser.add_argument("--report", action="store_true", help="only write the report again")
    parser.add_argument("--inside", choices=list(FLOWS), help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--busy", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        with arguments.output.open("w") as output:
            for cell in measure_cells(arguments.inside, arguments.busy, arguments.cores):
                found = cell if isinstance(cell, str) else asdict(cell)
                output.write(json.dumps(found) + "\n")
                output.flush()
        return
    path = cells_path()
    if not arguments.report:
        ensure_kernel()
        native = ["native"] if probe_machine().has_netem and os.geteuid() == 0 else []
        testbeds = arguments.testbeds.split(",") if arguments.testbeds else []
        for testbed in testbeds or ["guest-virtual", "guest-real", *native]:
            for busy in (False, True):
                print(f"{testbed}, {'busy' if busy else 'idle'} machine", flush=True)
                _keep(path, testbed, busy, measure_testbed(testbed, busy))
    write_fidelity(path.parent.parent, read_cells(path))


def _keep(path: Path, testbed: str, busy: bool, cells: Sequence[FidelityCell]) -> None:
    """Replace the cells of this testbed and state in the file."""
    old = read_cells(path) if path.exists() else ()
    kept = [cell for cell in old if (cell.testbed, cell.busy) != (testbed, busy)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(write_cells([*kept, *cells]))
    read_cells.cache_clear()


if __name__ == "__main__":
    main()
