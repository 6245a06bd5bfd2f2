"""Several nodes on a machine give the times of the local testbed, and leave nothing.

How such runs end is tested in `test_cluster`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from netbench.testbed.machine.packages import find_command

pytestmark = [pytest.mark.guest, pytest.mark.ssh]


def test_iteration_times_are_those_of_the_local_testbed(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """Same plan, same network: four nodes on two machines, and on one without SSH.

    VXLAN leaves 50 bytes less of every frame for data.
    """
    if find_command("sshd") is None:
        pytest.skip("sshd is not installed (make ssh-packages)")
    argv = [sys.executable, "-m", "tests.testbed.shared_times_in_guest", "megatron"]
    status, output = run_in_guest(argv, memory_bytes=4 << 30)
    assert status == 0, output
    (found,) = [json.loads(line) for line in output.splitlines() if line.startswith('{"local"')]
    assert len(found["local"]) == 2
    assert found["routes"] == pytest.approx(found["local"], rel=5e-3)
    assert found["vxlan"] == pytest.approx(found["local"], rel=5e-3)
    assert found["localhost"] == pytest.approx(found["local"], rel=5e-3)
