"""Traces played on a real kernel: the guest, in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


@pytest.mark.guest
def test_packets_see_every_change_within_a_millisecond(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """With every way of sharing: none unshaped, none lost but in an outage, rates within 0.5%;
    nodes get back what they had, also after a failure."""
    status, output = run_in_guest([sys.executable, "-m", "tests.testbed.inside_replay"])
    assert status == 0, output
    assert "all as planned" in output
    for sharing in ("pair", "class", "nic", "trunk"):
        assert f"{sharing}: late by" in output


@pytest.mark.guest
@pytest.mark.ssh
def test_machines_change_in_time_and_are_as_before_in_the_end(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """Over real SSH: one clock is found to be one, a refused step stops all, and so does the end of
    the controller, which is killed."""
    status, output = run_in_guest([sys.executable, "-m", "tests.testbed.replay_over_ssh"])
    assert status == 0, output
    assert "all as planned" in output
    assert output.count(" us off, +- ") == 4
