"""`make fidelity`: what each local testbed delivers of the network it is asked for.

    python -m benchmarks.fidelity [--backends guest-virtual,guest-real,native] [--quick]

For every backend this machine has, a grid of cells (`netbench.network.fidelity.Cell`): flows that
send at once, each between two nodes of its own. Every finished cell is in
`results/fidelity/cells.csv` at once; a backend that is measured again replaces its cells there.
Then `results/fidelity.md` and its picture are written. What a machine is busy with is the point of
half of the cells in real time: nothing else should run beside.
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

from netbench.network.apply import apply, clear
from netbench.network.fidelity import Cell, cells_path, read_cells, write_cells
from netbench.network.measure import measure
from netbench.network.program import Program, compile_programs, sysctls
from netbench.network.verify import (
    ECHO_FRAME_BYTES,
    MEASURED_BDPS,
    WARMUP_BDPS,
    Sample,
    goodput_ratio,
)
from netbench.report.fidelity import write_fidelity
from netbench.scenario.model import Link, Network
from netbench.testbed import namespaces
from netbench.testbed.guest import run_in_guest
from netbench.testbed.host import probe_host
from netbench.testbed.kernel import ensure_kernel

RATES_BPS = (10e6, 100e6, 1e9, 10e9)
DELAYS_S = (0.0, 0.001, 0.01, 0.05, 0.15, 0.3)
FLOWS = {"guest-virtual": (1, 8, 32, 64), "guest-real": (1, 8, 64), "native": (1, 4, 16, 64)}

LIMIT_BITS = {"guest-virtual": 60e9, "guest-real": 6e9, "native": 100e9}
"""Cells of several flows that would send more than this are left out: they take minutes each. (A
guest moves about 1.8 Gbit per second of its core; single flows are all measured.)"""

BUSY_LIMIT_BITS = 3e9
"""The same on a busy machine in virtual time, which is to show that it makes no difference."""

TIMEOUT_S = 3600.0


def grid(backend: str, busy: bool) -> Iterator[tuple[int, float, float]]:
    """(flows, rate bit/s, one-way delay s), fewest bits first."""
    limit, limit_single = LIMIT_BITS[backend], float("inf")
    if busy and backend == "guest-virtual":
        limit = limit_single = BUSY_LIMIT_BITS
    cells = [
        (num_flows, rate_bps, delay_s)
        for num_flows in FLOWS[backend]
        for rate_bps in RATES_BPS
        for delay_s in DELAYS_S
        if _bits(num_flows, rate_bps, delay_s) <= (limit_single if num_flows == 1 else limit)
    ]
    return iter(sorted(cells, key=lambda cell: _bits(*cell)))


def _bits(num_flows: int, rate_bps: float, delay_s: float) -> float:
    return num_flows * rate_bps * (0.05 + (WARMUP_BDPS + MEASURED_BDPS) * 2 * delay_s)


def measure_cells(backend: str, busy: bool, cores: int) -> Iterator[Cell | str]:
    """Measure the grid: a cell, or why there is none. Runs where netbench may change the network,
    with /run private."""
    # A process on each of 128 nodes at once, with three pipes each.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    num_nodes = 2 * max(FLOWS[backend])
    nodes = namespaces.node_addresses([f"node{i}" for i in range(num_nodes)])
    namespaces.build(nodes, mtu_bytes=1500)
    addresses = [(node.address,) for node in nodes]
    for num_flows, rate_bps, delay_s in grid(backend, busy):
        pair = _pair(Link(one_way_delay_s=delay_s, bandwidth_bps=rate_bps))
        network = replace(
            pair, node_regions=(0, 1) * num_flows, nic_bps=(float("inf"),) * 2 * num_flows
        )
        programs = [
            program for flow in range(num_flows) for program in _programs(pair, addresses, flow)
        ]
        _tune(pair, 2 * num_flows)
        apply(programs, _run)
        samples = [
            Sample(kind="link", src=2 * flow, dsts=(2 * flow + 1,)) for flow in range(num_flows)
        ]
        found = measure(network, samples, addresses, _run)
        clear(programs, _run)
        errors = [measurement.error for measurement in found if measurement.error]
        if errors:
            yield f"{num_flows} x {rate_bps:g} bit/s, {delay_s:g} s: {errors[0]}"
            continue
        ratios = [
            (m.goodput_bps or 0.0) / (rate_bps * goodput_ratio(network.mtu_bytes)) for m in found
        ]
        way_s = delay_s + 8 * ECHO_FRAME_BYTES / rate_bps
        ways = [way - way_s for m in found for way in m.one_way_s if way is not None]
        rtts = [rtt - 2 * way_s for m in found for rtt in m.rtt_s if rtt is not None]
        if len(ways) < num_flows or len(rtts) < num_flows:
            yield f"{num_flows} x {rate_bps:g} bit/s, {delay_s:g} s: an echo was lost"
            continue
        yield Cell(
            backend=backend,
            busy=busy,
            cores=cores,
            num_flows=num_flows,
            bandwidth_bps=rate_bps,
            one_way_delay_s=delay_s,
            goodput_ratio=round(min(ratios), 6),
            fastest_ratio=round(max(ratios), 6),
            one_way_error_s=round(max(ways, key=abs), 9),
            rtt_error_s=round(max(rtts, key=abs), 9),
        )


def _pair(link: Link) -> Network:
    return Network(
        regions=("left", "right"), links=((link, link), (link, link)), node_regions=(0, 1),
        sharing="pair", nic_bps=(float("inf"),) * 2,
    )  # fmt: skip


def _programs(pair: Network, addresses: Sequence[tuple[str]], flow: int) -> list[Program]:
    """Those of the two nodes of a flow; no node needs rules for others than its peer."""
    mine = addresses[2 * flow : 2 * flow + 2]
    programs = compile_programs(pair, mine, namespaces.INTERFACE)
    return [replace(program, node=2 * flow + program.node) for program in programs]


def _tune(pair: Network, num_nodes: int) -> None:
    settings = [f"{name}={value}" for name, value in sysctls(pair).items()]
    for node in range(num_nodes):
        status, _, stderr = _run(node, ("sysctl", "-qw", *settings), "")
        if status:
            sys.exit(f"node {node}: {stderr}")


def _run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
    inside = ["nsenter", f"--net={namespaces.namespace_path(node)}", "--", *argv]
    done = subprocess.run(inside, input=stdin, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@contextlib.contextmanager
def other_work(busy: bool) -> Iterator[None]:
    """With `busy`, a process that never rests for every core."""
    argv = [sys.executable, "-c", "while True: pass"]
    workers = [subprocess.Popen(argv) for _ in range(os.cpu_count() or 1)] if busy else []
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def measure_backend(backend: str, busy: bool) -> tuple[Cell, ...]:
    """Run `measure_cells` in a kernel of the backend. Ends the program when that fails."""
    host = probe_host()
    argv = [sys.executable, "-m", "benchmarks.fidelity", "--inside", backend]
    argv += ["--cores", str(host.num_cores), *(["--busy"] if busy else [])]
    with other_work(busy), tempfile.TemporaryDirectory() as scratch:
        # Not over the guest's serial line: what is measured is on the disk at once.
        cells = Path(scratch) / "cells"
        argv += ["--output", str(cells)]
        if backend == "native":
            private = ["unshare", "--mount", "--net", "--", "sh", "-c"]
            mount = 'mount -t tmpfs run /run && exec "$@"'
            done = subprocess.run(
                [*private, mount, "sh", *argv], check=False, timeout=TIMEOUT_S, text=True,
                capture_output=True,
            )  # fmt: skip
            status, output = done.returncode, done.stderr
        else:
            status, output = run_in_guest(
                host, argv, virtual_time=backend == "guest-virtual", memory_bytes=8 << 30,
                timeout_s=TIMEOUT_S,
            )  # fmt: skip
        if status:
            sys.exit(f"measuring {backend} failed with status {status}:\n{output[-2000:]}")
        found = [json.loads(line) for line in cells.read_text().splitlines()]
    for problem in found:
        if isinstance(problem, str):
            print(f"  no figure for {problem}")
    return tuple(Cell(**cell) for cell in found if not isinstance(cell, str))


def main() -> None:
    """Measure, keep, write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", default="")
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
        native = ["native"] if probe_host().has_netem and os.geteuid() == 0 else []
        backends = arguments.backends.split(",") if arguments.backends else []
        for backend in backends or ["guest-virtual", "guest-real", *native]:
            for busy in (False, True):
                print(f"{backend}, {'busy' if busy else 'idle'} machine", flush=True)
                _keep(path, backend, busy, measure_backend(backend, busy))
    write_fidelity(path.parent.parent, read_cells(path))


def _keep(path: Path, backend: str, busy: bool, cells: Sequence[Cell]) -> None:
    """Replace the cells of this backend and state in the file."""
    old = read_cells(path) if path.exists() else ()
    kept = [cell for cell in old if (cell.backend, cell.busy) != (backend, busy)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(write_cells([*kept, *cells]))
    read_cells.cache_clear()


if __name__ == "__main__":
    main()
