"""Traces played on a persistent network: the parts of its nodes, and the command in a guest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from netbench.network.traces.trace import Change, compile_replays
from netbench.plan.serial import network_from_json
from netbench.testbed.guest.boot import HANG_S
from netbench.testbed.persistent.client import find_persistent
from netbench.testbed.persistent.replay import request, steps_of
from netbench.testbed.persistent.session import network_addresses
from tests.networks import two_regions
from tests.testbed.applied_network import NETBENCH, Daemon


def test_all_nodes_and_routers_have_their_part() -> None:
    """The trunk's change is its router's; a change that none acts on is still a step."""
    network = two_regions(sharing="trunk")
    changes = (
        Change(time_s=2.0, src=0, dst=0, loss=0.1),
        Change(time_s=1.0, src=0, dst=1, loss=0.1),
        Change(time_s=3.0, src=0, dst=1, loss=0.1),
    )
    job = json.loads(request(network, ("p", "q", "r", "s"), changes))
    assert tuple(Change(**change) for change in job["changes"]) == changes
    found = network_from_json(job["network"])
    nodes = network_addresses(found, job["node_names"])
    in_order = tuple(sorted(changes, key=lambda change: change.time_s))
    replays = compile_replays(found, in_order, [(node.address,) for node in nodes], "eth0")
    steps = steps_of(replays, nodes, in_order)
    assert [(time_s, sorted(texts)) for time_s, texts in steps] == [
        (1.0, ["router of ohio"]),
        (2.0, ["p", "q"]),
        (3.0, []),
    ]


@pytest.mark.guest
def test_a_held_network_changes_and_has_its_own_links_again(tmp_path: Path) -> None:
    """By its routers; also after Ctrl-C, and after the command was killed."""
    daemon = Daemon(tmp_path)
    try:
        trace = tmp_path / "trace.csv"
        scenario = tmp_path / f"{daemon.name}.yaml"
        trace.write_text("time,link,delay\n0s,Campus <-> Garage,70ms\n900s,Campus -> Garage,9ms\n")
        for number in (signal.SIGINT, signal.SIGKILL):
            process = _replay(scenario, trace)
            _await_delays(daemon.name, ["70ms", "70ms"])
            process.send_signal(number)
            printed, _ = process.communicate(timeout=HANG_S)
            if number == signal.SIGINT:
                assert "has its own links again" in printed
                assert process.returncode == 0
            _await_delays(daemon.name, ["40ms", "40ms"])
        trace.write_text("time,link,delay\n0s,Campus -> Garage,70ms\n200ms,Campus -> Garage,9ms\n")
        process = _replay(scenario, trace)
        printed, _ = process.communicate(timeout=HANG_S)
        assert process.returncode in (0, 3), printed  # a busy machine keeps no time
        assert "all 4 nodes        2" in printed
        assert "one clock" in printed
        shown = subprocess.run(
            [*NETBENCH, "net", "show", str(scenario), "--testbed", "local"],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert shown.returncode == 0, shown.stdout + shown.stderr
    finally:
        daemon.process.kill()
        daemon.process.wait()


def _replay(scenario: Path, trace: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*NETBENCH, "net", "replay", str(scenario), str(trace), "--testbed", "local"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def _await_delays(name: str, wanted: list[str]) -> None:
    """Delays of the trunks, as tc prints them at the routers of both regions."""
    opened, end_s = find_persistent(name), time.monotonic() + HANG_S
    while True:
        found = []
        for router in (4, 5):
            _, printed, _ = opened.nodes[router].run(["tc", "qdisc", "show", "dev", "eth0"])
            found += [line.split(" delay ")[1].split()[0] for line in printed.splitlines()[1:]]
        if found == wanted:
            return
        assert time.monotonic() < end_s, found
        time.sleep(0.2)
