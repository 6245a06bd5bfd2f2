"""Runs on machines over SSH: records as from a local testbed, and nothing is left after any end.

`netbench run --inventory` as it is typed, a real sshd per machine; in the guest, all in one boot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

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
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """Same plan, same network; the clocks of the machines differ by seconds. Yet no receive ends
    before its send starts, within the stated error.

    Eight machines and all systems take 9 minutes: `python -m tests.testbed.cluster_times_in_guest`.
    """
    argv = [sys.executable, "-m", "tests.testbed.cluster_times_in_guest", "2", "megatron-p2"]
    status, output = run_in_guest(argv, memory_bytes=3 << 30)
    assert status == 0, output
    (found,) = [json.loads(line) for line in output.splitlines() if line.startswith('{"system"')]
    assert found["cluster_s"] == pytest.approx(found["local_s"], rel=1e-4)
    assert len(found["local_s"]) == 2
    assert 0 < found["clock_error_s"] < 0.01
    assert found["acausal_s"] < 2 * found["clock_error_s"]  # of two hosts
    assert [sample["host"] for sample in found["hosts"]] == ["host0", "host1"]
    for sample in found["hosts"]:
        assert sample["seconds"] > found["cluster_s"][-1]
        assert sample["sent_bytes"] > 1e6
        assert sample["memory_bytes"] > 100e6  # torch is in memory
        assert sample["gpu_memory_bytes"] is None
