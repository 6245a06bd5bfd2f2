"""Updates in a real kernel: random ones, and packets that are counted while links change.

`python -m tests.network.update_in_guest`, as root in a kernel with netem. Exits with 1 and says
what was wrong, or with 0. Examples are the same every time.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.network.shaping import netlink
from netbench.network.shaping.apply import apply, clear, read_back
from netbench.network.shaping.program import Program, compile_program
from netbench.network.shaping.readback import KernelState, differences
from netbench.network.shaping.tc import TABLES
from netbench.network.shaping.update import is_replaced, update_text
from netbench.scenario.model import Link
from tests.network.fuzz_in_guest import FIXED
from tests.network.inside_guest import ADDRESSES, NODES, build, run
from tests.network.strategies import programs
from tests.networks import two_regions

NUM_SEQUENCES = 25
SEQUENCE_LENGTH = 4
NUM_UPDATES = 50
PACKET_S = 0.005
EARLY_S = 2e-6
"""netem keeps times in ticks of 64 ns."""
COUNTERS = ("bytes", "packets", "drops", "overlimits", "backlog", "qlen")

loaded: list[Program] = []
updates: list[str] = []


def read(program: Program) -> KernelState:
    return netlink.read(Path("/run/netns/n0"), program.interface)


@settings(FIXED, max_examples=NUM_SEQUENCES)
@given(
    st.lists(
        programs() | programs(min_nodes=257, max_nodes=260),
        min_size=SEQUENCE_LENGTH,
        max_size=SEQUENCE_LENGTH,
    )
)
def random_updates(sequence: Sequence[Program]) -> None:
    """tc accepts the difference, without a gap; then both ways of reading find the program."""
    for number, drawn in enumerate(sequence):
        program = replace(drawn, node=0)
        if number:
            assert not is_replaced(program, read(program))
            updates.append(update_text(program, read(program)))
        apply([program], NODES, read=read if number % 2 else None)
        found = read(program)
        assert not differences(program, found), "\n".join(differences(program, found))
        assert update_text(program, found) == ""
        (shown,) = read_back([program], NODES)
        assert not shown.problems, "\n".join(shown.problems)
        loaded.append(program)
    clear([replace(sequence[0], node=0)], NODES)


@dataclass
class Trip:
    """One packet: seconds, by the clock all namespaces share."""

    sent_s: float
    took_s: float


class Stream:
    """UDP packets from node 0 to node 1 until it is left; then `trips`, and how many got lost."""

    def __init__(self) -> None:
        self._ends = False
        self._sent: list[float] = []
        self._came: dict[int, float] = {}
        self._receiver, self._sender = _udp_socket(1), _udp_socket(0)
        self._receiver.bind((ADDRESSES[1][0], 9000))
        self._receiver.settimeout(2.0)
        self._threads = [threading.Thread(target=x) for x in (self._send, self._receive)]

    def __enter__(self) -> Stream:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        for thread in self._threads:
            thread.join()

    @property
    def trips(self) -> list[Trip]:
        return [Trip(self._sent[i], came - self._sent[i]) for i, came in self._came.items()]

    @property
    def num_lost(self) -> int:
        return len(self._sent) - len(self._came)

    def _send(self) -> None:
        while not self._ends:
            self._sent.append(time.monotonic())
            self._sender.sendto(str(len(self._sent) - 1).encode(), (ADDRESSES[1][0], 9000))
            time.sleep(PACKET_S)

    def _receive(self) -> None:
        try:
            while True:
                number = int(self._receiver.recv(100))
                self._came[number] = time.monotonic()
        except TimeoutError:
            pass


def _udp_socket(node: int) -> socket.socket:
    with netlink.inside(Path(f"/run/netns/n{node}")):
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def slow(delay_s: float, sharing: str = "pair", **fields: object) -> Program:
    link = Link(one_way_delay_s=delay_s, bandwidth_bps=1e9, **fields)  # type: ignore[arg-type]
    network = two_regions(link, link, num_nodes=4, sharing=sharing, nic_bps=2e9)
    return compile_program(network, 0, ADDRESSES, "eth0")


def check_stream(name: str, wanted: Sequence[Program], may_lose: bool) -> Iterator[str]:
    """No packet is faster than the fastest program: none was unshaped for a moment."""
    apply([wanted[0]], NODES, read=read)
    with Stream() as stream:
        for program in wanted:
            apply([program], NODES, read=read)
            time.sleep(0.1 if may_lose else 0.03)
    clear([wanted[0]], NODES)
    fastest_s = min(leaf.delay_us for program in wanted for leaf in program.leaves) * 1e-6
    early = [trip for trip in stream.trips if trip.took_s < fastest_s - EARLY_S]
    print(f"{name}: {len(stream.trips)} packets, {stream.num_lost} lost, fastest "
          f"{min(trip.took_s for trip in stream.trips):.6f} s of {fastest_s:.6f} s")  # fmt: skip
    if early:
        yield f"{name}: {len(early)} packets were early, one took {early[0].took_s} s"
    if stream.num_lost and not may_lose:
        yield f"{name}: {stream.num_lost} packets were lost"
    if len(stream.trips) < 100:
        yield f"{name}: only {len(stream.trips)} packets came"


def check_streams() -> Iterator[str]:
    """In place nothing is lost; where a class moves or a netem is made again, what is queued is."""
    dice = random.Random(4)
    delays_s = [dice.uniform(0.01, 0.06) for _ in range(NUM_UPDATES)]
    plain = [slow(delay_s) for delay_s in delays_s]
    yield from check_stream("changed in place", plain, may_lose=False)
    mixed = [slow(s, ("pair", "class")[i % 2]) for i, s in enumerate(delays_s)]
    yield from check_stream("other classes", mixed, may_lose=True)
    capped = [slow(s, ("pair", "nic")[i % 2]) for i, s in enumerate(delays_s)]
    yield from check_stream("a NIC cap comes and goes", capped, may_lose=True)
    kinds = sorted(TABLES)
    jittery = [
        slow(s, jitter_s=1e-6, jitter_distribution=kinds[i % 4]) for i, s in enumerate(delays_s)
    ]
    yield from check_stream("other distributions", jittery, may_lose=True)


def check_gap() -> Iterator[str]:
    """Foreign parts of netbench's qdisc go with it. The time without shaping is printed."""
    program = slow(0.02)
    apply([program], NODES, read=read)
    foreign = "class add dev eth0 parent 6e62:2 classid 6e62:77 htb rate 1mbit"
    assert run(0, ("tc", *foreign.split()), "")[0] == 0
    started_s = time.monotonic()
    apply([program], NODES, read=read)
    print(f"replaced as a whole, in {time.monotonic() - started_s:.6f} s by this clock")
    if differences(program, read(program)):
        yield "what was replaced as a whole is not as planned"
    clear([program], NODES)


def check_counters() -> Iterator[str]:
    """They are as tc prints them: of five packets at once, three wait and two do not fit."""
    program = slow(1.0, queue_packets=3)
    apply([program], NODES, read=read)
    with _udp_socket(0) as sender:
        for _ in range(5):
            sender.sendto(bytes(100), (ADDRESSES[1][0], 9000))
    printed = json.loads(run(0, ("tc", "-s", "-j", "qdisc", "show", "dev", "eth0"), "")[1])
    found = netlink.read_leaves(Path("/run/netns/n0"), program.interface)
    for leaf in (qdisc for qdisc in printed if "parent" in qdisc):
        counted = {name: found[leaf["parent"]][name] for name in COUNTERS}
        if counted != {name: leaf[name] for name in COUNTERS}:
            yield f"{leaf['parent']} has counted {counted}, and tc printed {leaf}"
    waiting = found["6e62:2"]
    if (waiting["qlen"], waiting["drops"]) != (3, 2) or len(found) != len(program.leaves):
        yield f"five packets to a queue of three: {found}"
    clear([program], NODES)


def main() -> int:
    """Run all checks; print what failed."""
    build(4)
    random_updates()
    print(f"random: {len(loaded)} programs, {len(updates)} updates, "
          f"{sum(map(len, map(str.splitlines, updates)))} lines")  # fmt: skip
    problems = [*check_streams(), *check_gap(), *check_counters()]
    for problem in problems:
        print(f"FAILED: {problem}")
    print("all as planned" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
