"""Whatever fails, machines get their former network back, and a person is told where and why.

`netbench net` as it is typed, a real sshd per machine; in the guest, all in one boot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping

import pytest

from netbench.testbed.machine.packages import find_command
from tests.testbed.safety_in_guest import SCENARIOS

pytestmark = [pytest.mark.guest, pytest.mark.ssh]

Played = Mapping[str, list[str]]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, run_in_guest: Callable[..., tuple[int, str]]) -> Played:
    """Scenario -> what was not as it must be; of those that tests were asked for."""
    if find_command("sshd") is None:
        pytest.skip("sshd is not installed (make ssh-packages)")
    asked = [item.name for item in request.session.items if item.path == request.path]
    names = [name for name in SCENARIOS if any(f"[{name}]" in item for item in asked)]
    argv = [sys.executable, "-m", "tests.testbed.safety_in_guest", *names]
    _, output = run_in_guest(argv)
    lines = [line for line in output.splitlines() if line.startswith('{"scenario"')]
    found = {line["scenario"]: line["problems"] for line in map(json.loads, lines)}
    return {name: found.get(name, [f"not played: {output[-2000:]}"]) for name in names}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_machines_come_back_and_the_cause_is_named(scenario: str, played: Played) -> None:
    assert played[scenario] == []
