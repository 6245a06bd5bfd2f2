"""Shaping in a real kernel: the guest, in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


@pytest.mark.guest
def test_shaped_namespaces_behave_as_their_scenarios(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """Delay and goodput within 0.5%, IPv6, foreign qdiscs left alone, 64 nodes."""
    status, output = run_in_guest([sys.executable, "-m", "tests.network.inside_guest"])
    assert status == 0, output
    assert "all as planned" in output


@pytest.mark.guest
def test_random_programs_are_accepted_and_read_back_equal(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """100 of random networks, and some of more than 256 nodes, whatever their links do."""
    status, output = run_in_guest([sys.executable, "-m", "tests.network.fuzz_in_guest"])
    assert status == 0, output
    assert "read back equal: small 100, hashed 4" in output


@pytest.mark.guest
def test_noise_is_what_was_asked_for(run_in_guest: Callable[..., tuple[int, str]]) -> None:
    """Numbered packets: distributions, order, bursts, duplicates, damage, queues; port 22 is exempt
    with IPv4 and IPv6, from and to."""
    status, output = run_in_guest([sys.executable, "-m", "tests.network.noise_in_guest"])
    assert status == 0, output
    assert "all as asked for" in output
    assert output.count("to port 22 of node") == 4


@pytest.mark.guest
def test_links_change_under_packets_without_a_gap(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """Random updates read back equal in two ways; no packet of a stream is early, and none is lost
    where links are changed in place."""
    status, output = run_in_guest([sys.executable, "-m", "tests.network.update_in_guest"])
    assert status == 0, output
    assert "all as planned" in output
    assert "random: 100 programs, 75 updates" in output
