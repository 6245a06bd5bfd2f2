"""Verification of what netem does to packets, in a real kernel: the guest, in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


@pytest.mark.guest
def test_disturbances_are_measured_within_the_error_that_is_stated(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """Jitter, loss, bursts, duplication, corruption, reordering, eight connections, trunks; and
    what differs from what was asked for is found out."""
    status, output = run_in_guest([sys.executable, "-m", "tests.network.verify_in_guest"])
    assert status == 0, output
    assert "all as planned" in output
