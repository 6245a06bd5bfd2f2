"""What is said of links that netem cannot imitate, and of no others."""

from __future__ import annotations

import dataclasses

import pytest

from netbench.network.limits import cautions
from netbench.scenario import list_scenarios, load_scenario
from netbench.scenario.model import BurstLoss, Link
from tests.network.shaping_cases import FAR, NEAR, two_regions

PLAIN = Link(one_way_delay_s=0.04, bandwidth_bps=1e9)


def said(scale: float = 1.0, **fields: object) -> tuple[str, ...]:
    link = dataclasses.replace(PLAIN, **fields)
    return cautions(two_regions(NEAR, link), scale)


@pytest.mark.parametrize("name", list_scenarios())
def test_nothing_is_said_of_links_that_only_delay(name: str) -> None:
    """None of netbench's own scenarios asks for more."""
    assert cautions(load_scenario(name).network, 1000.0) == ()


def test_a_correlation_is_said_to_do_nothing() -> None:
    """Once, not for each direction."""
    (text,) = said(jitter_s=0.001, jitter_correlation=0.25)
    assert text.startswith("ohio -> virginia: a jitter correlation of 25% does nothing")


@pytest.mark.parametrize(
    ("distribution", "fitting_s"),
    [("normal", 0.01), ("uniform", 0.023), ("pareto", 0.0487), ("paretonormal", 0.0221)],
)
def test_a_jitter_that_reaches_below_zero_is_named(distribution: str, fitting_s: float) -> None:
    """By hand: 40 ms are 4 deviations, sqrt(3), 0.6667 / 0.8197, 1.5021 / 0.8339 (tc's tables)."""
    for jitter_s, is_cut in ((fitting_s, False), (fitting_s * 1.01, True)):
        fields = {"jitter_s": jitter_s, "jitter_distribution": distribution}
        assert any("does not fit a delay of 40ms" in text for text in said(**fields)) == is_cut


def test_a_queue_shorter_than_what_is_on_the_way_is_named() -> None:
    """1 Gbit/s x 40 ms are 3303 frames of 1514 bytes."""
    assert said(queue_packets=3303) == ()
    (text,) = said(queue_packets=500)
    assert "no more than 151Mbit get through" in text
    assert said(scale=10.0, queue_packets=500) == ()


def test_what_befalls_packets_is_rarer_in_scaled_messages() -> None:
    """A thousandth of the packets, and of the losses."""
    (text,) = said(scale=1000.0, bursts=BurstLoss(to_bad=0.01, to_good=0.3), duplication=0.01)
    assert "loss and duplication of packets: at scale 1000 a message has 1000 times fewer" in text
    assert said(loss=0.01) == ()


def test_all_links_count_also_those_inside() -> None:
    """Named by their regions."""
    noisy = dataclasses.replace(NEAR, jitter_s=0.0001, jitter_correlation=0.5)
    (text,) = cautions(two_regions(noisy, FAR))
    assert text.startswith("inside ohio: ")
