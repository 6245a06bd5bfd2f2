"""Run one pipeline of Megatron over plain sockets: one connection per direction, or NCCL's 16.

    python -m benchmarks.pipeline_sockets

An emulation has one connection where NCCL has 16 (`benchmarks/sockets.py` compares them message by
message). Here eight stages exchange messages as 1F1B says, in a guest in virtual time: the slowest
pipeline of case 5's megatron-p8-random with seed 2023, whose idle times decide whether windows
shrink. One connection is also run with segments divided by 32, as emulations are. Prints the
seconds of iterations of `MICRO_BATCHES` as a markdown table.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.dynamics import LINUX, MIB
from benchmarks.guest import run_in_guest, shaped_nodes
from benchmarks.sockets import NUM_SOCKETS, PART_BYTES, connect
from netbench.network.shaping.segments import divided, goodput_ratio
from netbench.plan.schedules import BACKWARD, FORWARD, Exchange, Work, build_programs, user
from netbench.scenario.load import load_scenario
from netbench.scenario.model import Network
from netbench.testbed.guest.cache import ensure_kernel
from netbench.testbed.machine.capabilities import probe_machine

CASE = "case5"
REGIONS = ("London", "London", "Tokyo", "Seoul", "Frankfurt", "Seoul", "Frankfurt", "Tokyo")
"""Regions of the stages, in order."""

SIZE = 8 * MIB
"""Activations of a micro-batch of GPT-XL, bytes."""

PASSES_S = {FORWARD: 0.015, BACKWARD: 0.045}
"""Seconds of three layers on a V100 (docs/calibration.md)."""

MICRO_BATCHES = (64, 128, 128, 128)
SERIES = ((1, 32.0), (1, 1.0), (NUM_SOCKETS, 1.0))
"""Connections per direction, and divisor of bytes and segments."""

WAIT_S = 0.002
"""Seconds after which a rank tries a full socket again."""

TIMEOUT_S = 3000.0


@dataclass(slots=True)
class Peer:
    """The connections of a rank with a neighbour. lasting_s: least time of a send.

    queue: (connection, bytes) that are not sent yet. turn: connection of the next part. missing:
    bytes that are asked for.
    """

    out: Sequence[socket.socket]
    into: Sequence[socket.socket]
    lasting_s: float
    queue: deque[tuple[int, int]] = field(default_factory=deque)
    turn: int = 0
    missing: int = 0

    def enqueue(self, size: int, part: int) -> None:
        """Share a message among the connections, which take parts in turn."""
        for first in range(0, size, part):
            self.queue.append((self.turn % len(self.out), min(part, size - first)))
            self.turn += 1

    def push(self) -> None:
        """Send what the connections take."""
        full = 0
        while full < len(self.queue):
            index, count = self.queue[0]
            try:
                sent = self.out[index].send(bytes(count))
            except BlockingIOError:
                self.queue.rotate(-1)
                full += 1
                continue
            full = 0
            self.queue.popleft()
            if sent < count:
                self.queue.appendleft((index, count - sent))


def pipeline_network(sockets: int) -> Network:
    """Return the network of the pipeline's nodes, whose connections stand for `sockets` each."""
    network = load_scenario(CASE).network
    names = network.regions
    return replace(
        network,
        node_regions=tuple(names.index(region) for region in REGIONS),
        nic_bps=network.nic_bps[: len(REGIONS)],
        tcp=replace(LINUX, sockets=sockets),
    )


def run_rank(
    stage: int, peers: Mapping[int, Peer], counts: Sequence[int], size: int, start_s: float
) -> list[float]:
    """Run iterations of `counts` micro-batches, each from a common start; return their seconds."""
    found, buffer, part = [], bytearray(MIB), max(1, round(PART_BYTES * size / SIZE))
    with selectors.DefaultSelector() as selector:
        for peer in peers.values():
            for end in peer.into:
                selector.register(end, selectors.EVENT_READ, peer)
        for count in counts:
            (programs,) = build_programs("1f1b", len(REGIONS), count, 1)
            time.sleep(max(0.0, start_s - time.monotonic()))
            for step in programs[stage]:
                if isinstance(step, Work):
                    time.sleep(PASSES_S[step.kind])
                else:
                    exchange(step, peers, selector, buffer, (size, part))
            found.append(time.monotonic() - start_s)
            start_s += 60 + 4 * count  # long after the end: a micro-batch takes 1 to 2.5 s
    return found


def exchange(
    step: Exchange,
    peers: Mapping[int, Peer],
    selector: selectors.BaseSelector,
    buffer: bytearray,
    sizes: tuple[int, int],
) -> None:
    """Send and receive messages, in parts, `sizes`; wait for those that come, and as long as those
    that go need on an idle path."""
    size, part = sizes
    until_s = began_s = time.monotonic()
    for message in step.sends:
        peer = peers[user(message).virtual_stage]
        peer.enqueue(size, part)
        until_s = max(until_s, began_s + peer.lasting_s)
    for message in step.receives:
        peers[message.virtual_stage].missing += size
    while True:
        for peer in peers.values():
            peer.push()
        is_full = any(peer.queue for peer in peers.values())
        if not is_full and not any(peer.missing for peer in peers.values()):
            break
        for key, _ in selector.select(WAIT_S if is_full else None):
            if not key.data.missing:  # for a later exchange: it stays in the kernel
                time.sleep(WAIT_S)
                continue
            view = memoryview(buffer)[: key.data.missing]
            key.data.missing -= key.fileobj.recv_into(view)  # type: ignore[union-attr]
    time.sleep(max(0.0, until_s - time.monotonic()))


def measure(real: int, scale: float) -> list[float]:
    """Return the seconds of the iterations. Needs root and a private /run: runs in a guest."""
    full = pipeline_network(NUM_SOCKETS // real)
    network = divided(full, scale)
    names = [f"stage{stage}" for stage in range(len(REGIONS))]
    with shaped_nodes(names, network) as nodes, ExitStack() as open_until:
        peers: list[dict[int, Peer]] = [{} for _ in nodes]
        for left in range(len(nodes) - 1):
            address = nodes[left + 1].address
            here, there = connect(address, 2 * real, open_until, sender=left)
            link = full.link(left, left + 1)
            payload_bps = link.bandwidth_bps * goodput_ratio(full.mtu_bytes)
            lasting_s = link.one_way_delay_s + 8 * SIZE / payload_bps
            peers[left][left + 1] = Peer(here[:real], here[real:], lasting_s)
            peers[left + 1][left] = Peer(there[real:], there[:real], lasting_s)
        times_s = fork_ranks(peers, round(SIZE / scale))
    return [max(of_ranks) for of_ranks in zip(*times_s, strict=True)]


def fork_ranks(peers: Sequence[Mapping[int, Peer]], size: int) -> list[list[float]]:
    """Run every rank in a process of its own; return the seconds of each."""
    start_s, pipes = time.monotonic() + 2, []
    for stage, of_stage in enumerate(peers):
        reader, writer = os.pipe()
        if os.fork() == 0:
            times_s = run_rank(stage, of_stage, MICRO_BATCHES, size, start_s)
            os.write(writer, json.dumps(times_s).encode())
            os._exit(0)
        os.close(writer)
        pipes.append(reader)
    found = []
    for reader in pipes:
        with os.fdopen(reader, encoding="utf-8") as answer:
            found.append(json.loads(answer.read()))
    for _ in peers:
        os.wait()
    return found


def table(found: Sequence[tuple[int, float, Sequence[float]]]) -> str:
    """Return connections, scale and seconds as markdown."""
    lines = [
        f"| connections | scale | {' | '.join(map(str, MICRO_BATCHES))} |",
        f"|--:|--:|{'--:|' * len(MICRO_BATCHES)}",
    ]
    for real, scale, times_s in found:
        lines.append(
            f"| {real} | {scale:g} | {' | '.join(f'{time_s:.1f}' for time_s in times_s)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure in guests and print, or with --inside do what a guest is to do."""
    if sys.argv[1:2] == ["--inside"]:
        print(json.dumps(measure(int(sys.argv[2]), float(sys.argv[3]))), flush=True)
        return
    ensure_kernel()
    found = []
    for real, scale in SERIES:
        argv = [sys.executable, "-m", "benchmarks.pipeline_sockets", "--inside"]
        argv += [str(real), str(scale)]
        status, output = run_in_guest(
            probe_machine(), argv, memory_bytes=6 << 30, timeout_s=TIMEOUT_S
        )
        if status:
            sys.exit(f"the guest ended with status {status}:\n{output[-2000:]}")
        times = [line for line in output.splitlines() if line.startswith("[")][-1]
        found.append((real, scale, json.loads(times)))
    print(table(found))


if __name__ == "__main__":
    if not Path("results").is_dir():
        sys.exit("run it in the repository: python -m benchmarks.pipeline_sockets")
    main()
