"""Warnings about links that netem cannot imitate, and about no others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from netbench.network.shaping.limits import network_warnings
from netbench.scenario import list_scenarios, load_scenario
from netbench.scenario.model import BurstLoss, Link
from tests.networks import FAR, NEAR, two_regions

PLAIN = Link(one_way_delay_s=0.04, bandwidth_bps=1e9)


def warned(scale: float = 1.0, **fields: Any) -> tuple[str, ...]:
    link = dataclasses.replace(PLAIN, **fields)
    return network_warnings(two_regions(NEAR, link), scale)


@pytest.mark.parametrize("name", list_scenarios())
def test_links_that_only_delay_are_fine(name: str) -> None:
    """No built-in scenario asks for more."""
    assert network_warnings(load_scenario(name).network, 1000.0) == ()


def test_a_jitter_correlation_has_no_effect() -> None:
    """It is reported once, not for each direction."""
    (text,) = warned(jitter_s=0.001, jitter_correlation=0.25)
    assert text.startswith("ohio -> virginia: a jitter correlation of 25% does nothing")


@pytest.mark.parametrize(
    ("distribution", "fitting_s"),
    [("normal", 0.01), ("uniform", 0.023), ("pareto", 0.0487), ("paretonormal", 0.0221)],
)
def test_a_jitter_that_reaches_below_zero_is_reported(distribution: str, fitting_s: float) -> None:
    """By hand: 40 ms are 4 deviations, sqrt(3), 0.6667 / 0.8197, 1.5021 / 0.8339 (tc's tables)."""
    for jitter_s, is_cut in ((fitting_s, False), (fitting_s * 1.01, True)):
        fields: dict[str, Any] = {"jitter_s": jitter_s, "jitter_distribution": distribution}
        assert any("does not fit a delay of 40ms" in text for text in warned(**fields)) == is_cut


def test_a_queue_shorter_than_the_packets_in_flight_is_reported() -> None:
    """1 Gbit/s x 40 ms are 3303 frames of 1514 bytes."""
    assert warned(queue_packets=3303) == ()
    (text,) = warned(queue_packets=500)
    assert "it limits the rate to 151Mbit" in text
    assert warned(scale=10.0, queue_packets=500) == ()


def test_impairments_are_rarer_in_scaled_messages() -> None:
    """A message has a thousandth of the packets, and of the losses."""
    (text,) = warned(scale=1000.0, bursts=BurstLoss(to_bad=0.01, to_good=0.3), duplication=0.01)
    assert "loss and duplication of packets: at scale 1000 a message has 1000 times fewer" in text
    assert warned(loss=0.01) == ()


def test_links_inside_regions_are_checked_too() -> None:
    """The warning names the region."""
    noisy = dataclasses.replace(NEAR, jitter_s=0.0001, jitter_correlation=0.5)
    (text,) = network_warnings(two_regions(noisy, FAR))
    assert text.startswith("inside ohio: ")
