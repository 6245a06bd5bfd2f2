"""Traces made by rule."""

from __future__ import annotations

import math
from statistics import mean

import pytest

from netbench.network.traces.patterns import diurnal, outages
from netbench.scenario.model import BurstLoss, Link

LINK = Link(one_way_delay_s=0.01, bandwidth_bps=1e9, loss=0.001)


def test_a_day_swings_between_the_rate_and_its_share() -> None:
    """Mean of a cosine: the middle; highest at the phase, lowest half a period later."""
    changes = diurnal(0, 1, LINK, low=0.2, period_s=86400, num_steps=96, phase_s=7200)
    rates = [change.bandwidth_bps or 0 for change in changes]
    assert [change.time_s for change in changes] == [900 * step for step in range(96)]
    assert mean(rates) == pytest.approx(0.6e9, rel=1e-3)
    assert max(rates) == pytest.approx(1e9, rel=1e-3)
    assert min(rates) == pytest.approx(0.2e9, rel=1e-2)
    highest = changes[rates.index(max(rates))].time_s
    assert abs(highest - 7200) <= 900
    assert all(rate % 8 == 0 for rate in rates)


def test_periods_repeat() -> None:
    one = diurnal(0, 1, LINK, low=0.5, period_s=10, num_steps=5)
    three = diurnal(0, 1, LINK, low=0.5, period_s=10, num_steps=5, num_periods=3)
    rates = [change.bandwidth_bps for change in three]
    assert rates == [change.bandwidth_bps for change in one] * 3


def test_a_link_fails_and_comes_back_as_it_was() -> None:
    changes = outages(0, 1, LINK, up_s=60, down_s=5, end_s=200)
    assert [(change.time_s, change.loss) for change in changes] == [
        (60, 1.0), (65, 0.001), (125, 1.0), (130, 0.001), (190, 1.0), (195, 0.001),
    ]  # fmt: skip


def test_drawn_outages_have_the_means_and_repeat() -> None:
    """Exponential: of 2000 draws the mean is within 7% (3 standard errors)."""
    changes = outages(0, 1, LINK, up_s=60, down_s=5, end_s=2000 * 65, seed=7)
    assert changes == outages(0, 1, LINK, up_s=60, down_s=5, end_s=2000 * 65, seed=7)
    pairs = list(zip(changes[::2], changes[1::2], strict=True))
    assert mean(up.time_s - down.time_s for down, up in pairs) == pytest.approx(5, rel=0.07)
    assert len(pairs) == pytest.approx(2000, rel=0.07)
    assert changes[-1].loss == 0.001


@pytest.mark.parametrize("low", [0.0, 1.0])
def test_the_lowest_rate_is_a_fraction_between_0_and_1(low: float) -> None:
    with pytest.raises(ValueError, match="fraction of the rate between 0 and 1"):
        diurnal(0, 1, LINK, low=low, period_s=10, num_steps=5)


def test_patterns_that_change_nothing_are_refused() -> None:
    free = Link(one_way_delay_s=0, bandwidth_bps=math.inf)
    with pytest.raises(ValueError, match="has no rate"):
        diurnal(0, 1, free, low=0.5, period_s=10, num_steps=5)
    with pytest.raises(ValueError, match="two or more steps"):
        diurnal(0, 1, LINK, low=0.5, period_s=10, num_steps=1)
    with pytest.raises(ValueError, match="nothing fails within 10 s"):
        outages(0, 1, LINK, up_s=60, down_s=5, end_s=10)
    with pytest.raises(ValueError, match="more than 0"):
        outages(0, 1, LINK, up_s=60, down_s=0, end_s=100)
    bursty = Link(one_way_delay_s=0, bandwidth_bps=1e9, bursts=BurstLoss(to_bad=0.01, to_good=0.3))
    with pytest.raises(ValueError, match="in bursts, which a trace cannot restore"):
        outages(0, 1, bursty, up_s=60, down_s=5, end_s=100)
