"""Runs on machines over SSH: records as from a local testbed, and nothing is left after any end.

`netbench run --inventory` as it is typed, a real sshd per machine; in the guest, all in one boot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testbed.cluster_in_guest import SCENARIOS
from tests.testbed.played import Played, play_asked

pytestmark = [pytest.mark.guest, pytest.mark.ssh]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, run_in_guest: Callable[..., tuple[int, str]]) -> Played:
    return play_asked("tests.testbed.cluster_in_guest", SCENARIOS, request, run_in_guest)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_ends_with_one_cause_and_leaves_nothing(scenario: str, played: Played) -> None:
    assert played[scenario] == []


def test_iteration_times_are_those_of_the_local_testbed(
    run_in_guest: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """Same plan, same network. The clocks of the machines differ by seconds and drift; they have no
    DNS, their host name is loopback, and all have a docker0 with one address. Yet no receive ends
    before its send starts, within the stated error.

    `python -m benchmarks.cluster` has eight machines and all systems.
    """
    module = "tests.testbed.cluster_times_in_guest"
    argv = [sys.executable, "-m", module, "2", "megatron-p2,collective", str(tmp_path)]
    status, output = run_in_guest(argv, memory_bytes=3 << 30)
    assert status == 0, output
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"system"')]
    assert [len(found["local_s"]) for found in lines] == [2, 5]
    for found in lines:
        assert found["cluster_s"] == pytest.approx(found["local_s"], rel=5e-4)
    trained = lines[0]
    assert 0 < trained["clock_error_s"] < 0.01
    assert trained["acausal_s"] < 2 * trained["clock_error_s"]  # of two hosts
    assert [sample["host"] for sample in trained["hosts"]] == ["host0", "host1"]
    for sample in trained["hosts"]:
        assert sample["seconds"] > trained["cluster_s"][-1]
        assert sample["sent_bytes"] > 1e6
        assert sample["memory_bytes"] > 100e6  # torch is in memory
        assert sample["gpu_memory_bytes"] is None


def test_sixteen_hosts_that_take_few_logins_at_a_time(
    run_in_guest: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """Strangers keep one of them from taking any for a while.

    `python -m benchmarks.cluster` has 64 hosts.
    """
    argv = [sys.executable, "-m", "tests.testbed.cluster_size_in_guest", "16", str(tmp_path)]
    status, output = run_in_guest(argv, memory_bytes=3 << 30)
    assert status == 0, output
    took, found = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    assert found["problems"] == []
    assert took["hosts"] == 16
