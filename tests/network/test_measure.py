"""The probe itself, over loopback, and what is made of its answers."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netbench.network import measure as measuring
from netbench.network import probe
from netbench.network.measure import Setting, measure, measure_as_is
from netbench.network.samples import transfer_bytes
from netbench.network.verify import Sample, sample_links
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


def job_of(stdin: str) -> dict[str, Any]:
    """What a node is told to do: the last line it is sent."""
    line = stdin.strip().splitlines()[-1]
    job: dict[str, Any] = json.loads(ast.literal_eval(line[len("main(") : -1]))
    return job


def answer(job: dict[str, Any], offset_s: float = 0.0, wait_offset_s: float = 0.0) -> str:
    """Of a node on which every flow has one byte per nanosecond, by its own clock."""
    if job["op"] == "measure":
        each = [0.001] * len(job["addresses"])
        found = {"method": "ping", "rtt_s": each, "one_way_s": each}
        offsets = {"offset_s": [offset_s] * len(each), "wait_offset_s": wait_offset_s}
        return json.dumps({**found, **offsets})
    flows = [
        [[[round(1e9 * offset_s) + total * i // 10, total * i // 10] for i in range(1, 11)]]
        * (job["num_sources"] * num)
        for num, total in zip(job["streams"], job["total_bytes"], strict=True)
    ]
    return json.dumps({"arrivals": flows, "trains": []})


def test_a_node_that_fails_spoils_its_own_sample_only() -> None:
    """The reason is kept with the sample; the others have their figures."""
    network = two_regions()
    samples = [Sample(kind="link", src=0, dsts=(1,)), Sample(kind="link", src=2, dsts=(3,))]

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        if node == 1:
            return 1, "", "Traceback ...\nOSError: [Errno 98] Address already in use\n"
        return 0, answer(job_of(stdin)), ""

    broken, good = measure(network, samples, LOOPBACK, run)
    assert "node 1: " in broken.error
    assert "Address already in use" in broken.error
    assert (good.error, good.method, good.rtt_s) == ("", "ping", (0.001,))
    assert good.goodput_bps == pytest.approx(8e9, rel=1e-6)


def test_no_token_is_in_the_arguments_and_none_is_used_twice() -> None:
    """Arguments of a process can be read by everybody on a machine."""
    tokens: list[tuple[int, str]] = []
    words: set[str] = set()

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        job = job_of(stdin)
        tokens.append((node, job["token"]))
        words.update(argv)
        return 0, answer(job), ""

    samples = [Sample(kind="link", src=0, dsts=(1,)), Sample(kind="link", src=1, dsts=(0,))]
    measure(two_regions(), samples, LOOPBACK, run, python="python3")
    assert words == {"python3", "-I", "-S", "-"}
    assert len(tokens) == 4
    assert len({token for _, token in tokens}) == 2


def test_samples_run_one_by_one_where_they_would_compete() -> None:
    """In real time two transfers at once measure the processor, not the network."""
    running: list[int] = []
    at_most: list[int] = []

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        running.append(node)
        at_most.append(len(running))
        running.remove(node)
        return 0, answer(job_of(stdin)), ""

    samples = [Sample(kind="link", src=0, dsts=(1,)), Sample(kind="link", src=2, dsts=(3,))]
    seen: list[tuple[int, int]] = []
    found = measure(
        two_regions(), samples, LOOPBACK, run, at_the_same_time=False,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert [f.sample for f in found] == samples
    assert max(at_most) <= 2
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_several_connections_are_told_apart_from_one() -> None:
    """One byte per nanosecond each: eight of them carry eight times as much."""
    samples = [Sample(kind="link", src=0, dsts=(1,), streams=8)]
    (found,) = measure(
        two_regions(), samples, LOOPBACK, lambda _, __, stdin: (0, answer(job_of(stdin)), "")
    )
    assert found.goodput_bps == pytest.approx(8e9, rel=1e-3)
    assert found.streams_goodput_bps == pytest.approx(64e9, rel=1e-3)


@pytest.mark.parametrize("shared_clock", [True, False])
def test_flows_of_nodes_with_clocks_of_their_own_are_put_together(shared_clock: bool) -> None:
    """Clocks 1000 s apart: what two destinations saw at once looks as if it had been hours apart,
    unless the offsets that the source found are taken off."""

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        job = job_of(stdin)
        text = json.loads(answer(job, offset_s=1000.0 * node))
        if job["op"] == "measure":
            text["offset_s"] = [1000.0 * 2, 1000.0 * 3]
        return 0, json.dumps(text), ""

    network = two_regions(UNLIMITED, UNLIMITED, sharing="nic", nic_bps=1e9)
    samples = [Sample(kind="nic", src=0, dsts=(2, 3))]
    (found,) = measure(network, samples, LOOPBACK, run, shared_clock=shared_clock)
    expected = None if shared_clock else pytest.approx(16e9, rel=1e-3)
    assert found.goodput_bps == expected


def test_sources_of_a_trunk_meet_and_share_its_clock() -> None:
    """Nodes 0 and 1 send to 2 and 3, all with clocks of their own; both wait at node 2."""
    clock_s = {0: 5.0, 1: -70.0, 2: 0.0, 3: 900.0}
    jobs: dict[tuple[str, int], dict[str, Any]] = {}

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        job = jobs[job_of(stdin)["op"], node] = job_of(stdin)
        text = json.loads(answer(job, offset_s=clock_s[node]))
        if job["op"] == "measure":
            text["offset_s"] = [clock_s[node + 2] - clock_s[node]]
            text["wait_offset_s"] = clock_s[2] - clock_s[node]
        return 0, json.dumps(text), ""

    network = two_regions(sharing="trunk")
    samples = [sample for sample in sample_links(network) if sample.kind == "trunk"]
    assert samples[0].flows == ((0, 2), (1, 3))
    (found,) = measure(network, samples[:1], LOOPBACK, run, shared_clock=False)
    assert found.error == ""
    assert found.goodput_bps == pytest.approx(16e9, rel=1e-3)
    waiting = {node: jobs["serve", node]["num_waiting"] for node in (2, 3)}
    assert waiting == {2: 2, 3: 0}
    assert {jobs["measure", node]["wait_at"] for node in (0, 1)} == {LOOPBACK[2][0]}


def test_two_sources_send_to_one_destination() -> None:
    """A region with one node: it takes both flows of the trunk, or there would be an error."""
    network = replace(
        two_regions(sharing="trunk", num_nodes=3), node_regions=(0, 0, 1), nic_bps=(math.inf,) * 3
    )
    samples = [sample for sample in sample_links(network) if sample.kind == "trunk"]
    assert [sample.flows for sample in samples] == [((0, 2), (1, 2)), ((2, 0), (2, 1))]
    for found in measure(network, samples, LOOPBACK, run_here):
        assert found.error == ""
        assert len(found.rtt_s) == 2
        assert all(found.rtt_s)


def test_jitter_and_loss_are_measured_where_the_link_has_them_or_when_asked() -> None:
    """Over loopback, where there is neither: a thousand packets arrive in order."""
    network = two_regions(UNLIMITED)
    plain = Sample(kind="link", src=0, dsts=(1,))
    asked = replace(plain, thorough=True)
    without, found = measure(network, [plain, asked], LOOPBACK, run_without_ping)
    assert (without.trains, without.train_results) == ((), ())
    (result,) = found.train_results
    assert (result.num_packets, result.loss, result.duplicates, result.ahead) == (1000, 0, 0, 0)
    assert 0 < result.jitter_s < 0.1


@pytest.mark.parametrize(
    ("trouble", "ping"),
    [
        ({}, True),
        ({"corruption": 0.01}, False),
        ({"reordering": 0.01}, False),
        ({"loss": 0.3}, False),
    ],
)
def test_ping_is_trusted_only_with_links_that_leave_packets_alone(
    trouble: dict[str, float], ping: bool
) -> None:
    """It takes the time from a damaged answer (0 was seen), cannot tell early packets, and sends
    too few where many are lost."""
    jobs: list[dict[str, Any]] = []

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        jobs.append(job_of(stdin))
        return 0, answer(jobs[-1]), ""

    network = two_regions(Link(one_way_delay_s=0.02, bandwidth_bps=1e8, **trouble))
    measure(network, [Sample(kind="link", src=0, dsts=(1,))], LOOPBACK, run)
    (job,) = (job for job in jobs if job["op"] == "measure")
    assert (not job["middle"] and job["num_echoes"] == probe.NUM_ECHOES) is ping


def test_machines_of_unknown_speed_are_measured_for_a_set_time() -> None:
    """Loopback, one connection and three; what came in the first part is not counted."""
    setting = Setting(addresses=LOOPBACK, run=run_without_ping)
    (found,) = measure_as_is([(0, 1)], setting, streams=3, each_s=0.3)
    assert found.error == ""
    assert found.goodput_bps is not None
    assert found.streams_goodput_bps is not None
    assert 1e7 < found.goodput_bps < 1e12
    assert found.train_results[0].num_packets == 1000


def test_a_round_is_given_the_time_its_transfers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two flows share 150 kbit/s: the bytes of both at that rate, twice, and what rounds have."""
    slow = Link(one_way_delay_s=0.03, bandwidth_bps=150e6)
    network = two_regions(across=slow, sharing="class", mtu_bytes=9001)
    sample = Sample(kind="class", src=0, dsts=(2, 3))
    deadlines: list[float] = []

    def at_once(calls: dict[Any, Any], deadline_s: float) -> dict[Any, Any]:
        deadlines.append(deadline_s)
        return dict.fromkeys(calls, TimeoutError("not tried"))

    monkeypatch.setattr(measuring, "at_once", at_once)
    (found,) = measure(network, [sample], [("10.0.0.1",)] * 4, lambda *_: (0, "", ""), 1000.0)
    warmup, measured = transfer_bytes(network, sample, 1000.0)
    expected_s = 2 * (warmup + measured) * 8 / 150e3
    assert expected_s > measuring.DEADLINE_S
    assert deadlines == [pytest.approx(measuring.DEADLINE_S + 2 * expected_s)]
    assert "not tried" in found.error
