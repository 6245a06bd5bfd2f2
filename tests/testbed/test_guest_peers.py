"""Peers that go and come on shaped links, in a guest kernel."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.guest import run_in_guest
from netbench.testbed.machine.capabilities import probe_machine
from netbench.testbed.runs.controller import LATE_START_S

pytestmark = pytest.mark.guest

PROGRAM = Path(__file__).with_name("peers_in_guest.py")


@pytest.mark.parametrize("variant", ["hivemind-sync", "hivemind"])
def test_a_session_goes_on_without_a_peer_and_takes_another_in(variant: str) -> None:
    """Killed after the second iteration, it is missing from the third and back in the fourth; the
    transfer of its parameters makes no iteration start late."""
    status, output = run_in_guest(probe_machine(), [sys.executable, str(PROGRAM), variant])
    assert status == 0, output
    steps = json.loads(output.strip().splitlines()[-1])
    assert [step["peers"] for step in steps] == [4, 4, 3, 4]
    gone = ["rank 1 on node1 was killed by SIGKILL"]
    assert [step["gone"] for step in steps] == [[], [], gone, []]
    assert all(step["late_start_s"] < LATE_START_S for step in steps)
    if variant == "hivemind-sync":
        whole, _, fewer, again = (step["iteration_s"] for step in steps)
        # The round is done again, by three: each part of the vector is a third, not a fourth.
        assert fewer > whole
        assert again == pytest.approx(whole, rel=0.05)
