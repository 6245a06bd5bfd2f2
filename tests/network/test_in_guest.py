"""Shaping in a real kernel: the guest, in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.guest
def test_shaped_namespaces_behave_as_their_scenarios(
    run_in_guest: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """Delay and goodput within 0.5%, IPv6, foreign qdiscs left alone, 64 nodes within 6 s."""
    status, output = run_in_guest(
        [sys.executable, "-m", "tests.network.inside_guest", str(tmp_path)]
    )
    assert status == 0, output
    assert "all as planned" in output
