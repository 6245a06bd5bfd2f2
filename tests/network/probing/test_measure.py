"""The probe over loopback, and the evaluation of its answers."""

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

from netbench.network.probing import measure as measuring
from netbench.network.probing import probe
from netbench.network.probing.measure import Endpoints, Pace, measure, measure_as_is
from netbench.network.probing.samples import LinkSample, sample_links, transfer_bytes
from netbench.scenario.model import Link
from netbench.testing.nodes import Answer, fake_nodes
from tests.networks import UNLIMITED, two_regions

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


def on(run: Answer, **options: Any) -> Endpoints:
    """Nodes on loopback."""
    return Endpoints(addresses=LOOPBACK, nodes=fake_nodes(run), **options)


def test_the_probe_measures_delay_and_goodput_without_ping() -> None:
    """The file sent to the node needs nothing but the interpreter."""
    network = two_regions(Link(one_way_delay_s=0.0, bandwidth_bps=1e9))
    samples = [LinkSample(kind="link", src=0, dsts=(1,))]
    (found,) = measure(network, samples, on(run_without_ping))
    assert (found.error, found.method) == ("", "udp")
    (rtt_s,), (one_way_s,) = found.rtt_s, found.one_way_s
    assert rtt_s is not None
    assert one_way_s is not None
    assert 0 < one_way_s < rtt_s < 1
    assert found.goodput_bps is not None
    assert found.goodput_bps > 0


def test_an_unlimited_link_is_measured_for_delay_only() -> None:
    """No transfer is made, because nothing could be compared with it."""
    samples = [LinkSample(kind="link", src=2, dsts=(3,))]
    (found,) = measure(two_regions(UNLIMITED), samples, on(run_without_ping))
    assert found.error == ""
    assert found.goodput_bps is None
    assert found.rtt_s[0] is not None


def test_flows_to_several_destinations_are_timed_together() -> None:
    """One source sends to two destinations at once. Missing bytes would be an error."""
    network = two_regions(UNLIMITED, UNLIMITED, sharing="nic", nic_bps=1e9)
    (found,) = measure(network, [LinkSample(kind="nic", src=0, dsts=(2, 3))], on(run_here))
    assert found.error == ""
    assert all(found.one_way_s)
    assert len(found.one_way_s) == len(found.rtt_s) == 2


def job_of(stdin: str) -> dict[str, Any]:
    """Return the job of a node, from the last line of its stdin."""
    line = stdin.strip().splitlines()[-1]
    job: dict[str, Any] = json.loads(ast.literal_eval(line[len("main(") : -1]))
    return job


def answer(job: dict[str, Any], offset_s: float = 0.0, wait_offset_s: float = 0.0) -> str:
    """Answer for a node that receives one byte per nanosecond on every flow, by its own clock."""
    if job["op"] == "measure":
        each = [0.001] * len(job["addresses"])
        found = {"method": "ping", "rtt_s": each, "one_way_s": each}
        offsets = {"offset_s": [offset_s] * len(each), "wait_offset_s": wait_offset_s}
        return json.dumps({**found, **offsets})
    flows = [
        [[[round(1e9 * offset_s) + total * i // 10, total * i // 10] for i in range(1, 11)]]
        * (job["num_sources"] * num)
        for num, total in zip(
            job["transfers"]["streams"], job["transfers"]["total_bytes"], strict=True
        )
    ]
    return json.dumps({"arrivals": flows, "trains": []})


def test_a_failing_node_affects_only_its_own_sample() -> None:
    """Its sample has the reason, the others have their figures."""
    network = two_regions()
    samples = [LinkSample(kind="link", src=0, dsts=(1,)), LinkSample(kind="link", src=2, dsts=(3,))]

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        if node == 1:
            return 1, "", "Traceback ...\nOSError: [Errno 98] Address already in use\n"
        return 0, answer(job_of(stdin)), ""

    broken, good = measure(network, samples, on(run))
    assert "node 1: " in broken.error
    assert "Address already in use" in broken.error
    assert (good.error, good.method, good.rtt_s) == ("", "ping", (0.001,))
    assert good.goodput_bps == pytest.approx(8e9, rel=1e-6)


def test_no_token_is_in_the_arguments_and_none_is_used_twice() -> None:
    """Everybody on a machine can read the arguments of a process."""
    tokens: list[tuple[int, str]] = []
    words: set[str] = set()

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        job = job_of(stdin)
        tokens.append((node, job["token"]))
        words.update(argv)
        return 0, answer(job), ""

    samples = [LinkSample(kind="link", src=0, dsts=(1,)), LinkSample(kind="link", src=1, dsts=(0,))]
    measure(two_regions(), samples, on(run, python="python3"))
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

    samples = [LinkSample(kind="link", src=0, dsts=(1,)), LinkSample(kind="link", src=2, dsts=(3,))]
    seen: list[tuple[int, int]] = []
    found = measure(
        two_regions(), samples, on(run), pace=Pace(concurrent=False),
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert [f.sample for f in found] == samples
    assert max(at_most) <= 2
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_several_connections_are_distinguished_from_one() -> None:
    """One byte per nanosecond each: eight of them carry eight times as much."""
    samples = [LinkSample(kind="link", src=0, dsts=(1,), streams=8)]
    (found,) = measure(
        two_regions(), samples, on(lambda _, __, stdin: (0, answer(job_of(stdin)), ""))
    )
    assert found.goodput_bps == pytest.approx(8e9, rel=1e-3)
    assert found.streams_goodput_bps == pytest.approx(64e9, rel=1e-3)


@pytest.mark.parametrize("shared_clock", [True, False])
def test_flows_of_nodes_with_different_clocks_are_added(shared_clock: bool) -> None:
    """Clocks are 1000 s apart. Without the offsets that the source measured, simultaneous flows to
    two destinations would not overlap."""

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        job = job_of(stdin)
        text = json.loads(answer(job, offset_s=1000.0 * node))
        if job["op"] == "measure":
            text["offset_s"] = [1000.0 * 2, 1000.0 * 3]
        return 0, json.dumps(text), ""

    network = two_regions(UNLIMITED, UNLIMITED, sharing="nic", nic_bps=1e9)
    samples = [LinkSample(kind="nic", src=0, dsts=(2, 3))]
    (found,) = measure(network, samples, on(run, shared_clock=shared_clock))
    expected = None if shared_clock else pytest.approx(16e9, rel=1e-3)
    assert found.goodput_bps == expected


def test_sources_of_a_trunk_meet_and_share_its_clock() -> None:
    """Nodes 0 and 1 send to 2 and 3, all with different clocks. Both wait at node 2."""
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
    (found,) = measure(network, samples[:1], on(run, shared_clock=False))
    assert found.error == ""
    assert found.goodput_bps == pytest.approx(16e9, rel=1e-3)
    waiting = {node: jobs["serve", node]["num_waiting"] for node in (2, 3)}
    assert waiting == {2: 2, 3: 0}
    assert {jobs["measure", node]["wait_at"] for node in (0, 1)} == {LOOPBACK[2][0]}


def test_two_sources_send_to_one_destination() -> None:
    """The only node of a region receives both flows of the trunk, without an error."""
    network = replace(
        two_regions(sharing="trunk", num_nodes=3), node_regions=(0, 0, 1), nic_bps=(math.inf,) * 3
    )
    samples = [sample for sample in sample_links(network) if sample.kind == "trunk"]
    assert [sample.flows for sample in samples] == [((0, 2), (1, 2)), ((2, 0), (2, 1))]
    for found in measure(network, samples, on(run_here)):
        assert found.error == ""
        assert len(found.rtt_s) == 2
        assert all(found.rtt_s)


def test_jitter_and_loss_are_measured_where_the_link_has_them_or_when_asked() -> None:
    """Over loopback, where there is neither: a thousand packets arrive in order."""
    network = two_regions(UNLIMITED)
    plain = LinkSample(kind="link", src=0, dsts=(1,))
    asked = replace(plain, thorough=True)
    without, found = measure(network, [plain, asked], on(run_without_ping))
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
def test_ping_is_used_only_on_links_without_impairments(
    trouble: dict[str, Any], ping: bool
) -> None:
    """ping reads the time from damaged answers (0 was seen), accepts early packets, and sends too
    few packets for lossy links."""
    jobs: list[dict[str, Any]] = []

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        jobs.append(job_of(stdin))
        return 0, answer(jobs[-1]), ""

    network = two_regions(Link(one_way_delay_s=0.02, bandwidth_bps=1e8, **trouble))
    measure(network, [LinkSample(kind="link", src=0, dsts=(1,))], on(run))
    (job,) = (job for job in jobs if job["op"] == "measure")
    assert (not job["median"] and job["num_echoes"] == probe.NUM_ECHOES) is ping


def test_machines_of_unknown_speed_are_measured_for_a_set_time() -> None:
    """One connection and three over loopback; the first part is warm-up."""
    (found,) = measure_as_is([(0, 1)], on(run_without_ping), streams=3, each_s=0.3)
    assert found.error == ""
    assert found.goodput_bps is not None
    assert found.streams_goodput_bps is not None
    assert 1e7 < found.goodput_bps < 1e12
    assert found.train_results[0].num_packets == 1000


def test_a_round_is_given_the_time_its_transfers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two flows share 150 kbit/s: twice the time of their bytes, plus the fixed deadline."""
    slow = Link(one_way_delay_s=0.03, bandwidth_bps=150e6)
    network = two_regions(across=slow, sharing="class", mtu_bytes=9001)
    sample = LinkSample(kind="class", src=0, dsts=(2, 3))
    deadlines: list[float] = []

    def at_once(calls: dict[Any, Any], deadline_s: float) -> dict[Any, Any]:
        deadlines.append(deadline_s)
        return dict.fromkeys(calls, TimeoutError("not tried"))

    monkeypatch.setattr(measuring, "at_once", at_once)
    (found,) = measure(network, [sample], on(lambda *_: (0, "", "")), 1000.0)
    warmup, measured = transfer_bytes(network, sample, 1000.0)
    expected_s = 2 * (warmup + measured) * 8 / 150e3
    assert expected_s > measuring.DEADLINE_S
    assert deadlines == [pytest.approx(measuring.DEADLINE_S + 2 * expected_s)]
    assert "not tried" in found.error
