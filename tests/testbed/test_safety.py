"""Whatever fails, machines get their former network back, and a person is told where and why.

`netbench net` as it is typed, a real sshd per machine; in the guest, all in one boot.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.testbed.played import Played, play_asked
from tests.testbed.safety_in_guest import SCENARIOS

pytestmark = [pytest.mark.guest, pytest.mark.ssh]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, run_in_guest: Callable[..., tuple[int, str]]) -> Played:
    return play_asked("tests.testbed.safety_in_guest", SCENARIOS, request, run_in_guest)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_machines_come_back_and_the_cause_is_named(scenario: str, played: Played) -> None:
    assert played[scenario] == []
