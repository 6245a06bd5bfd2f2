"""Cells on Dask workers against one worker, and against the processes of this machine.

    python -m benchmarks.dask [--points N] [--rounds N] [--cells N]

Workers are started by hand, outside the times. A sweep is the whole command, from its start to its
end, with one worker, with two, and with two processes without Dask, one after the other in every
round. All have to write the same CSV file. Then a small scenario is emulated on 8 nodes, here and
on two workers, and the records are compared. `--cells 0` leaves this out. Exit code 1: something
differs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from netbench.records import find_run, read_run

NETBENCH = (sys.executable, "-P", "-m", "netbench")
START_S = 120.0

SCENARIO = """\
name: eight
regions: [A, B]
nodes: [{region: A, count: 4, device: Box}, {region: B, count: 4, device: Box}]
network:
  inside: {one_way_delay: 1ms, bandwidth: 1Gbit}
  links: [{between: [A, B], one_way_delay: 20ms, bandwidth: 200Mbit}]
devices: {Box: {flops: 10TFLOPS, memory: 16GB, source: made up}}
workload: {layers: 8, hidden: 512, heads: 8, sequence: 1024, batch: 16}
"""

SYSTEMS = ("megatron", "ddp", "zero3", "dtfm-random")
"""Systems of the emulated cells. The last, whose placement is random, has as many seeds as cells
are left."""


@contextmanager
def cluster(folder: Path, num_workers: int) -> Iterator[str]:
    """Start a scheduler and workers with one thread each; yield the scheduler's address."""
    file = folder / f"scheduler-{num_workers}.json"
    options = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
    worker = ["worker", "--nthreads", "1", "--memory-limit", "0", *options]
    commands = [["scheduler", "--port", "0", *options], *[worker] * num_workers]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen([sys.executable, "-m", "dask", *one], **quiet) for one in commands]
    try:
        end_s = time.monotonic() + START_S
        while not file.exists():
            if time.monotonic() > end_s:
                sys.exit("the Dask scheduler did not start")
            time.sleep(0.1)
        yield str(json.loads(file.read_text())["address"])
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def command_s(words: Sequence[str], folder: Path) -> float:
    """Return the seconds that a netbench command takes. Exits if it fails."""
    start_s = time.monotonic()
    done = subprocess.run(
        [*NETBENCH, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.decode()}")
    return time.monotonic() - start_s


def sweeps(folder: Path, num_points: int, num_rounds: int) -> None:
    """Time sweeps and print ratios, each of two runs of the same round."""
    side = math.isqrt(num_points)
    grid = [f"--vary=bandwidth=0.1x..10x:{side}", f"--vary=delay=0.1x..10x:{side}"]
    sweep = ["sweep", "case3", "--system", "dtfm-random", *grid, "--csv"]
    times: dict[str, list[float]] = {"one worker": [], "two workers": [], "two processes": []}
    cores = set(sorted(os.sched_getaffinity(0))[:2])
    os.sched_setaffinity(0, cores)
    with cluster(folder, 1) as one, cluster(folder, 2) as two:
        where = {"one worker": ["--dask", one], "two workers": ["--dask", two], "two processes": []}
        for number in range(num_rounds):
            for name, options in where.items():
                csv = folder / f"{name.replace(' ', '-')}.csv"
                times[name].append(command_s([*sweep, str(csv), *options], folder))
                print(f"round {number + 1}, {name}: {times[name][-1]:.1f} s", flush=True)
            files = {path.read_bytes() for path in folder.glob("*.csv")}
            if len(files) != 1:
                sys.exit("the sweeps found different times")
    pairs = list(zip(times["one worker"], times["two workers"], strict=True))
    faster = [first / second for first, second in pairs]
    local = zip(times["two workers"], times["two processes"], strict=True)
    overhead = [with_dask / without - 1 for with_dask, without in local]
    print(f"{side * side} points, {num_rounds} rounds, load average {os.getloadavg()[1]:.1f}")
    print(f"two workers against one: {statistics.median(faster):.2f} times as fast {faster}")
    print(f"two workers against two processes: {statistics.median(overhead):+.1%} {overhead}")


def emulations(folder: Path, num_cells: int) -> None:
    """Emulate plans here and on two workers, and compare their records. Exits if they differ."""
    (folder / "eight.yaml").write_text(SCENARIO)
    num_seeds = max(1, num_cells - len(SYSTEMS) + 1)
    seeds = ",".join(str(seed) for seed in range(1, num_seeds + 1))
    run = ["run", "eight.yaml", "--systems", ",".join(SYSTEMS), "--seeds", seeds, "--results"]
    with cluster(folder, 2) as address:
        seconds = [command_s([*run, "here"], folder)]
        seconds.append(command_s([*run, "dask", "--dask", address], folder))
    found = []
    for results in ("here", "dask"):
        path = find_run(folder / results, "eight")
        assert path is not None
        found.append({(one.plan_hash, one.iteration): one for one in read_run(path).records})
    here, there = found
    if here.keys() != there.keys():
        sys.exit("the runs have different iterations")
    apart = {key: abs(there[key].iteration_s / here[key].iteration_s - 1) for key in here}
    print(f"emulated here: {seconds[0]:.0f} s, on two workers: {seconds[1]:.0f} s")
    print(
        f"{len({plan for plan, _ in here})} cells, {len(here)} iterations in both; largest "
        f"difference of an iteration: {max(apart.values()):.2g}; equal to the bit: "
        f"{sum(not value for value in apart.values())}"
    )
    if any(apart.values()):
        sys.exit("the times differ")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dask", description="Measure cells on Dask workers."
    )
    parser.add_argument("--points", type=int, default=10_000, help="points of the sweep")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of sweeps; 0 = none")
    parser.add_argument("--cells", type=int, default=20, help="emulated plans; 0 = none")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="netbench-dask-") as folder:
        if arguments.rounds:
            sweeps(Path(folder), arguments.points, arguments.rounds)
        if arguments.cells:
            emulations(Path(folder), arguments.cells)


if __name__ == "__main__":
    main()
