"""The comparisons of `make bench`; runs inside a guest, prints one JSON list per row.

[what, how netbench does it, seconds, the other way, seconds]. Where the other way would take
minutes it is timed on a part and the seconds are of that part for both.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from netbench.network.apply import apply, clear
from netbench.network.program import Program, compile_programs
from netbench.scenario import load_scenario
from netbench.testbed.namespaces import NamespaceTransport, build, namespace_path, node_addresses

NUM_FOR_PROCESSES = 4
"""Nodes shaped, and ranks started, where the other way takes a process each."""


def main() -> None:
    """All rows, in order of a run."""
    network = load_scenario("case3").network
    names = [f"node{i}" for i in range(network.num_nodes)]
    nodes = node_addresses(names)
    build(nodes, network.mtu_bytes)
    programs = compile_programs(network, [(n.address,) for n in nodes], nodes[0].interface, 1000.0)
    with fork_server() as transport:
        row(
            f"{NUM_FOR_PROCESSES} ranks ready",
            ("forked from one parent", seconds(lambda: fork_ranks(transport))),
            ("one Python each", seconds(start_ranks)),
        )
        few = programs[:NUM_FOR_PROCESSES]
        batch_s = seconds(lambda: apply(few, transport.run))
        clear(few, transport.run)
        row(
            f"shaping {len(few)} nodes for {len(nodes) - 1} peers",
            ("one `tc -batch` per node", batch_s),
            ("one `tc` per rule", seconds(lambda: apply_one_by_one(few))),
        )


def row(what: str, ours: tuple[str, float], other: tuple[str, float]) -> None:
    """Print one. ours, other: how, and how many seconds it took."""
    print(json.dumps([what, *ours, *other]), flush=True)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started_s = time.monotonic()
    work()
    return time.monotonic() - started_s


@contextlib.contextmanager
def fork_server() -> Iterator[NamespaceTransport]:
    """A transport whose server has imported torch, as it has when a run starts its second rank."""
    scratch = Path("/run/bench")
    scratch.mkdir()
    transport = NamespaceTransport(scratch, {})
    fork_ranks(transport, count=1)
    try:
        yield transport
    finally:
        transport.close()


def fork_ranks(transport: NamespaceTransport, count: int = NUM_FOR_PROCESSES) -> None:
    channels = [transport.start_rank(rank, rank) for rank in range(count)]
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
