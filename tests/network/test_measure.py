"""The probe itself, over loopback, and what is made of its answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from netbench.network.measure import measure
from netbench.network.verify import Sample, transfer_bytes
from netbench.scenario.model import Link
from tests.network.shaping_cases import UNLIMITED, two_regions

LOOPBACK = [(f"127.{os.getpid() // 200 % 200 + 1}.{os.getpid() % 200 + 1}.{node + 1}",)
            for node in range(4)]  # fmt: skip
"""An address per node that no other run of these tests has."""


def run_here(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
    done = subprocess.run(
        argv, input=stdin, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def run_without_ping(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
    done = subprocess.run(
        argv, input=stdin, capture_output=True, text=True, check=False, timeout=60,
        env={"PATH": str(Path(sys.executable).parent)},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_probe_measures_delay_and_goodput_without_ping() -> None:
    """Everything but the interpreter is in the file sent to the node."""
    network = two_regions(Link(one_way_delay_s=0.0, bandwidth_bps=1e9))
    samples = [Sample(kind="link", src=0, dsts=(1,))]
    (found,) = measure(network, samples, LOOPBACK, run_without_ping)
    assert (found.error, found.method) == ("", "udp")
    (rtt_s,), (one_way_s,) = found.rtt_s, found.one_way_s
    assert rtt_s is not None
    assert one_way_s is not None
    assert 0 < one_way_s < rtt_s < 1
    assert found.goodput_bps is not None
    assert found.goodput_bps > 0


def test_an_unlimited_link_is_measured_for_delay_only() -> None:
    """There is nothing to compare a transfer with, so none is made."""
    samples = [Sample(kind="link", src=2, dsts=(3,))]
    (found,) = measure(two_regions(UNLIMITED), samples, LOOPBACK, run_without_ping)
    assert found.error == ""
    assert found.goodput_bps is None
    assert found.rtt_s[0] is not None


def test_flows_to_several_destinations_are_timed_together() -> None:
    """One source, two destinations at once: both took all that was sent, or there is an error."""
    network = two_regions(UNLIMITED, UNLIMITED, sharing="nic", nic_bps=1e9)
    (found,) = measure(network, [Sample(kind="nic", src=0, dsts=(2, 3))], LOOPBACK, run_here)
    assert found.error == ""
    assert all(found.one_way_s)
    assert len(found.one_way_s) == len(found.rtt_s) == 2


def test_a_node_that_fails_spoils_its_own_sample_only() -> None:
    """The reason is kept with the sample; the others have their figures."""
    network = two_regions()
    samples = [Sample(kind="link", src=0, dsts=(1,)), Sample(kind="link", src=2, dsts=(3,))]

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        if node == 1:
            return 1, "", "Traceback ...\nOSError: [Errno 98] Address already in use\n"
        if argv[2] == "serve":
            total = int(argv[4])
            arrivals = [(1_000_000 * i, total * i // 10) for i in range(1, 11)]
            return 0, json.dumps({"arrivals": arrivals}), ""
        return 0, '{"method": "ping", "rtt_s": [0.002], "one_way_s": [0.001]}', ""

    broken, good = measure(network, samples, LOOPBACK, run)
    assert "node 1: " in broken.error
    assert "Address already in use" in broken.error
    assert (good.error, good.method, good.rtt_s) == ("", "ping", (0.002,))
    total = sum(transfer_bytes(network, samples[1], 1.0))
    assert good.goodput_bps == pytest.approx(8 * total / 0.01, rel=1e-6)


def test_samples_run_one_by_one_where_they_would_compete() -> None:
    """In real time two transfers at once measure the processor, not the network."""
    running: list[int] = []
    at_most: list[int] = []

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        running.append(node)
        at_most.append(len(running))
        running.remove(node)
        served = {"arrivals": [(1, 10**6), (2, 10**9)]}
        echoed = {"method": "ping", "rtt_s": [0.002], "one_way_s": [0.001]}
        return 0, json.dumps(served if argv[2] == "serve" else echoed), ""

    samples = [Sample(kind="link", src=0, dsts=(1,)), Sample(kind="link", src=2, dsts=(3,))]
    found = measure(two_regions(), samples, LOOPBACK, run, at_the_same_time=False)
    assert [f.sample for f in found] == samples
    assert max(at_most) <= 2
