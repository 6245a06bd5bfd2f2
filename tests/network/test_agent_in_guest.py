"""Fleet and agent on a real kernel: the guest, in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


@pytest.mark.guest
def test_every_node_is_restored_after_every_failure(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """A vanished controller, unreachable hosts, a broken tc, two owners, foreign qdiscs."""
    status, output = run_in_guest([sys.executable, "-m", "tests.network.agent_in_guest"])
    assert status == 0, output
    assert "all as planned" in output
