"""The real gloo on four shaped nodes of the guest, against closed forms written here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from netbench.records import Run, find_run, read_run
from netbench.testbed.guest.boot import HANG_S

pytestmark = pytest.mark.guest

NUM_NODES = 4
DELAY_S = 0.01
SIZE_BYTES = 8 << 20
BYTE_S = 8 / 1e9 * (1500 + 14) / (1500 - 52)
"""Seconds per byte of payload at 1 Gbit/s and MTU 1500: Ethernet, IP, TCP and its timestamps."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three ops, each in a guest of its own."""
    results = tmp_path_factory.mktemp("collective")
    options = (
        f"p2p all-reduce central-ps --nodes {NUM_NODES} --bytes 8MiB --delay 10ms --rate 1Gbit "
        f"--iterations 2 --warmup 3 --results {results}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "netbench", "collective", *options.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    path = find_run(Path(results), "collective-uniform")
    assert path is not None
    return read_run(path)


def iterations_s(run: Run, op: str) -> list[float]:
    """Measured seconds of an op; there are two."""
    times_s = [r.iteration_s for r in run.records if r.variant == op and not r.warmup]
    assert len(times_s) == 2
    return times_s


def test_the_network_was_verified_and_the_records_say_what_they_are(run: Run) -> None:
    """Emulated, of system `collective`, on a network that passed its probe: one for all three."""
    assert [probe.result["trustworthy"] for probe in run.probes] == [True]
    assert run.verdicts[-1].trustworthy
    assert {(r.system, r.source) for r in run.records} == {("collective", "emulated")}


def test_a_transfer_takes_its_bytes_and_one_round_trip(run: Run) -> None:
    """Both ends start at once; the receiver's word that it is ready travels one way, the data back
    the other. Nothing else waits: the connection is warm."""
    expected_s = SIZE_BYTES * BYTE_S + 2 * DELAY_S
    assert iterations_s(run, "p2p") == pytest.approx([expected_s] * 2, rel=0.01)


def test_an_all_reduce_is_two_rings_of_segments(run: Run) -> None:
    """8 segments of 1 MiB, 6 of which go round twice, two under way: each pair waits for a round
    trip, since a segment (8.8 ms) is shorter than that."""
    segment_s = (1 << 20) * BYTE_S
    ring_s = 6 / 2 * (2 * DELAY_S + segment_s) + segment_s
    assert iterations_s(run, "all-reduce") == pytest.approx([2 * ring_s] * 2, rel=0.02)


def test_a_server_is_slower_than_a_ring_and_says_which_part(run: Run) -> None:
    """The parts add up to the iteration; the larger is the broadcast, a tree of two levels."""
    for record in run.records:
        if record.variant == "central-ps" and not record.warmup:
            assert sum(record.phases.values()) == pytest.approx(record.iteration_s, abs=1e-3)
            two_levels_s = 2 * (DELAY_S + SIZE_BYTES * BYTE_S)
            assert record.phases["broadcast_s"] >= two_levels_s * 0.99
            assert record.phases["broadcast_s"] > record.phases["reduce_s"]
    assert min(iterations_s(run, "central-ps")) > max(iterations_s(run, "all-reduce"))
