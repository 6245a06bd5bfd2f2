"""Testbed comparisons of `make bench`; runs inside a guest and prints one JSON list per row.

A row is [what, method of netbench, seconds, alternative, seconds]. Where the alternative would take
minutes, both are timed on a part.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from netbench.network.shaping.apply import apply, clear
from netbench.network.shaping.program import Program, compile_programs
from netbench.scenario import load_scenario
from netbench.testbed.local import ForkServer, RankSetup
from netbench.testbed.namespaces import (
    build,
    kill_all,
    namespace_nodes,
    namespace_path,
    node_addresses,
)

NUM_FOR_PROCESSES = 4
"""Number of nodes shaped and ranks started where the alternative starts a process for each."""


def main() -> None:
    """Print all rows."""
    network = load_scenario("case3").network
    names = [f"node{i}" for i in range(network.num_nodes)]
    nodes = node_addresses(names)
    build(nodes, network.mtu_bytes)
    programs = compile_programs(network, [(n.address,) for n in nodes], nodes[0].interface, 1000.0)
    with fork_server() as server:
        row(
            f"{NUM_FOR_PROCESSES} ranks ready",
            ("forked from one parent", seconds(lambda: fork_ranks(server))),
            ("one Python each", seconds(start_ranks)),
        )
    few, reached = programs[:NUM_FOR_PROCESSES], namespace_nodes(nodes)
    batch_s = seconds(lambda: apply(few, reached))
    clear(few, reached)
    row(
        f"shaping {len(few)} nodes for {len(nodes) - 1} peers",
        ("one `tc -batch` per node", batch_s),
        ("one `tc` per rule", seconds(lambda: apply_one_by_one(few))),
    )


def row(what: str, own: tuple[str, float], other: tuple[str, float]) -> None:
    """Print a row. own, other: method and seconds."""
    print(json.dumps([what, *own, *other]), flush=True)


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    started_s = time.monotonic()
    work()
    return time.monotonic() - started_s


@contextlib.contextmanager
def fork_server() -> Iterator[ForkServer]:
    """A server that has imported torch, as it has when a run starts its second rank."""
    scratch = Path("/run/bench")
    scratch.mkdir()
    server = ForkServer(RankSetup(environment={}), scratch)
    fork_ranks(server, count=1)
    try:
        yield server
    finally:
        kill_all([server.process])


def fork_ranks(server: ForkServer, count: int = NUM_FOR_PROCESSES) -> None:
    channels = [server.fork(rank, rank) for rank in range(count)]
    for channel in channels:
        assert "started" in (channel.receive() or "")
        channel.close()


def start_ranks() -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "netbench.trainers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(NUM_FOR_PROCESSES)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert "started" in rank.stdout.readline()
        rank.kill()
        rank.wait()


def apply_one_by_one(programs: Sequence[Program]) -> None:
    for program in programs:
        inside = ["nsenter", f"--net={namespace_path(program.node)}", "--", "tc"]
        for rule in program.text.splitlines():
            subprocess.run([*inside, *rule.split()], check=True)


if __name__ == "__main__":
    main()
