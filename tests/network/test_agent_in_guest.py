"""Fleet and agent on a real kernel: the guest, in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


@pytest.mark.guest
def test_every_node_is_as_before_whatever_happens(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """A vanished controller, hosts cut off, a broken tc, two owners, foreign qdiscs put aside."""
    status, output = run_in_guest([sys.executable, "-m", "tests.network.agent_in_guest"])
    assert status == 0, output
    assert "all as planned" in output
